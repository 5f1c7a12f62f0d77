"""Bursts of wakes go to the workers no faster than they take them (F9)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from loom_mq.broker import topology
from loom_mq.broker.memory import MemoryBroker, MemoryConnection
from loom_mq.broker.protocol import Delivery, QueueDepth
from loom_mq.clock import JournalClock
from loom_mq.codec import wire
from loom_mq.engine.outbox import PACKAGES_PER_MESSAGE
from loom_mq.engine.pacing import MESSAGES_PER_WORKER, REMEMBERED, SHARE, Pacer
from loom_mq.engine.timers import TimerOptions, TimerService
from loom_mq.journal.memory import MemoryJournal
from loom_mq.journal.protocol import Admission, DueTimer, ListQuery
from loom_mq.journal.transitions import admitted
from loom_mq.model.execution import ExecutionKey, Status
from loom_mq.model.messages import PackageMessage
from loom_mq.observe.metrics import Metrics
from loom_mq.testing.conformance.journal_rig import Rig, Stores
from tests.support.house import until

ONE = PACKAGES_PER_MESSAGE
KEEP = 4.0


def timers(number: int, queue: str = "q", first: int = 0) -> list[DueTimer]:
    """Due timers of parked executions."""
    rows = [
        admitted(
            Admission(
                key=ExecutionKey("t", f"{queue}-{n}"),
                flow="f",
                version="1",
                queue=queue,
                start=b"",
                input_digest=b"",
            ),
            0,
        )
        for n in range(first, first + number)
    ]
    return [DueTimer(row, n) for n, row in enumerate(rows, start=first)]


@pytest.fixture
def pacer() -> Pacer:
    return Pacer(10_000)


def test_a_few_go_without_a_look(pacer: Pacer) -> None:
    pacer.add(timers(ONE), KEEP)
    assert len(pacer.few()) == ONE
    assert (pacer.waiting, pacer.queues()) == (0, [])


def test_a_burst_fills_the_queue_as_far_as_its_workers_take_it(pacer: Pacer) -> None:
    """F9: in order, in whole messages, and the next ones only when those were taken."""
    wakes = timers(1000)
    pacer.add(wakes, KEEP)
    assert pacer.few() == []
    room = 2 * MESSAGES_PER_WORKER
    taken = pacer.take("q", QueueDepth(ready=0, consumers=2), 0.0)
    assert taken == wakes[: room * ONE]
    assert pacer.take("q", QueueDepth(ready=room, consumers=2), 0.1) == []
    assert pacer.few() == [], "the rest of a burst is no few"
    more = pacer.take("q", QueueDepth(ready=room - 1, consumers=2), 0.2)
    assert more == wakes[room * ONE : (room + 1) * ONE]


def test_a_queue_that_others_have_filled_takes_a_share(pacer: Pacer) -> None:
    """F9: wakes are not starved by starts: they get a part of what is in front of them."""
    pacer.add(timers(5000), KEEP)
    assert len(pacer.take("q", QueueDepth(ready=400, consumers=1), 0.0)) == 400 // SHARE * ONE
    assert pacer.take("q", QueueDepth(ready=400 + 400 // SHARE, consumers=1), 0.1) == []


def test_what_was_sent_long_ago_counts_no_more(pacer: Pacer) -> None:
    """F9: a queue whose workers do not move gets a little now and then, and never all."""
    pacer.add(timers(1000), KEEP)
    depth = QueueDepth(ready=0, consumers=1)
    assert len(pacer.take("q", depth, 0.0)) == MESSAGES_PER_WORKER * ONE
    stuck = QueueDepth(ready=MESSAGES_PER_WORKER, consumers=1)
    assert pacer.take("q", stuck, REMEMBERED - 0.1) == []
    assert len(pacer.take("q", stuck, REMEMBERED)) == MESSAGES_PER_WORKER * ONE


@pytest.mark.parametrize("depth", [None, QueueDepth(ready=5000, consumers=0)])
def test_a_queue_without_workers_or_unknown_is_no_ones_trouble(
    pacer: Pacer, depth: QueueDepth | None
) -> None:
    """F9: nobody is kept from other work, and the broker keeps them."""
    pacer.add(timers(1000), KEEP)
    assert len(pacer.take("q", depth, 0.0)) == 1000


def test_one_queue_does_not_keep_another_waiting(pacer: Pacer) -> None:
    full = QueueDepth(ready=MESSAGES_PER_WORKER, consumers=1)
    pacer.add(timers(1000, "herd") + timers(3, "other"), KEEP)
    assert [each.row.queue for each in pacer.few()] == ["other"] * 3
    pacer.take("herd", QueueDepth(ready=0, consumers=1), 0.0)
    assert pacer.take("herd", full, 0.1) == []
    pacer.add(timers(3, "other"), KEEP)
    assert [each.row.queue for each in pacer.few()] == ["other"] * 3


def test_what_waits_too_long_is_let_go_of(pacer: Pacer) -> None:
    """F9: before its hold is over, so that nothing is fired twice by this."""
    pacer.add(timers(600), KEEP)
    pacer.add(timers(400, first=600), KEEP + 1)
    pacer.let_go(KEEP - 0.01)
    assert pacer.waiting == 1000
    pacer.let_go(KEEP)
    assert (pacer.waiting, pacer.room) == (400, 9600)
    assert [each.due for each in pacer.take_all()] == list(range(600, 1000))
    assert pacer.waiting == 0


# ---- the service --------------------------------------------------------------------------------


class SlowWorker:
    """Takes one message at a time and keeps it until it is told to go on."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._held: list[Delivery] = []

    def __call__(self, delivery: Delivery) -> None:
        message = wire.decode(PackageMessage, delivery.body, delivery.content_type)
        self.seen += [each.execution_id for each in message.items]
        self._held.append(delivery)

    def go_on(self) -> None:
        for delivery in self._held:
            delivery.ack()
        self._held.clear()


@pytest.fixture
async def broker() -> AsyncIterator[MemoryConnection]:
    async with MemoryBroker().connection() as broker:
        yield broker


def service(journal: MemoryJournal, broker: MemoryConnection, clock: JournalClock) -> TimerService:
    options = TimerOptions(poll=0.01, hold=2.0)
    return TimerService(journal, broker, options=options, clock=clock, metrics=Metrics())


async def asleep(rig: Rig, number: int) -> Sequence[str]:
    """Executions whose time has come, by their due times."""
    return [(await rig.parked(timers=(5 + n,))).execution_id for n in range(number)]


async def test_f9_a_herd_waits_in_the_journal_and_other_work_does_not(
    broker: MemoryConnection,
) -> None:
    """F9: a queue holds no more of a herd than its worker is about to take; what is put there
    meanwhile is behind that and not behind the herd. All of them fire, once each.
    """
    clock, worker = JournalClock(), SlowWorker()
    queue = topology.work("default")
    async with MemoryJournal(clock) as journal:
        rig = Rig(Stores(journal, journal))
        names = await asleep(rig, 700)
        await broker.declare([topology.DEAD, queue])
        await broker.consume(queue, worker, prefetch=1)
        timers = service(journal, broker, clock)
        await timers.start()
        most = 0

        async def all_seen() -> bool:
            nonlocal most
            depth = await broker.depth(queue.name)
            assert depth is not None
            most = max(most, depth.ready)
            worker.go_on()
            return len(set(worker.seen)) >= len(names)

        await until(all_seen, within=30)
        assert most <= MESSAGES_PER_WORKER
        assert sorted(worker.seen) == sorted(names)

        async def all_gone() -> bool:
            return await journal.next_timer() is None

        await until(all_gone)
        await timers.drain(5)
        await timers.stop()


async def test_f9_what_waits_is_sent_when_the_service_drains(broker: MemoryConnection) -> None:
    """C06, F9: nobody has to wait for its holds."""
    clock, worker = JournalClock(), SlowWorker()
    queue = topology.work("default")
    async with MemoryJournal(clock) as journal:
        names = await asleep(Rig(Stores(journal, journal)), 400)
        await broker.declare([topology.DEAD, queue])
        await broker.consume(queue, worker, prefetch=1)
        timers = service(journal, broker, clock)
        await timers.start()

        async def begun() -> bool:
            return bool(worker.seen)

        await until(begun)
        await timers.drain(5)

        async def all_seen() -> bool:
            worker.go_on()
            return len(worker.seen) >= len(names)

        await until(all_seen)
        assert sorted(worker.seen) == sorted(names)
        await timers.stop()
        rows = await journal.find(ListQuery(limit=1000))
        assert {row.status for row in rows} == {Status.SUSPENDED}
