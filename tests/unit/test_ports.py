"""Which store and which broker an address means."""

from __future__ import annotations

from pathlib import Path

import pytest

from loom_mq.broker.amqp import AmqpBroker
from loom_mq.clock import JournalClock
from loom_mq.journal.memory import MemoryJournal
from loom_mq.journal.postgres import PostgresJournal
from loom_mq.journal.sqlite import SqliteJournal
from loom_mq.runtime.environment import read_settings
from loom_mq.runtime.ports import (
    leases_from_thread,
    open_broker,
    open_journal,
    prepare_journal,
)
from loom_mq.runtime.settings import ServiceSettings, TimerSettings


def settings(journal: str, **more: str) -> ServiceSettings:
    environ = {"LOOM_BROKER": "amqp://u:S3cr3t@h/v", "LOOM_JOURNAL": journal, **more}
    return read_settings(TimerSettings, environ)


@pytest.mark.parametrize(
    ("journal", "kind", "threaded"),
    [
        ("postgresql://u:S3cr3t@h/db", PostgresJournal, True),
        ("sqlite:///loom.db", SqliteJournal, True),
        ("memory:", MemoryJournal, False),
    ],
)
def test_the_scheme_chooses_the_store(journal: str, kind: type, threaded: bool) -> None:
    chosen = settings(journal)
    assert isinstance(open_journal(chosen, JournalClock()), kind)
    assert leases_from_thread(chosen) is threaded


async def test_the_broker() -> None:
    assert isinstance(open_broker(settings("memory:"), "timer/h/1/abc"), AmqpBroker)


async def test_only_a_shared_journal_is_prepared_and_only_when_wanted(tmp_path: Path) -> None:
    """LOOM_MIGRATE=manual touches nothing, not even the network."""
    await prepare_journal(settings(f"sqlite:///{tmp_path}/loom.db"))
    await prepare_journal(settings("postgresql://u@no-such.invalid/db", LOOM_MIGRATE="manual"))
    assert list(tmp_path.iterdir()) == []
