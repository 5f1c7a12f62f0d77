"""Which store and which broker an address means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from loom_mq.broker.amqp import AmqpBroker
from loom_mq.broker.protocol import Broker
from loom_mq.clock import JournalClock
from loom_mq.errors import SettingsError
from loom_mq.journal.memory import MemoryJournal
from loom_mq.journal.postgres import PostgresJournal
from loom_mq.journal.protocol import Journal
from loom_mq.journal.sqlite import SqliteJournal
from loom_mq.runtime.settings import CommonSettings, ServiceSettings

SCHEMA: Final = "loom"
CONNECT_SECONDS: Final = 5.0
"""For one try to reach the broker, and for its answer to a question."""


def open_journal(settings: ServiceSettings, clock: JournalClock) -> Journal:
    """The journal that ``LOOM_JOURNAL`` names, not yet entered.

    Args:
        settings: its address and how to use it.
        clock: what a journal in memory takes for its own time.

    Raises:
        SettingsError: no store has that scheme.
    """
    address = settings.journal
    match address.scheme:
        case "postgresql":
            return PostgresJournal(
                address.reveal(),
                pool_size=settings.pool_size,
                command_timeout=settings.command_timeout,
                schema=SCHEMA,
                statement_cache=settings.statement_cache,
            )
        case "sqlite":
            return SqliteJournal(address.path, exclusive=True)
        case "memory":
            return MemoryJournal(clock)
        case scheme:
            raise SettingsError(f"LOOM_JOURNAL: there is no store for {scheme!r}")


def open_broker(settings: CommonSettings, name: str) -> Broker:
    """The broker that ``LOOM_BROKER`` names, not yet entered.

    Args:
        settings: its address and how to use it.
        name: this process, as shown on the broker.
    """
    return AmqpBroker(
        settings.broker.reveal(),
        name=name,
        publish_timeout=settings.publish_timeout,
        connect_timeout=CONNECT_SECONDS,
    )


def leases_from_thread(settings: ServiceSettings) -> bool:
    """Whether the lease can be renewed from a thread; a journal in memory lives on one loop."""
    return settings.journal.scheme != "memory"


class Openers(msgspec.Struct, frozen=True):
    """How a process gets its connections; a parameter for tests."""

    journal: Callable[[ServiceSettings, JournalClock], Journal]
    broker: Callable[[CommonSettings, str], Broker]


OPENERS: Final = Openers(open_journal, open_broker)
