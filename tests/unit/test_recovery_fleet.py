"""Recovery in a whole fleet: sweeps, giving up, sending again, and a wrong predicate (F4, F8)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest
from structlog.testing import capture_logs

import loom_mq as loom
from loom_mq.broker.memory import MemoryBroker
from loom_mq.clock import JournalClock
from loom_mq.engine.admission import KnownFlows
from loom_mq.engine.outbox import Outbox
from loom_mq.engine.packages import PackageSender
from loom_mq.engine.sweep import Sweeper, SweepOptions
from loom_mq.ids import RandomIds
from loom_mq.journal.memory import MemoryJournal
from loom_mq.journal.protocol import Admission, Append, ClaimIntent, IndexUpdate, Runnable
from loom_mq.kernel.fold import fold
from loom_mq.model import events as ev
from loom_mq.model.events import EVENT_SCHEMA, Envelope, kind_of_type
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey, ExecutionRow, FlowRecord, Status
from loom_mq.model.messages import Cause
from loom_mq.observe.metrics import Metrics
from loom_mq.recovery import Keeping, Search, orphan_census, recover_abandoned, send_again
from loom_mq.testing.conformance.journal_rig import Rig, Stores
from tests.support.house import SWEEP, House

KEY = ExecutionKey(DEFAULT_TENANT, "e")
calls: list[str] = []


class Latch:
    holding: asyncio.Event
    release: asyncio.Event


@loom.step(retry=loom.NO_RETRY)
async def note(what: str) -> str:
    calls.append(what)
    return what


@loom.step(retry=loom.NO_RETRY)
async def hold() -> str:
    calls.append("hold")
    Latch.holding.set()
    await Latch.release.wait()
    return "held"


@loom.flow
async def held(ctx: loom.Context) -> list[str]:
    return [await ctx.run(note, "before"), await ctx.run(hold), await ctx.run(note, "after")]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    calls.clear()
    Latch.holding, Latch.release = asyncio.Event(), asyncio.Event()


async def poisoned(journal: MemoryJournal, recoveries: int) -> None:
    """An execution of `held` whose workers died before its first step, one after another."""
    admission = Admission(
        key=KEY, flow="held", version="1", queue="default", start=b"", input_digest=b""
    )
    await journal.admit([admission])
    started = ev.ExecutionStarted(flow="held", version="1", input=b"\x00\xc0")
    payloads: Sequence[msgspec.Struct] = (
        started,
        *(ev.ExecutionRecovered("dead", number) for number in range(recoveries)),
    )
    now = await journal.now()
    log = tuple(
        Envelope(
            RandomIds().envelope(),
            seq,
            kind_of_type[type(payload)],
            now,
            1,
            True,
            EVENT_SCHEMA,
            msgspec.msgpack.encode(payload),
        )
        for seq, payload in enumerate(payloads)
    )
    append = Append(
        key=KEY,
        fence=1,
        events=log,
        index=IndexUpdate(status=Status.RUNNING, recoveries=recoveries),
        claim=ClaimIntent(owner="dead", expected_fence=0),
    )
    [verdict] = await journal.append([append])
    assert verdict.error is None


async def test_f4_given_up_told_of_and_sent_again() -> None:
    """F4, F8: never silent, never tried again by itself, and finished once by hand."""
    Latch.release.set()
    journal = MemoryJournal(JournalClock())
    await poisoned(journal, SWEEP.max_recoveries)
    with capture_logs() as logs:
        async with House([held], journal=journal) as house:
            told = [each for each in logs if each["event"] == "execution.given_up"]
            sweeper = house.dispatcher._sweeper
            assert await sweeper.abandoned() == 0
            sweeper._given_up_told_at = float("-inf")  # a minute later
            assert await sweeper.abandoned() == 0
            [orphan] = (await orphan_census(journal, max_recoveries=10)).orphans
            assert (orphan.row.key, orphan.keeping) == (KEY, Keeping.GIVEN_UP)
            assert calls == []
            row = await send_again(journal, KEY, ids=RandomIds())
            state = fold(await house.log("e"))
            assert (state.status, state.recoveries) == (row.status, row.recoveries)
            handle = house.client.handle("e")
            assert await handle.result(timeout=10) == ["before", "held", "after"]
            told = [each for each in logs if each["event"] == "execution.given_up"]
    assert [(each["execution_id"], each["recoveries"]) for each in told] == [("e", 10)]
    assert calls == ["before", "hold", "after"]


async def test_f8_one_recovery_less_is_still_tried() -> None:
    """F8: the bound is the bound: the fleet itself finishes this one."""
    Latch.release.set()
    journal = MemoryJournal(JournalClock())
    await poisoned(journal, SWEEP.max_recoveries - 1)
    async with House([held], journal=journal) as house:
        handle = house.client.handle("e")
        assert await handle.result(timeout=10) == ["before", "held", "after"]
        kinds = await house.kinds("e")
    assert kinds.count("EXECUTION_RECOVERED") == SWEEP.max_recoveries


async def test_f8_a_predicate_that_claims_a_living_one_harms_no_log() -> None:
    """ADR 0004, F5: its holder is fenced out, and the step in flight runs twice; no more."""
    async with House([held], workers=2) as house:
        handle = await house.client.start(held, id="e")
        await Latch.holding.wait()
        Latch.holding.clear()

        async def send(runnable: Runnable) -> bool:
            return await house.dispatcher._packages.send(runnable.row, Cause.RECOVER)

        summary = await recover_abandoned(house.journal, send, Search(), lambda _row: True)
        assert summary.recovered == 1
        await asyncio.wait_for(Latch.holding.wait(), 10)
        Latch.release.set()
        assert await handle.result(timeout=10) == ["before", "held", "after"]
        kinds, log = await house.kinds("e"), await house.log("e")
    assert kinds.count("EXECUTION_COMPLETED") == 1
    assert [envelope.seq for envelope in log] == list(range(len(log)))
    fences = [envelope.fence for envelope in log]
    assert fences == sorted(fences)
    assert (calls.count("before"), calls.count("hold"), calls.count("after")) == (1, 2, 1)


class Picky(PackageSender):
    """Cannot send one of them, by a fault that nobody thought of."""

    bad: ExecutionKey
    sent: list[tuple[ExecutionKey, Cause]]

    async def send(self, row: ExecutionRow, cause: Cause, start: bytes | None = None) -> bool:
        if row.key == self.bad:
            raise ValueError("no such thing")
        self.sent.append((row.key, cause))
        return True


async def test_f7_one_bad_row_strands_no_other_in_a_sweep() -> None:
    """F7, F8: of dead holders and of lost packages alike; the bad one is met again."""
    clock = JournalClock()
    async with MemoryJournal(clock) as journal, MemoryBroker().connection() as broker:
        rig = Rig(Stores(journal, journal))
        await journal.register_flows([FlowRecord(flow="flow", version="1", queue="default")])
        dead = [await rig.started("dead") for _ in range(7)]
        unsent = [await rig.admitted(resend_after=0.0) for _ in range(5)]
        packages = Picky(broker, Outbox(broker, Metrics()))
        packages.sent = []
        options = SweepOptions(batch=3, resend_after=60.0)
        flows = KnownFlows(journal, clock)
        sweeper = Sweeper(journal, broker, packages, flows, options, clock)
        packages.bad = dead[2]
        with capture_logs() as logs:
            assert await sweeper.abandoned() == 6
            packages.bad = unsent[1]
            for _ in range(3):
                await sweeper.once()
        sent: dict[Cause, list[ExecutionKey]] = {
            cause: [] for cause in (Cause.RECOVER, Cause.RESEND)
        }
        for key, cause in packages.sent:
            sent[cause].append(key)
        assert sorted(sent[Cause.RECOVER]) == sorted(set(dead) - {dead[2]})
        assert sorted(sent[Cause.RESEND]) == sorted(set(unsent) - {unsent[1]})
        assert [each["event"] for each in logs].count("sweep.failed") == 2
        for key in (dead[2], unsent[1]):
            row = await rig.row(key)
            assert row.owner is None
            assert row.hint_at is not None
