"""The lease is kept whatever the process's own code and the journal do (F7, C05)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from loom_mq.clock import MICROS, JournalClock
from loom_mq.engine.lease import LeaseKeeper
from loom_mq.errors import JournalUnreachableError
from loom_mq.journal.protocol import LeaseSession, Renewal
from loom_mq.journal.sqlite import SqliteJournal
from loom_mq.model.execution import ExecutionKey, WorkerRecord
from loom_mq.observe.metrics import Metrics

TTL = 0.6
RECORD = WorkerRecord(owner="worker/h/1/abc", role="worker", host="h")
MAIL = (ExecutionKey("t", "e-1"),)


class Store:
    """Keeps one lease; what it does next is set by the test, from any thread.

    Attributes:
        ahead: how far its clock is ahead of the host's, in seconds.
        renew_with: called at each renewal with the count so far; may raise.
    """

    def __init__(self) -> None:
        self.ahead = 0.0
        self.opened = 0
        self.closed = 0
        self.retired = 0
        self.drained = 0
        self.renewals = 0
        self.records: list[WorkerRecord] = []
        self.threads: set[str] = set()
        self.held = True
        self.hang_renewal = False
        self.hang_retirement = False
        self.renew_with: Callable[[int], None] = lambda _count: None
        self.open_with: Callable[[], None] = lambda: None
        self.drain_with: Callable[[], None] = lambda: None
        self.changed = threading.Condition()
        self._clock = JournalClock()

    async def lease(self, worker: WorkerRecord, ttl: float) -> LeaseSession:
        assert worker.owner == RECORD.owner
        self.records.append(worker)
        assert ttl == TTL
        self.open_with()
        self.opened += 1
        return Session(self)

    async def renewed(self) -> Renewal:
        if self.hang_renewal:
            await asyncio.Event().wait()
        self.renew_with(self.renewals)
        self.threads.add(threading.current_thread().name)
        with self.changed:
            self.renewals += 1
            self.changed.notify_all()
        now = self._clock.now() + int(self.ahead * MICROS)
        return Renewal(held=self.held, now=now, mail=MAIL)

    def block_until(self, renewals: int) -> None:
        """Block the calling thread, event loop and all, until so many renewals are done."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.renewals >= renewals, timeout=20)


class Session:
    """See `Store`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def renew(self, ttl: float) -> Renewal:
        assert ttl == TTL
        return await self._store.renewed()

    async def drain(self) -> None:
        self._store.drain_with()
        with self._store.changed:
            self._store.drained += 1
            self._store.changed.notify_all()

    async def retire(self) -> None:
        if self._store.hang_retirement:
            await asyncio.Event().wait()
        self._store.retired += 1

    async def close(self) -> None:
        self._store.closed += 1


class Watcher:
    """What the main loop is told."""

    def __init__(self) -> None:
        self.renewals: list[Renewal] = []
        self.losses = 0
        self.threads: set[str] = set()
        self.changed = asyncio.Event()

    def on_renewal(self, renewal: Renewal) -> None:
        self.threads.add(threading.current_thread().name)
        self.renewals.append(renewal)
        self.changed.set()

    def on_lost(self) -> None:
        self.threads.add(threading.current_thread().name)
        self.losses += 1
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


class Bench:
    """A keeper with everything around it."""

    def __init__(self, *, threaded: bool) -> None:
        self.store = Store()
        self.clock = JournalClock()
        self.metrics = Metrics()
        self.watcher = Watcher()
        self.keeper = LeaseKeeper(
            self.store,
            RECORD,
            TTL,
            clock=self.clock,
            metrics=self.metrics,
            threaded=threaded,
        )

    async def start(self) -> None:
        await self.keeper.start(self.watcher.on_renewal, self.watcher.on_lost)

    def count(self, outcome: str) -> float:
        return self.metrics.value("loom_lease_renewals_total", outcome=outcome) or 0.0


@pytest.fixture(params=[True, False], ids=["threaded", "on-the-main-loop"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    bench = Bench(threaded=request.param)
    yield bench
    await bench.keeper.retire()


async def test_it_renews_and_tells_the_main_loop(bench: Bench) -> None:
    await bench.start()
    assert bench.store.renewals >= 1, "start returns with the first renewal"
    await bench.watcher.until(lambda: len(bench.watcher.renewals) >= 3)
    assert bench.watcher.renewals[0].mail == MAIL
    assert bench.watcher.threads == {threading.main_thread().name}
    assert bench.keeper.check().ok
    assert 0 < bench.keeper.seconds_left <= TTL
    assert bench.store.opened == 1
    assert bench.count("renewed") >= 3


async def test_the_clock_follows_the_journals(bench: Bench) -> None:
    """F7, F9: a wrong wall clock on a host moves nothing; the offset is seen."""
    bench.store.ahead = 3600.0
    with capture_logs() as lines:
        await bench.start()
    expected = JournalClock().now() + 3600 * MICROS
    assert abs(bench.clock.now() - expected) < 0.2 * MICROS
    assert bench.metrics.value("loom_clock_offset_seconds") == pytest.approx(-3600, abs=0.2)
    assert [line["event"] for line in lines] == ["clock.corrected"]


async def test_a_blocked_main_loop_loses_no_lease() -> None:
    """C05: user code blocks the loop for four lease times."""
    bench = Bench(threaded=True)
    await bench.start()
    bench.store.block_until(12)
    assert bench.keeper.check().ok
    assert bench.store.threads == {"loom-lease"}
    await bench.watcher.until(lambda: len(bench.watcher.renewals) >= 12)
    assert bench.watcher.losses == 0
    await bench.keeper.retire()


async def test_errors_are_survived_and_told_once(bench: Bench) -> None:
    """The session stays: letting go of it would look like this process's death."""

    def fail(count: int) -> None:
        if count == 1 and bench.count("failed") < 2:
            raise JournalUnreachableError("the database is gone")

    bench.store.renew_with = fail
    with capture_logs() as lines:
        await bench.start()
        await bench.watcher.until(lambda: len(bench.watcher.renewals) >= 3)
    assert bench.count("failed") == 2
    assert (bench.store.opened, bench.store.closed) == (1, 0)
    assert [line["event"] for line in lines if line["log_level"] == "warning"] == ["lease.late"]
    assert bench.keeper.check().ok


async def test_a_renewal_that_hangs_is_given_up(bench: Bench) -> None:
    """C60, C61: a frozen journal does not freeze the keeper."""
    await bench.start()
    bench.store.hang_renewal = True
    await bench.watcher.until(lambda: bench.watcher.losses == 1)
    check = bench.keeper.check()
    assert not check.ok
    assert "did not answer the renewal in time" in check.detail
    bench.store.hang_renewal = False
    before = len(bench.watcher.renewals)
    await bench.watcher.until(lambda: len(bench.watcher.renewals) > before)
    assert bench.keeper.check().ok
    assert bench.watcher.losses == 1, "one loss is told once"
    assert bench.store.opened >= 2, "a lapsed lease is taken anew"


async def test_a_lease_that_was_taken_away_is_told_and_taken_again(bench: Bench) -> None:
    """F7: what nobody has taken goes on under the same name."""
    await bench.start()
    bench.store.held = False
    await bench.watcher.until(lambda: bench.watcher.losses == 1)
    assert bench.keeper.seconds_left == 0
    bench.store.held = True
    before = len(bench.watcher.renewals)
    await bench.watcher.until(lambda: len(bench.watcher.renewals) > before)
    assert bench.keeper.check().ok
    assert all(renewal.held for renewal in bench.watcher.renewals)
    assert bench.count("lost") >= 1
    assert bench.store.opened >= 2


async def test_a_drain_is_shown_at_once_and_survives_a_lost_lease(bench: Bench) -> None:
    """F7, F11: whoever looks sees that it takes nothing new, after a loss of the lease, too."""
    fails = [JournalUnreachableError("the database is gone")]

    def once() -> None:
        if fails:
            raise fails.pop()

    bench.store.drain_with = once
    await bench.start()
    bench.keeper.drain()
    await bench.watcher.until(lambda: bench.store.drained == 1)
    assert not fails
    before = len(bench.watcher.renewals)
    await bench.watcher.until(lambda: len(bench.watcher.renewals) > before + 1)
    assert bench.store.drained == 1, "told again after the failure, and then no more"
    losses, opened = bench.watcher.losses, bench.store.opened
    bench.store.held = False
    await bench.watcher.until(lambda: bench.watcher.losses > losses)
    bench.store.held = True
    await bench.watcher.until(lambda: bench.store.opened > opened)
    assert [record.draining for record in (bench.store.records[0], bench.store.records[-1])] == [
        *(False, True)
    ]


async def test_retiring_ends_the_lease_and_its_connection(bench: Bench) -> None:
    await bench.start()
    await bench.keeper.retire()
    assert bench.store.retired == 1
    assert bench.store.closed == 1
    renewals = bench.store.renewals
    await bench.keeper.retire()
    assert (bench.store.retired, bench.store.renewals) == (1, renewals)
    assert bench.keeper.seconds_left == 0


async def test_retiring_is_bounded(bench: Bench) -> None:
    """C60: the database is frozen at the very end."""
    bench.store.hang_retirement = True
    await bench.start()
    async with asyncio.timeout(4):
        await bench.keeper.retire()
    assert bench.store.retired == 0
    assert bench.store.closed == 1


async def test_retiring_what_never_started_does_nothing(bench: Bench) -> None:
    await bench.keeper.retire()
    assert not bench.keeper.started


async def test_a_refused_start_is_raised(bench: Bench) -> None:
    def refuse() -> None:
        raise JournalUnreachableError("no such table")

    bench.store.open_with = refuse
    with pytest.raises(JournalUnreachableError, match="no such table"):
        await bench.start()
    with pytest.raises(RuntimeError, match="once"):
        await bench.start()


async def test_over_sqlite_a_blocked_loop_loses_no_lease(tmp_path: Path) -> None:
    """C05 on a real store: the main loop stands still for three lease times."""
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        watcher = Watcher()
        keeper = LeaseKeeper(journal, RECORD, TTL, clock=JournalClock(), metrics=Metrics())
        await keeper.start(watcher.on_renewal, watcher.on_lost)
        time.sleep(3 * TTL)  # noqa: ASYNC251  # the fault of this case
        assert keeper.check().ok
        assert [worker.owner for worker in await journal.workers()] == [RECORD.owner]
        assert watcher.losses == 0
        await keeper.retire()
        assert await journal.workers() == []
        assert await journal.lapse_if_gone(RECORD.owner)


async def test_over_sqlite_a_lapsed_lease_is_lost_and_taken_again(tmp_path: Path) -> None:
    """F7: what a process finds that was stopped for longer than its lease."""
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        watcher = Watcher()
        keeper = LeaseKeeper(
            journal, RECORD, TTL, clock=JournalClock(), metrics=Metrics(), threaded=False
        )
        await keeper.start(watcher.on_renewal, watcher.on_lost)
        time.sleep(2 * TTL)  # noqa: ASYNC251  # as if stopped: here the lease lives on this loop
        assert await journal.workers() == []
        await watcher.until(lambda: watcher.losses == 1)
        before = len(watcher.renewals)
        await watcher.until(lambda: len(watcher.renewals) > before)
        assert [worker.owner for worker in await journal.workers()] == [RECORD.owner]
        await keeper.retire()
