"""The execution worker of one process: load state, then start, recover or answer (F3, F6)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace

import loom_mq as loom
from loom_mq.clock import JournalClock
from loom_mq.codec.values import codec_for
from loom_mq.dispatch import (
    Allocation,
    LocalDispatcher,
    LocalOptions,
    LocalWorker,
    await_by_id,
    package_for,
)
from loom_mq.errors import (
    AttemptFailedError,
    FlowCodeMismatchError,
    HeldByLiveOwnerError,
    LoomError,
    MalformedMessageError,
    StaleFenceError,
    StartConflictError,
    StartFencedOutError,
    StorageWriteError,
    UnknownExecutionError,
    UnknownFlowError,
    WaitTimeoutError,
    is_superseded_refusal,
)
from loom_mq.flows.registry import AnyFlow, Registry
from loom_mq.journal.memory import MemoryJournal
from loom_mq.journal.protocol import Journal
from loom_mq.journal.sqlite import SqliteJournal
from loom_mq.model.execution import (
    DEFAULT_TENANT,
    ExecutionKey,
    InboxItem,
    InboxKind,
    Status,
    WorkerRecord,
)
from loom_mq.model.messages import Cause
from loom_mq.testing.skipping import Proxy
from tests.support.house import until

KEY = ExecutionKey(DEFAULT_TENANT, "e")
calls: list[str] = []
both = pytest.mark.parametrize("policy", list(Allocation))


@loom.step(retry=loom.NO_RETRY)
async def note(what: str) -> str:
    calls.append(what)
    return what


@loom.step(retry=loom.NO_RETRY)
async def hangs_once(what: str) -> str:
    calls.append(what)
    if calls.count(what) == 1:
        await asyncio.Event().wait()
    return what


@loom.step(retry=loom.NO_RETRY)
async def broken() -> None:
    raise ValueError("broken on purpose")


@loom.flow
async def two_steps(ctx: loom.Context, name: str) -> str:
    return await ctx.run(note, f"{name} one") + await ctx.run(hangs_once, f"{name} two")


@loom.flow
async def one_step(ctx: loom.Context, name: str) -> str:
    return await ctx.run(note, name)


@loom.flow
async def fails(ctx: loom.Context) -> None:
    await ctx.run(broken)


@loom.flow
async def asks(ctx: loom.Context) -> str:
    return await ctx.suspend(on="Approval", type=str)


FLOWS: tuple[AnyFlow, ...] = (two_steps, one_step, fails, asks)


@pytest.fixture(autouse=True)
def forget() -> None:
    calls.clear()


@pytest_asyncio.fixture
async def journal() -> AsyncIterator[Journal]:
    async with MemoryJournal(JournalClock()) as journal:
        yield journal


def worker_over(
    journal: Journal, policy: Allocation = Allocation.LEASED, *flows: AnyFlow
) -> LocalWorker:
    options = LocalOptions(journal_patience=0.2, mismatch_delay=0.0)
    return LocalWorker(journal, Registry(flows or FLOWS), policy=policy, options=options)


async def kinds(journal: Journal) -> list[str]:
    return [each.kind for each in await journal.read(KEY)]


@both
async def test_f3_what_has_ended_is_answered_and_nothing_is_appended(
    journal: Journal, policy: Allocation
) -> None:
    """F3: a lost response, sent again: the same answer, one start, no second effect."""
    package = package_for(one_step, "x", id="e")
    async with worker_over(journal, policy) as worker:
        assert await worker.load_state(KEY) is None
        first = await worker.execute(package)
        before = await journal.read(KEY)
        assert await worker.execute(package) == first
        assert await worker.execute(replace(package, cause=Cause.WAKE)) == first
    assert first.result == one_step.result_codec.encode("x", what="result")
    assert (await journal.read(KEY), calls) == (before, ["x"])


async def test_f3_a_failed_flow_is_an_outcome(journal: Journal) -> None:
    """F4: returned, and not one attempt more."""
    async with worker_over(journal) as worker:
        dispatcher = LocalDispatcher(worker, max_attempts=3)
        state = await dispatcher.dispatch(package_for(fails, id="e"))
        assert state.status is Status.FAILED
        assert state.failure is not None
        assert "broken on purpose" in state.failure.message
        assert not dispatcher.given_up
    assert (await kinds(journal)).count("EXECUTION_STARTED") == 1


@both
async def test_f3_what_is_parked_is_answered_and_a_wake_drives_it(
    journal: Journal, policy: Allocation
) -> None:
    """F3, K7: a redispatch appends nothing; the wake that an answer brings does."""
    package = package_for(asks, id="e")
    async with worker_over(journal, policy) as worker:
        parked = await worker.execute(package)
        assert (parked.status, parked.gates, parked.settled) == (
            Status.SUSPENDED,
            ("Approval",),
            True,
        )
        before, rows = await journal.read(KEY), await journal.get([KEY])
        assert await worker.execute(package) == parked
        assert await journal.get([KEY]) == rows  # not even a fence was taken
        assert await worker.execute(replace(package, cause=Cause.WAKE)) == parked
        assert await journal.read(KEY) == before
        answer = InboxItem(
            tenant=KEY.tenant,
            execution_id=KEY.execution_id,
            item_id="1",
            kind=InboxKind.ANSWER,
            gate="Approval",
            payload=codec_for(str).encode("yes", what="answer", limit=100),
        )
        await journal.deliver([answer])
        woken = await worker.execute(replace(package, cause=Cause.WAKE))
    assert (woken.status, woken.result) == (
        Status.COMPLETED,
        asks.result_codec.encode("yes", what="result"),
    )


@both
async def test_f3_a_crash_in_the_middle_goes_on_in_another_instance(
    tmp_path: Path, policy: Allocation
) -> None:
    """F3: one instance commits a step and hangs in the next, and is abandoned; another one
    over the same file is sent the very same package and runs the second step only.
    """
    package = package_for(two_steps, "x", id="e")
    async with AsyncExitStack() as stack:
        journal = await stack.enter_async_context(SqliteJournal(tmp_path / "journal.db"))
        first = await stack.enter_async_context(worker_over(journal, policy))
        attempt = asyncio.ensure_future(first.execute(package))

        async def in_the_second_step() -> bool:
            return calls == ["x one", "x two"]

        await until(in_the_second_step)
        record = WorkerRecord(owner=first.owner, role="worker", host="test")
        await journal.lease(record, 0.0)
        second = await stack.enter_async_context(worker_over(journal, policy))
        state = await LocalDispatcher(second, max_attempts=3).dispatch(package)
        assert state.status is Status.COMPLETED
        assert calls == ["x one", "x two", "x two"]
        seen = await kinds(journal)
        assert (seen.count("EXECUTION_STARTED"), seen.count("EXECUTION_RECOVERED")) == (1, 1)
        attempt.cancel()


@both
async def test_f4_a_wedged_attempt_is_given_up_for_the_next(
    journal: Journal, policy: Allocation
) -> None:
    """F4: past its deadline it is sent again, to the same worker, and finishes."""
    async with worker_over(journal, policy) as worker:
        dispatcher = LocalDispatcher(worker, max_attempts=2, execute_timeout=0.3)
        state = await dispatcher.dispatch(package_for(two_steps, "x", id="e"))
        assert state.status is Status.COMPLETED
    assert calls == ["x one", "x two", "x two"]


async def test_f7_a_duplicate_of_what_is_in_hand_is_left_to_it(journal: Journal) -> None:
    """F7: leased, the same worker is told of its own attempt as of anybody's."""
    package = package_for(two_steps, "x", id="e")
    async with worker_over(journal) as worker:
        attempt = asyncio.ensure_future(worker.execute(package))
        while "x two" not in calls:
            await asyncio.sleep(0)
        with pytest.raises(HeldByLiveOwnerError, match=worker.owner):
            await LocalDispatcher(worker, max_attempts=3).dispatch(package)
        attempt.cancel()
    assert calls == ["x one", "x two"]


async def test_f5_preempting_a_duplicate_takes_it_from_the_attempt_before(
    journal: Journal,
) -> None:
    """F5: within one worker too: the older attempt is told that it was superseded."""
    package = package_for(two_steps, "x", id="e")
    async with worker_over(journal, Allocation.PREEMPTING) as worker:
        first = asyncio.ensure_future(LocalDispatcher(worker, max_attempts=3).dispatch(package))
        while "x two" not in calls:
            await asyncio.sleep(0)
        state = await LocalDispatcher(worker, max_attempts=3).dispatch(package)
        with pytest.raises(LoomError) as caught:
            await first
    assert is_superseded_refusal(caught.value, "e")
    assert state.status is Status.COMPLETED
    assert calls == ["x one", "x two", "x two"]


class FencedOut(Proxy):
    """A journal in which somebody takes a fence before each of so many claims or starts."""

    def __init__(self, journal: Journal, before: str, times: int) -> None:
        super().__init__(journal)
        self._journal = journal
        self._before = before
        self.times = times

    async def call(self, name: str, do: Any, args: tuple[Any, ...]) -> Any:
        if name == self._before and self.times > 0:
            self.times -= 1
            await self._journal.acquire_fence(KEY, None)
        return await do()


@both
@pytest.mark.parametrize(("before", "times"), [("append", 1), ("append", 2), ("claim", 2)])
async def test_f6_a_start_that_is_kept_out_twice_is_a_failed_attempt(
    journal: Journal, policy: Allocation, before: str, times: int
) -> None:
    """F6: `StorageWriteError` caused by `StartFencedOutError`, never superseded; a retry
    starts it.
    """
    view = FencedOut(journal, before, times)
    package = package_for(one_step, "x", id="e")
    async with worker_over(view.as_journal(), policy) as worker:
        with pytest.raises(StorageWriteError, match="dispatch it again") as caught:
            await worker.execute(package)
        assert isinstance(caught.value.__cause__, StartFencedOutError)
        assert not is_superseded_refusal(caught.value, "e")
        assert (calls, await kinds(journal)) == ([], [])
        state = await LocalDispatcher(worker, max_attempts=2).dispatch(package)
    assert (state.status, calls) == (Status.COMPLETED, ["x"])


@both
async def test_f6_one_claim_lost_to_a_silent_holder_is_made_up_for(
    journal: Journal, policy: Allocation
) -> None:
    """F6: the second look finds nobody alive, and takes it."""
    view = FencedOut(journal, "claim", 1)
    async with worker_over(view.as_journal(), policy) as worker:
        state = await worker.execute(package_for(one_step, "x", id="e"))
    assert (state.status, calls) == (Status.COMPLETED, ["x"])


async def test_f5_a_claim_lost_to_one_that_wrote_is_superseded(journal: Journal) -> None:
    """J5: somebody else moved the fence first, and has the log going."""
    package = package_for(two_steps, "x", id="e")
    async with worker_over(journal, Allocation.PREEMPTING) as first:
        attempt = asyncio.ensure_future(first.execute(package))
        while "x two" not in calls:
            await asyncio.sleep(0)
        view = FencedOut(journal, "claim", 1).as_journal()
        async with worker_over(view, Allocation.PREEMPTING) as second:
            with pytest.raises(StaleFenceError):
                await LocalDispatcher(second, max_attempts=3).dispatch(package)
            assert second.metrics.value("loom_superseded_total", at="claim") == 1
        attempt.cancel()


async def test_k3_code_that_does_not_fit_leaves_the_log_alone(journal: Journal) -> None:
    """K3: a failed attempt that says so; the execution stays running and is listed."""
    package = package_for(two_steps, "x", id="e")
    async with worker_over(journal) as worker:
        attempt = asyncio.ensure_future(worker.execute(package))
        while "x two" not in calls:
            await asyncio.sleep(0)
        attempt.cancel()
        await asyncio.wait([attempt])

    @loom.flow(name="two_steps")
    async def changed(ctx: loom.Context, name: str) -> str:
        return await ctx.run(hangs_once, name)

    before = await journal.read(KEY)
    async with worker_over(journal, Allocation.LEASED, changed) as worker:
        with pytest.raises(FlowCodeMismatchError):
            await worker.execute(package)
    [row] = await journal.get([KEY])
    assert row is not None
    assert (row.status, row.owner) == (Status.RUNNING, None)
    assert row.trouble
    assert await journal.read(KEY) == before


async def test_what_cannot_be_driven_is_refused(journal: Journal) -> None:
    """F2: typed errors, before anything is written."""
    package = package_for(one_step, "x", id="e")
    async with worker_over(journal) as worker:
        with pytest.raises(UnknownFlowError, match="not served"):
            await worker.execute(replace(package, version="2"))
        with pytest.raises(UnknownExecutionError, match="holds no start"):
            await worker.execute(replace(package, start=None))
        with pytest.raises(MalformedMessageError, match="cannot be read"):
            await worker.execute(replace(package, start=b"\xc1"))
        await worker.execute(package)
        assert (await worker.execute(replace(package, start=None))).status is Status.COMPLETED
        with pytest.raises(StartConflictError):
            await worker.execute(package_for(one_step, "another", id="e"))


async def test_f10_a_worker_that_stops_gives_back_what_it_has(journal: Journal) -> None:
    """F10: the attempt fails, the execution is nobody's at once, and another goes on."""
    package = package_for(two_steps, "x", id="e")
    worker = worker_over(journal)
    async with worker:
        attempt = asyncio.ensure_future(worker.execute(package))
        while "x two" not in calls:
            await asyncio.sleep(0)
    with pytest.raises(AttemptFailedError, match="given up"):
        await attempt
    async with worker_over(journal) as other:
        assert (await other.execute(package)).status is Status.COMPLETED


async def test_f5_await_by_id(journal: Journal) -> None:
    """F5: whoever was refused waits for the outcome that the holder brings about."""
    package = package_for(asks, id="e")
    async with worker_over(journal) as worker:
        with pytest.raises(UnknownExecutionError):
            await await_by_id(worker, KEY, timeout=5)
        await worker.execute(package)
        parked = await await_by_id(worker, KEY, timeout=5, parked=True)
        assert parked.status is Status.SUSPENDED
        with pytest.raises(WaitTimeoutError, match="goes on"):
            await await_by_id(worker, KEY, timeout=0.05)
        waiting = asyncio.ensure_future(await_by_id(worker, KEY, timeout=10))
        cancel = InboxItem(
            tenant=KEY.tenant,
            execution_id="e",
            item_id="cancel",
            kind=InboxKind.CANCEL,
            payload=b"enough",
        )
        await journal.deliver([cancel])
        await worker.execute(replace(package, cause=Cause.WAKE))
        ended = await waiting
    assert (ended.status, ended.reason) == (Status.CANCELLED, "enough")


async def test_f6_a_claim_lost_to_a_living_racer_is_left_to_him(journal: Journal) -> None:
    """F6, F7: two look at a pending execution, one claims it first and has not written yet:
    the other looks again and leaves it to him, also where it would preempt a holder.
    """
    package = package_for(one_step, "x", id="e")
    asked, claimed, may_write = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class First(Proxy):
        async def call(self, name: str, do: Any, args: tuple[Any, ...]) -> Any:
            if name == "append":
                claimed.set()
                await may_write.wait()
            return await do()

    class Second(Proxy):
        async def call(self, name: str, do: Any, args: tuple[Any, ...]) -> Any:
            if name == "claim":
                asked.set()
                await claimed.wait()
            return await do()

    async with (
        worker_over(First(journal).as_journal(), Allocation.PREEMPTING) as first,
        worker_over(Second(journal).as_journal(), Allocation.PREEMPTING) as second,
    ):
        refused = asyncio.ensure_future(LocalDispatcher(second, max_attempts=3).dispatch(package))
        await asyncio.wait_for(asked.wait(), 10)
        wins = asyncio.ensure_future(first.execute(package))
        with pytest.raises(HeldByLiveOwnerError):
            await refused
        may_write.set()
        assert (await wins).status is Status.COMPLETED
    assert calls == ["x"]
