"""The dispatchers of `loom_mq.dispatch` are held to their kit, over every store (F3-F6).

Figures, the same over PostgreSQL, SQLite and memory, plainly and seen by a tenant:

- both race for sequence 0: 1 effect;
- a duplicate after the bootstrap: 2 effects under fences [1, 2]; leased 1;
- the same under a supervisor with two restarts: 2 and 1, its circuit closed;
- a dead holder: exactly one re-run, and the zombie settles;
- a start fenced out by a silent holder: completes.

With the dispatcher's check taken out the first three are 5, 6 and 6, with the
supervisor's too 5, 6 and 18. `tests/mutants/dispatch.py` has these and the other guards.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from loom_mq.clock import JournalClock
from loom_mq.errors import LoomError
from loom_mq.journal.memory import MemoryJournal
from loom_mq.journal.postgres import PostgresJournal, migrate
from loom_mq.journal.protocol import AppendVerdict, ClaimVerdict, Journal
from loom_mq.journal.sqlite import SqliteJournal
from loom_mq.journal.tenant import TenantScopedJournal
from loom_mq.testing.conformance.dispatcher import DispatcherConformance
from loom_mq.testing.servers import PostgresServer
from loom_mq.testing.skipping import Proxy
from tests.conformance.postgres_support import Journal as PostgresUnderTest

TENANT = "acme/ü"


class OwnKeys(Proxy):
    """A store that names executions in its refusals by keys of its own, as one that joins
    tenant and id into one key would. Only a view that re-raises them under the caller's id
    lets a refusal be told from a failure.
    """

    async def call(
        self, name: str, do: Callable[[], Coroutine[Any, Any, Any]], args: tuple[Any, ...]
    ) -> Any:
        answer = await do()
        if name in ("append", "claim"):
            for verdict in answer:
                _rename(verdict)
        return answer


def _rename(verdict: AppendVerdict | ClaimVerdict) -> None:
    error: BaseException | None = verdict.error
    while isinstance(error, LoomError):
        error.execution_id = f"{TENANT}:{error.execution_id}"
        error = error.__cause__


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def kit_dsn() -> AsyncIterator[str]:
    """A PostgreSQL that nobody kills, so it need not be durable."""
    async with PostgresServer(fsync=False) as server:
        await migrate(server.dsn)
        yield server.dsn


class OverEveryStore(DispatcherConformance):
    """Runs the kit over the store of a subclass, plainly and seen by a tenant."""

    @pytest.fixture
    def plain(self) -> Journal:
        raise NotImplementedError

    @pytest_asyncio.fixture(params=["plain", "tenant"])
    async def store(self, request: pytest.FixtureRequest, plain: Journal) -> AsyncIterator[Journal]:
        view: Journal = plain
        if request.param == "tenant":
            view = TenantScopedJournal(OwnKeys(plain).as_journal(), TENANT)
        async with AsyncExitStack() as stack:
            yield await stack.enter_async_context(view)


class TestOverMemory(OverEveryStore):
    """The table over the journal in memory."""

    @pytest.fixture
    def plain(self) -> Journal:
        return MemoryJournal(JournalClock())


class TestOverSqlite(OverEveryStore):
    """The table over the embedded journal."""

    @pytest.fixture
    def plain(self, tmp_path: Path) -> Journal:
        return SqliteJournal(tmp_path / "journal.db")


class TestOverPostgres(OverEveryStore):
    """The table over the shared journal."""

    @pytest.fixture
    def plain(self, kit_dsn: str) -> PostgresJournal:
        return PostgresUnderTest(kit_dsn)
