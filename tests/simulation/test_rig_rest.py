"""The simulator sees what is left lying when all is at rest: L1, L2, L4 to L7, L10, S3, S13, H0."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import cast

import pytest

from loom_mq.broker import topology
from loom_mq.broker.memory import MemoryBroker, MemoryConnection
from loom_mq.broker.protocol import Outgoing
from loom_mq.engine.hands import Hands
from loom_mq.engine.worker import Worker
from loom_mq.journal.protocol import DeadLetter
from loom_mq.model import events as ev
from tests.simulation.rig.bench import KEY, RESULT, Bench, cancel, step
from tests.simulation.rig.choices import Tape
from tests.simulation.rig.effects import Present, World
from tests.simulation.rig.goals import ENOUGH, GOALS, missing
from tests.simulation.rig.jobs import Job, Node, Work
from tests.simulation.rig.loop import Process
from tests.simulation.rig.nodes import Node as Place
from tests.simulation.rig.nodes import Shape, SimFleet
from tests.simulation.rig.rest import check_replay, check_rest

DONE = ev.ExecutionCompleted(RESULT)


class Rest:
    """A bench, and a fleet around its journal that has nothing to do."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.hub = MemoryBroker()
        self.nodes: list[Place] = []
        self.shape = Shape()
        self.bench.start(DONE)

    def rules(self, *, harmless: bool = False) -> set[str]:
        """Rules that are broken at rest."""
        fleet = SimpleNamespace(
            store=self.bench.store, hub=self.hub, nodes=self.nodes, shape=self.shape
        )
        found = check_rest(cast("SimFleet", fleet), self.bench.eyes, harmless=harmless)
        return {each.rule for each in found} | self.bench.rules


@pytest.fixture
def rest() -> Rest:
    """All at rest."""
    return Rest()


def test_nothing_is_seen_where_all_is_at_rest(rest: Rest) -> None:
    """One execution, that has ended."""
    assert not rest.rules(harmless=True)


def test_what_has_not_ended_is_seen() -> None:
    """L1: somebody holds it."""
    rest = Rest()
    rest.bench = Bench()
    rest.bench.start()
    assert rest.rules() == {"L1"}


def test_what_an_end_leaves_is_seen(rest: Rest) -> None:
    """L2: a hint, where nobody is to be sent."""
    rest.bench.put(hint_at=1)
    assert rest.rules() == {"L2"}


def test_a_log_that_was_changed_is_seen(rest: Rest) -> None:
    """S3: long after it was written."""
    rest.bench.entry.events[0] = rest.bench.entry.events[1]
    assert rest.rules() == {"S3"}


async def test_what_is_in_a_queue_is_seen(rest: Rest) -> None:
    """L4: nothing waits any more."""
    rest.hub.declare(topology.START, MemoryConnection(rest.hub, "a"))
    assert not rest.rules()
    rest.hub.route(Outgoing(queue=topology.START.name, type="start", body=b"", content_type=""))
    assert rest.rules() == {"L4"}


def test_dead_letters_are_seen(rest: Rest) -> None:
    """L4: nobody sends what cannot be read."""
    letter = DeadLetter(id="1", queue="q", reason="malformed", body=b"")
    rest.bench.do("record_dead_letters", [letter])
    assert rest.rules() == {"L4"}


def test_a_late_cancel_is_seen(rest: Rest) -> None:
    """L5: a holder hears of it within a second, if nothing is lost."""
    for seconds, rules in ((0.9, set()), (1.1, {"L5"})):
        rest.bench = bench = Bench()
        bench.start()
        bench.deliver(cancel())
        bench.wait(seconds)
        asked = ev.CancelRequested("enough", "", 1)
        bench.write(asked, ev.ExecutionCancelled("enough"), consume=("cancel",))
        assert not rest.rules()
        assert rest.rules(harmless=True) == rules


def test_what_nobody_needed_is_seen(rest: Rest) -> None:
    """L6, L7: recoveries and effects that ran again, where nobody died."""
    rest.bench = bench = Bench()
    bench.start(ev.StepStarted("0", "work", 1))
    bench.ran()
    bench.wait(6.0)
    bench.do("take_abandoned", limit=9, resend_after=5.0, max_recoveries=9, by="dispatcher")
    bench.claim("b", 1)
    bench.ran(by="b", attempt=2)
    bench.write(ev.ExecutionRecovered("b", 2), DONE, by="b", fence=2)
    assert not rest.rules()
    assert rest.rules(harmless=True) == {"L6", "L7"}


def test_who_parks_without_patience_is_seen(rest: Rest) -> None:
    """L6: what was in flight begins again, where there was time enough to wait for it."""
    rest.bench = bench = Bench()
    bench.start(ev.StepStarted("0", "work", 1))
    bench.ran(outcome="CancelledError")
    bench.park(bench.sleep(place="1"))
    bench.wake()
    bench.ran()
    bench.write(ev.ExecutionResumed(("1",), 1), DONE, fence=2)
    assert rest.rules(harmless=True) == {"L6"}
    rest.shape = Shape(park_drain=0.02)
    assert not rest.rules(harmless=True)


async def test_who_is_busy_or_gone_is_seen(rest: Rest) -> None:
    """L10, H0: a worker with something in hand, and a place that nobody fills."""
    place = Place("worker", 0)
    rest.nodes = [place]
    assert rest.rules() == {"H0"}
    busy = Worker.__new__(Worker)  # of which nothing is asked but what it has in hand
    busy.owner, busy._hands = "a", Hands()
    await busy._hands.take(KEY, 0)
    place.part = busy
    place.process = cast("Process", SimpleNamespace(dead=False))
    assert rest.rules() == {"L10"}


@pytest.mark.parametrize(("name", "rules"), [("work", set()), ("plain", {"S13"})])
async def test_a_log_that_the_code_does_not_fit_is_seen(name: str, rules: set[str]) -> None:
    """S13: at some lengths that it had."""
    bench = Bench()
    job = Job(id=KEY.execution_id, tenant=KEY.tenant, program=Node(op="seq", id=0, kids=(step(),)))
    Present.world = World(Work((job,)), bench.eyes, Tape(None).stream("effects"), bench.clock.now)
    bench.start(ev.StepStarted("#0", name, 1))
    found = await check_replay(bench.eyes.shadow, Tape(1).stream("replay"), 3)
    assert {each.rule for each in found} == rules


def test_what_was_never_reached_is_told() -> None:
    """A rare thing that never happens is not tested."""
    reached = Counter(GOALS[1:])
    assert missing(reached, ENOUGH) == [GOALS[0]]
    assert not missing(reached, ENOUGH - 1)
