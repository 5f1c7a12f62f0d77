"""Private RabbitMQ and PostgreSQL servers for tests and benchmarks, on Linux.

Each server has free ports, a throwaway folder, and secrets of its own, listens on the
loopback interface only, and touches no other server on the machine. It ends with the
program that started it, even when that program is killed.

The binaries are found where Debian and the projects' own packages put them; set
``LOOM_TEST_POSTGRES_BIN`` or ``LOOM_TEST_RABBITMQ_BIN`` to a folder to use others.
"""

from loom_mq.testing.servers.base import PrivateServer, ServerFailedError, StopMode
from loom_mq.testing.servers.postgres import PostgresServer
from loom_mq.testing.servers.rabbit import QueueState, RabbitServer

__all__ = [
    "PostgresServer",
    "PrivateServer",
    "QueueState",
    "RabbitServer",
    "ServerFailedError",
    "StopMode",
]
