"""The writing end of a log: sealed by its park or end, silent after a refusal (K11, K9, J2)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from loom_mq.clock import JournalClock
from loom_mq.errors import LoomError, StaleFenceError
from loom_mq.ids import RandomIds
from loom_mq.journal.log import ExecutionLog, JournalWriter
from loom_mq.journal.memory import MemoryJournal
from loom_mq.journal.protocol import Admission, ClaimIntent
from loom_mq.kernel.fold import ExecutionState
from loom_mq.model import events as ev
from loom_mq.model.events import Wait, WaitKind
from loom_mq.model.execution import ExecutionKey, Status
from loom_mq.observe.metrics import Metrics
from tests.unit.generated_logs import PLAIN

KEY = ExecutionKey("default", "e")
START = ev.ExecutionStarted("flow", "1", b"")
STEP = ev.StepStarted("#0", "s", 1)
ENDS = (
    ev.ExecutionSuspended((Wait("#1", WaitKind.GATE, "Approval"),)),
    ev.ExecutionCompleted(b""),
    ev.ExecutionFailed(PLAIN),
    ev.ExecutionCancelled("why"),
)
LATE = (
    ev.StepFailed("#0", PLAIN),
    ev.StepCompleted("#0", b""),
    ev.StepCancelled("#0"),
    ev.StepStarted("#2", "t", 1),
    ev.DecisionRecorded("#3", "d", b""),
    ev.ExecutionFailed(PLAIN),
)


class Bench:
    """One execution, its log, and what the log called back."""

    def __init__(self) -> None:
        clock = JournalClock()
        self.journal = MemoryJournal(clock)
        self.refusals: list[LoomError] = []
        self.written: list[int] = []
        self._writer = JournalWriter(self.journal, clock, RandomIds(), Metrics())

    async def open(self) -> ExecutionLog:
        await self.journal.admit(
            [Admission(key=KEY, flow="flow", version="1", queue="q", start=b"", input_digest=b"")]
        )
        log = self.log(fence=1, claim=ClaimIntent(owner="worker", expected_fence=0))
        log.emit(START)
        log.emit(STEP)
        assert await log.flushed() is None
        return log

    def log(self, *, fence: int, claim: ClaimIntent) -> ExecutionLog:
        return ExecutionLog(
            KEY,
            ExecutionState(),
            fence,
            self._writer,
            claim=claim,
            on_refused=self.refusals.append,
            on_mail=lambda _unread: None,
            on_written=self.written.append,
        )

    async def kinds(self) -> list[str]:
        return [event.kind for event in await self.journal.read(KEY)]

    async def close(self) -> None:
        await self._writer.close()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    await bench.close()


@pytest.mark.parametrize("end", ENDS, ids=lambda end: type(end).__name__)
async def test_k11_nothing_follows_a_park_or_an_end(bench: Bench, end: msgspec.Struct) -> None:
    """K11: what comes late is dropped before it is folded, and the owner is free."""
    log = await bench.open()
    log.emit(end)
    assert log.sealed
    status = log.state.status
    for late in LATE:
        log.emit(late)
    assert await log.flushed() is None
    assert (log.state.status, log.state.last_seq) == (status, 2)
    assert not log.state.failed_while_parked
    assert len(await bench.kinds()) == 3
    [row] = await bench.journal.get([KEY])
    assert row is not None
    assert (row.status, row.owner, row.last_seq) == (status, None, 2)


async def test_k11_a_log_that_is_given_back_writes_nothing_more(bench: Bench) -> None:
    """K11: its status stays as it is on the log."""
    log = await bench.open()
    log.seal()
    for late in (*LATE, *ENDS):
        log.emit(late)
    assert await log.flushed() is None
    assert len(await bench.kinds()) == 2
    assert log.state.status is Status.RUNNING


async def test_j2_after_a_refusal_nothing_is_written(bench: Bench) -> None:
    """J2, F5: the fence has moved; the refusal is told once."""
    log = await bench.open()
    await bench.journal.acquire_fence(KEY, 1)
    log.emit(ev.StepCompleted("#0", b""))
    refusal = await log.flushed()
    assert isinstance(refusal, StaleFenceError)
    seq = log.state.last_seq
    log.emit(ev.ExecutionCompleted(b""))
    assert log.state.last_seq == seq
    assert bench.refusals == [refusal]
    assert len(await bench.kinds()) == 2


async def test_k3_an_event_on_hold_goes_out_with_the_next_one_or_never(bench: Bench) -> None:
    """K3, F3: a wake that leads to nothing new was none."""
    log = await bench.open()
    log.emit(ev.ExecutionRecovered("other", 2), hold=True)
    log.seal()
    assert await log.flushed() is None
    assert len(await bench.kinds()) == 2


async def test_k3_an_event_on_hold_is_written_before_what_follows(bench: Bench) -> None:
    log = await bench.open()
    log.emit(ev.ExecutionRecovered("other", 2), hold=True)
    log.emit(ev.DecisionRecorded("#1", "d", b""))
    assert await log.flushed() is None
    assert (await bench.kinds())[2:] == ["EXECUTION_RECOVERED", "DECISION_RECORDED"]
    assert bench.written[-1] == 3
