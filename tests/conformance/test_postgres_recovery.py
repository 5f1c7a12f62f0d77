"""Recovery over a PostgreSQL that is restarted in the middle (C29, C63, F7 to F9)."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from loom_mq.broker.memory import MemoryBroker
from loom_mq.clock import JournalClock
from loom_mq.engine.admission import KnownFlows
from loom_mq.engine.outbox import Outbox
from loom_mq.engine.packages import PackageSender
from loom_mq.engine.sweep import Sweeper, SweepOptions
from loom_mq.errors import LoomError
from loom_mq.ids import RandomIds
from loom_mq.journal.postgres import migrate
from loom_mq.journal.protocol import Append, Claim, ClaimIntent, IndexUpdate, Runnable
from loom_mq.model.execution import ExecutionKey, ExecutionRow, FlowRecord, Status
from loom_mq.model.messages import Cause
from loom_mq.observe.metrics import Metrics
from loom_mq.recovery import (
    HolderGone,
    RecoverySummary,
    Search,
    orphan_census,
    reconcile_timers,
    recover_abandoned,
    send_again,
)
from loom_mq.testing.conformance.journal_rig import LONG, Rig, Stores, accepted, events
from loom_mq.testing.servers import PostgresServer
from tests.conformance.postgres_support import Journal, connected

NUMBER = 60
PATIENCE = 60.0


@pytest_asyncio.fixture
async def dsn(postgres_dsn: str) -> str:
    """A database with an empty journal."""
    await migrate(postgres_dsn)
    return postgres_dsn


async def held_by_the_dead(rig: Rig, number: int = NUMBER) -> list[ExecutionKey]:
    """Running executions whose holder is gone, written in one commit."""
    keys = [await rig.admitted() for _ in range(number)]
    claim = ClaimIntent(owner="dead", expected_fence=0)
    running = IndexUpdate(status=Status.RUNNING)
    verdicts = await rig.journal.append(
        [Append(key=key, fence=1, events=events(0), index=running, claim=claim) for key in keys]
    )
    for verdict in verdicts:
        accepted(verdict)
    return keys


class Post(PackageSender):
    """Notes what went out; the first packages of all are lost on the way."""

    lost = NUMBER // 4

    async def send(self, row: ExecutionRow, cause: Cause, start: bytes | None = None) -> bool:
        self.tried += 1
        self.enough.set()
        if self.tried <= self.lost:
            return False
        self.sent[row.key] += 1
        return True

    def begin(self) -> None:
        self.tried = 0
        self.enough = asyncio.Event()
        self.sent: Counter[ExecutionKey] = Counter()


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_a_restart_in_the_middle_of_a_sweep_strands_nothing(
    dsn: str, postgres_server: PostgresServer, mode: str
) -> None:
    """C63, F7: whatever the statement under way came to, every execution is sent out."""
    clock = JournalClock()
    async with Journal(dsn) as journal, MemoryBroker().connection() as broker:
        rig = Rig(Stores(journal, journal))
        await journal.register_flows([FlowRecord(flow="flow", version="1", queue="default")])
        keys = await held_by_the_dead(rig)
        post = Post(broker, Outbox(broker, Metrics()))
        post.begin()
        options = SweepOptions(
            interval=0.02, resend_after=0.2, resend_limit=0.2, backlog_resend=0.5, batch=5
        )
        flows = KnownFlows(journal, clock)
        sweeping = asyncio.ensure_future(
            Sweeper(journal, broker, post, flows, options, clock).run()
        )
        try:
            async with asyncio.timeout(PATIENCE):
                await post.enough.wait()
                await postgres_server.stop("fast" if mode == "fast" else "immediate")
                await postgres_server.start()
                while set(post.sent) != set(keys):
                    await asyncio.sleep(0.01)
        finally:
            sweeping.cancel()
            await asyncio.wait([sweeping])
        rows = await journal.get(keys)
        assert {None if row is None else row.owner for row in rows} == {None}
        assert (await orphan_census(journal)).orphaned == 0
        claims = await journal.claim(
            [Claim(key=key, owner="next", expected_fence=1) for key in keys]
        )
        assert all(verdict.claimed is not None for verdict in claims), "each can be driven"


async def test_a_restart_in_the_middle_of_a_pass_by_hand_strands_nothing(
    dsn: str, postgres_server: PostgresServer
) -> None:
    """C63, F8: the pass ends, and the next one finds what it had not come to."""
    async with Journal(dsn) as journal:
        rig = Rig(Stores(journal, journal))
        keys = await held_by_the_dead(rig, 30)
        sent: list[ExecutionKey] = []

        async def send(runnable: Runnable) -> bool:
            sent.append(runnable.row.key)
            if len(sent) == 10:
                await postgres_server.restart("immediate")
            return True

        async def one_pass() -> RecoverySummary:
            return await recover_abandoned(
                journal, send, Search(page=5), HolderGone(journal), resend_after=0.0
            )

        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    if not (await one_pass()).claimed:
                        break
                except LoomError:
                    continue
        taken = {each.row.key for each in await rig.take_unsent()}
        assert taken == set(keys), "sent or not, each has its hint"
        assert len(sent) == len(set(sent))


async def test_a_restart_in_the_middle_of_reconciling_loses_no_timer(
    dsn: str, postgres_server: PostgresServer
) -> None:
    """F9: what was armed stays armed, and what was not is armed the next time."""
    async with Journal(dsn) as journal:
        rig = Rig(Stores(journal, journal))
        keys = await held_by_the_dead(rig, 30)
        parked = IndexUpdate(status=Status.SUSPENDED, wake_at=5)
        for verdict in await journal.append(
            [Append(key=key, fence=1, events=events(1), index=parked, release=True) for key in keys]
        ):
            accepted(verdict)
        restarting = asyncio.ensure_future(postgres_server.restart("immediate"))
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    if (await reconcile_timers(journal, page=3)).looked_at == len(keys):
                        break
                except LoomError:
                    await asyncio.sleep(0.01)
            await restarting
            while (await reconcile_timers(journal)).armed:
                continue
        due = await journal.due_timers(limit=100, hold=LONG)
        assert sorted(each.row.key for each in due) == sorted(keys)


async def test_a_damaged_row_strands_nothing_that_is_taken_with_it(dsn: str) -> None:
    """C63: of dead holders, of lost packages, of timers; told of in the log."""
    async with Journal(dsn) as journal:
        rig = Rig(Stores(journal, journal))
        dead = await held_by_the_dead(rig, 3)
        unsent = [await rig.admitted(resend_after=0.0) for _ in range(3)]
        timed = [await rig.parked(timers=(5,)) for _ in range(3)]
        bad = [keys[1].execution_id for keys in (dead, unsent, timed)]
        async with connected(dsn) as connection:
            await connection.execute(
                "UPDATE loom.executions SET labels = '{' WHERE execution_id = ANY ($1)", bad
            )
        with capture_logs() as logs:
            taken = [each.row.key for each in await rig.take_abandoned()]
            sent = [each.row.key for each in await rig.take_unsent()]
            due = [each.row.key for each in await journal.due_timers(limit=9, hold=LONG)]
        for keys, found in ((dead, taken), (unsent, sent), (timed, due)):
            assert sorted(found) == sorted([keys[0], keys[2]])
        told = [each["execution_id"] for each in logs if each["event"] == "execution.unreadable"]
        assert told == bad


async def test_sending_again_is_one_for_two_who_ask_at_once(dsn: str) -> None:
    """F4, J5: one of them, or each in turn; the log is whole and the count is 0."""
    async with Journal(dsn) as journal, Journal(dsn) as other:
        rig = Rig(Stores(journal, other))
        [key] = await held_by_the_dead(rig, 1)
        index = IndexUpdate(status=Status.RUNNING, recoveries=12)
        accepted(await rig.append(key, events(1), index=index))
        answers = await asyncio.gather(
            *(send_again(each, key, ids=RandomIds()) for each in (journal, other) * 3),
            return_exceptions=True,
        )
        assert any(isinstance(answer, ExecutionRow) for answer in answers)
        assert all(isinstance(answer, ExecutionRow | LoomError) for answer in answers)
        row = await rig.row(key)
        log = await rig.log(key)
        assert (row.recoveries, row.owner, row.last_seq) == (0, None, len(log) - 1)
        assert [each.row.key for each in await rig.take_unsent()] == [key]
