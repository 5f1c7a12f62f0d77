"""F9, F7: a service that cannot send leaves what is due to those that can."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from loom_mq.broker import topology
from loom_mq.broker.memory import MemoryBroker, MemoryConnection
from loom_mq.clock import JournalClock
from loom_mq.engine.admission import KnownFlows
from loom_mq.engine.outbox import Outbox
from loom_mq.engine.packages import PackageSender
from loom_mq.engine.sweep import Sweeper, SweepOptions
from loom_mq.engine.timers import TimerOptions, TimerService
from loom_mq.journal.memory import MemoryJournal
from loom_mq.model.execution import DEFAULT_QUEUE, FlowRecord
from loom_mq.observe.metrics import Metrics
from loom_mq.testing.conformance.journal_rig import Rig, Stores
from tests.support.house import until

HOUR = 3600.0


class Scene:
    """A parked execution whose timer is due, and a broker with two connections."""

    def __init__(self, clock: JournalClock, rig: Rig, hub: MemoryBroker) -> None:
        self.clock = clock
        self.rig = rig
        self.hub = hub
        self.metrics = Metrics()

    async def connection(self, *, cut_off: bool) -> MemoryConnection:
        """A connection that is there or, the broker says, not."""
        connection = await self.hub.connection().__aenter__()
        await connection.declare([topology.DEAD, topology.work(DEFAULT_QUEUE)])
        if cut_off:
            connection.lose()
        return connection

    async def depth(self) -> int:
        """Packages that wait."""
        watcher = await self.connection(cut_off=False)
        depth = await watcher.depth(topology.work(DEFAULT_QUEUE).name)
        watcher.kill()
        return 0 if depth is None else depth.ready


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    clock = JournalClock()
    async with MemoryJournal(clock) as journal:
        yield Scene(clock, Rig(Stores(journal, journal)), MemoryBroker())


async def test_f9_a_timer_is_left_to_a_service_that_can_wake(scene: Scene) -> None:
    """It was once taken again and again, and held, by one whose connection was gone."""
    await scene.rig.parked(timers=(1,))
    services = [
        TimerService(
            scene.rig.journal,
            await scene.connection(cut_off=cut_off),
            options=TimerOptions(poll=0.01, hold=HOUR),
            clock=scene.clock,
            metrics=scene.metrics,
        )
        for cut_off in (True, False)
    ]
    cut_off, well = services
    await cut_off.start()
    for _ in range(100):
        await asyncio.sleep(0)
    assert await scene.depth() == 0
    await well.start()

    async def woken() -> bool:
        return await scene.depth() == 1

    try:
        await until(woken)
    finally:
        for service in services:
            await service.stop()


async def test_f7_a_sweep_without_a_broker_puts_nothing_off(scene: Scene) -> None:
    """What is overdue stays overdue, for whoever can send it."""
    journal = scene.rig.journal
    await journal.register_flows([FlowRecord(flow="flow", version="1", queue=DEFAULT_QUEUE)])
    key = await scene.rig.admitted(resend_after=0.0)
    overdue = (await scene.rig.row(key)).hint_at

    async def sweeper(connection: MemoryConnection) -> Sweeper:
        packages = PackageSender(connection, Outbox(connection, scene.metrics))
        flows = KnownFlows(journal, scene.clock)
        await flows.refresh()
        options = SweepOptions(backlog_resend=0.0)
        return Sweeper(journal, connection, packages, flows, options, scene.clock)

    cut_off = await sweeper(await scene.connection(cut_off=True))
    assert await cut_off.once() == 0
    assert (await scene.rig.row(key)).hint_at == overdue
    assert await (await sweeper(await scene.connection(cut_off=False))).once() == 1
    assert await scene.depth() == 1
