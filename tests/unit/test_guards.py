"""F7, F9: guards that no other test sees on its own, because another guard hides it."""

from __future__ import annotations

from collections.abc import Sequence

from loom_mq.broker.memory import MemoryBroker, MemoryConnection
from loom_mq.broker.protocol import Outgoing
from loom_mq.clock import JournalClock
from loom_mq.engine.timers import TimerOptions, TimerService
from loom_mq.errors import BrokerError, PublishTimeoutError
from loom_mq.ids import new_owner
from loom_mq.journal.memory import MemoryJournal
from loom_mq.observe.metrics import Metrics
from loom_mq.testing.conformance.journal_rig import Rig, Stores


class Unheard(MemoryConnection):
    """Nothing that it sends is confirmed."""

    async def publish(self, messages: Sequence[Outgoing]) -> list[BrokerError | None]:
        """Say that no confirm came."""
        return [PublishTimeoutError("no confirm came") for _ in messages]


async def test_f9_a_wake_that_is_not_confirmed_keeps_its_timer() -> None:
    """The row goes with the confirm: until then it is all that the wake has."""
    clock = JournalClock()
    async with MemoryJournal(clock) as journal:
        rig = Rig(Stores(journal, journal))
        key = await rig.parked(timers=(1,))
        for kind, left in ((Unheard, [(key, 1)]), (MemoryConnection, [])):
            async with kind(MemoryBroker(), "timer") as connection:
                service = TimerService(
                    journal,
                    connection,
                    options=TimerOptions(hold=0.0),
                    clock=clock,
                    metrics=Metrics(),
                )
                assert await service.once() == 1
                await service.stop()
            due = await journal.due_timers(limit=10, hold=0.0)
            assert [(each.row.key, each.due) for each in due] == left


def test_f7_a_process_is_a_stranger_to_the_one_before() -> None:
    """On the same host, under the same pid."""
    assert len({new_owner("worker", "host") for _ in range(100)}) == 100
