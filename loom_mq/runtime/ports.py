"""Which store and which broker an address means."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from loom_mq.broker.amqp import AmqpBroker
from loom_mq.broker.protocol import Broker
from loom_mq.clock import JournalClock
from loom_mq.errors import SettingsError
from loom_mq.journal.memory import MemoryJournal
from loom_mq.journal.postgres import PostgresJournal, migrate
from loom_mq.journal.protocol import Journal
from loom_mq.journal.sqlite import SqliteJournal
from loom_mq.runtime.settings import CommonSettings, MigrateMode, ServiceSettings

SCHEMA: Final = "loom"
MIGRATE_SECONDS: Final = 30.0
"""For bringing the schema up to date, the wait for another process that does so included."""
CONNECT_SECONDS: Final = 5.0
"""For one try to reach the broker, and for its answer to a question."""


async def prepare_journal(settings: ServiceSettings) -> None:
    """Bring a shared journal's schema up to date where ``LOOM_MIGRATE`` says so.

    Safe from many processes at once. The other stores do it themselves as they open.

    Raises:
        JournalUnreachableError: the server cannot be reached.
        SchemaVersionError: a newer release wrote the journal.
        StorageWriteError: the server refused a statement; nothing was changed.
    """
    if settings.journal.scheme == "postgresql" and settings.migrate is MigrateMode.AUTO:
        await migrate(settings.journal.reveal(), SCHEMA, timeout=MIGRATE_SECONDS)


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
    """How a process gets its connections; a parameter for tests.

    Attributes:
        prepare: done before each try to open the journal.
    """

    prepare: Callable[[ServiceSettings], Awaitable[None]]
    journal: Callable[[ServiceSettings, JournalClock], Journal]
    broker: Callable[[CommonSettings, str], Broker]


OPENERS: Final = Openers(prepare_journal, open_journal, open_broker)
