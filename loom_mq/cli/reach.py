"""Where journal and broker are, and how a command gets at them."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from loom_mq.broker.amqp import AmqpBroker
from loom_mq.broker.protocol import Broker
from loom_mq.cli.screen import Screen
from loom_mq.cli.text import sqlite_address
from loom_mq.client.client import Client
from loom_mq.errors import (
    BrokerUnreachableError,
    ConfigurationError,
    JournalUnreachableError,
    SettingsError,
)
from loom_mq.ids import check_id
from loom_mq.journal.postgres import PostgresJournal
from loom_mq.journal.protocol import Journal
from loom_mq.journal.sqlite import SqliteJournal
from loom_mq.model.execution import ExecutionKey
from loom_mq.observe.redaction import redactor
from loom_mq.runtime.addresses import Address, parse_address, redact
from loom_mq.runtime.connecting import leave
from loom_mq.runtime.ports import SCHEMA

OnBroker = TypeVar("OnBroker", Client, AmqpBroker)

DEV_FILE: Final = Path("loom-dev.sqlite")
"""The journal of `loom dev`, unless it is told another."""
CONNECT_SECONDS: Final = 5.0


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """What command line and environment say.

    Attributes:
        journal: its address; None when nobody said.
        broker: its address; None when nobody said.
        tenant: whose executions.
        timeout: seconds that a command may wait for anything; None for its own ideas.
        screen: where the answer goes.
        told: the journal's address stood on the command line.
    """

    journal: str | None
    broker: str | None
    tenant: str
    timeout: float | None
    screen: Screen
    told: bool = False

    @property
    def patience(self) -> float:
        """Seconds for a server to answer."""
        return CONNECT_SECONDS if self.timeout is None else self.timeout

    def copyable(self, command: str) -> str:
        """A command line of `loom` as it must be typed here to reach the same journal."""
        name, _, rest = command.partition(" ")
        if name != "loom":
            return command
        where = ""
        if self.told and self.embedded:  # another journal's address may hold a password
            where = f" --journal {shlex.quote(self.journal_address().reveal())}"
        return f"{program()}{where} {rest}"

    def key(self, execution_id: str) -> ExecutionKey:
        """The whole name of an execution.

        Raises:
            InvalidIdError: no execution can have that id.
        """
        return ExecutionKey(check_id(self.tenant, "tenant"), check_id(execution_id, "execution id"))

    @property
    def embedded(self) -> bool:
        """Whether one process is the whole fleet of this journal."""
        return self.journal_address().scheme == "sqlite"

    def journal_address(self) -> Address:
        """Where the journal is.

        Raises:
            SettingsError: nobody said, or it cannot be read.
        """
        if self.journal is not None:
            return _address("--journal or LOOM_JOURNAL", self.journal, ("postgresql", "sqlite"))
        if DEV_FILE.is_file():
            return parse_address(sqlite_address(DEV_FILE), ("sqlite",))
        raise SettingsError(
            "no journal is given: use --journal URL or LOOM_JOURNAL, or run this where "
            f"`loom dev` left its {DEV_FILE}"
        )

    def broker_address(self) -> Address:
        """Where the broker is.

        Raises:
            SettingsError: nobody said, or it cannot be read.
        """
        if self.broker is None:
            raise SettingsError("no broker is given: use --broker URL or LOOM_BROKER")
        return _address("--broker or LOOM_BROKER", self.broker, ("amqp", "amqps"))


def program() -> str:
    """How `loom` must be called from this folder."""
    called = Path(sys.argv[0])
    return "loom" if called.name != "loom" or shutil.which("loom") else str(called)


def _address(where: str, text: str, schemes: tuple[str, ...]) -> Address:
    try:
        address = parse_address(text, schemes)
    except ConfigurationError as error:
        raise SettingsError(f"{where} is {redact(text)!r}: {error.message}") from None
    redactor.register(address.secrets())
    return address


@asynccontextmanager
async def open_journal(reach: Reach) -> AsyncIterator[Journal]:
    """The journal, to look at and to put things into inboxes; never to drive.

    Raises:
        LoomError: it cannot be opened; the sentence says where it was looked for.
    """
    address = reach.journal_address()
    journal = journal_at(address, reach.patience)
    try:
        async with asyncio.timeout(reach.patience):
            await journal.__aenter__()
    except TimeoutError:
        raise JournalUnreachableError(
            f"the journal {address} did not answer within {reach.patience:g} s"
        ) from None
    except JournalUnreachableError as error:
        raise JournalUnreachableError(f"the journal {address}: {error.message}") from error
    try:
        yield journal
    finally:
        await leave(journal, "journal")


def journal_at(address: Address, seconds: float) -> Journal:
    """The journal at an address, not yet entered.

    Args:
        address: of PostgreSQL, or of a file that exists.
        seconds: for one statement.

    Raises:
        JournalUnreachableError: there is no such file.
    """
    if address.scheme == "postgresql":
        return PostgresJournal(
            address.reveal(), pool_size=2, command_timeout=seconds, schema=SCHEMA
        )
    if not Path(address.path).is_file():
        raise JournalUnreachableError(
            f"there is no journal {address.path!r}; `loom dev FILE --db {address.path}` makes one"
        )
    return SqliteJournal(address.path, exclusive=False, busy_timeout=seconds)


@asynccontextmanager
async def open_client(reach: Reach) -> AsyncIterator[Client]:
    """A client on the broker.

    Raises:
        LoomError: the broker cannot be used.
    """
    async with _entered(Client(_broker(reach), tenant=reach.tenant), reach) as client:
        yield client


@asynccontextmanager
async def open_broker(reach: Reach) -> AsyncIterator[Broker]:
    """The broker itself, to send packages.

    Raises:
        LoomError: the broker cannot be used.
    """
    async with _entered(_broker(reach), reach) as broker:
        yield broker


def _broker(reach: Reach) -> AmqpBroker:
    return AmqpBroker(
        reach.broker_address().reveal(),
        name="loom",
        publish_timeout=reach.patience,
        connect_timeout=reach.patience,
    )


@asynccontextmanager
async def _entered(thing: OnBroker, reach: Reach) -> AsyncIterator[OnBroker]:
    address = reach.broker_address()
    try:
        async with asyncio.timeout(reach.patience):
            await thing.__aenter__()
    except TimeoutError:
        raise BrokerUnreachableError(
            f"the broker {address} did not answer within {reach.patience:g} s"
        ) from None
    except BrokerUnreachableError as error:
        raise BrokerUnreachableError(f"the broker {address}: {error.message}") from error
    try:
        yield thing
    finally:
        await leave(thing, "broker")
