"""When a dispatcher sweeps (F7)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from loom_mq.broker.memory import MemoryBroker
from loom_mq.clock import JournalClock
from loom_mq.engine.admission import KnownFlows
from loom_mq.engine.outbox import Outbox
from loom_mq.engine.packages import PackageSender
from loom_mq.engine.sweep import Sweeper, SweepOptions
from loom_mq.journal.memory import MemoryJournal
from loom_mq.model.execution import ExecutionKey, ExecutionRow
from loom_mq.model.messages import Cause
from loom_mq.observe.metrics import Metrics
from loom_mq.testing.conformance.journal_rig import Rig, Stores


class Post(PackageSender):
    """Notes what went out."""

    def begin(self) -> None:
        self.sent: asyncio.Queue[tuple[ExecutionKey, Cause]] = asyncio.Queue()

    async def send(self, row: ExecutionRow, cause: Cause, start: bytes | None = None) -> bool:
        self.sent.put_nowait((row.key, cause))
        return True


@asynccontextmanager
async def sweeping(journal: MemoryJournal, clock: JournalClock) -> AsyncIterator[Post]:
    """A sweeper that by itself looks once an hour."""
    async with MemoryBroker().connection() as broker:
        post = Post(broker, Outbox(broker, Metrics()))
        post.begin()
        flows = KnownFlows(journal, clock)
        options = SweepOptions(interval=3600)
        task = asyncio.create_task(Sweeper(journal, broker, post, flows, options, clock).run())
        yield post
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_f7_a_sweep_comes_when_a_lease_has_run_out() -> None:
    """F7: work of a process that is cut off restarts within the lease, whatever the interval."""
    clock = JournalClock()
    async with MemoryJournal(clock) as journal:
        rig = Rig(Stores(journal, journal))
        await rig.alive("lives", ttl=3600)
        await rig.alive("cut-off", ttl=0.3)
        await rig.started("lives")
        key = await rig.started("cut-off")
        async with sweeping(journal, clock) as post, asyncio.timeout(10):
            assert await post.sent.get() == (key, Cause.RECOVER)
            assert post.sent.empty()
