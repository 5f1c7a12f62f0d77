"""What happens to a fleet: each run draws its own faults and how often they come."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from loom_mq.broker import topology
from loom_mq.engine.sweep import SweepOptions
from loom_mq.engine.timers import TimerOptions
from tests.simulation.rig import broker, journal
from tests.simulation.rig.broker import BrokerFaults
from tests.simulation.rig.choices import Choices
from tests.simulation.rig.journal import JournalFaults
from tests.simulation.rig.nodes import Shape, SimFleet

QUEUES: Final = (
    topology.START.name,
    topology.CONTROL.name,
    topology.work("default").name,
    topology.PRESENCE.name,
)


class Weather(msgspec.Struct, frozen=True, kw_only=True):
    """The faults of one run; counts are expected per virtual minute.

    Attributes:
        disorder: how often a process goes next that did not wait longest.
        lasts: virtual seconds until it is calm, at most.
    """

    disorder: float = 0.0
    lasts: float = 60.0
    journal: JournalFaults = JournalFaults()
    broker: BrokerFaults = BrokerFaults()
    kills: float = 0.0
    massacres: float = 0.0
    pauses: float = 0.0
    blocks: float = 0.0
    drains: float = 0.0
    drops: float = 0.0
    journal_outages: float = 0.0
    broker_restarts: float = 0.0
    broker_blocks: float = 0.0
    purges: float = 0.0
    deletions: float = 0.0
    fences: float = 0.0

    @property
    def harmless(self) -> bool:
        """Whether nothing is killed and nothing is lost."""
        return msgspec.structs.replace(
            self, disorder=0.0, lasts=60.0, drains=0.0,
            journal=JournalFaults(latency=self.journal.latency),
            broker=BrokerFaults(latency=self.broker.latency, doubled=self.broker.doubled),
        ) == Weather(
            journal=JournalFaults(latency=self.journal.latency),
            broker=BrokerFaults(latency=self.broker.latency, doubled=self.broker.doubled),
        )  # fmt: skip


def draw_shape(choices: Choices) -> Shape:
    """A fleet of some size, with some options."""

    def one_of(kind: str, *values: float) -> float:
        return values[choices.pick(kind, len(values))]

    return Shape(
        dispatchers=1 + choices.pick("dispatchers", 2),
        workers=2 + choices.pick("workers", 2),
        timers=1 + choices.pick("timers", 2),
        slots=int(one_of("slots", 200, 200, 5)),
        lease=one_of("lease", 5.0, 5.0, 1.5),
        timer=TimerOptions(poll=one_of("poll", 0.25, 1.0)),
        sweep=SweepOptions(max_recoveries=int(one_of("recoveries", 50, 50, 10))),
        park_drain=one_of("park-drain", 30.0, 0.02, 0.002),
        backoff_park=one_of("backoff-park", 5.0, 0.02, 0.5),
        snapshot_every=int(one_of("snapshots", 500, 10, 3)),
        skew=one_of("skew", 0.0, 0.0, 0.0, 0.0, 3600.0),
    )


def draw_weather(choices: Choices) -> Weather:
    """Each fault is on in some of the runs; none of them in the first draw of each."""

    def rate(kind: str, share: float, most: float) -> float:
        if not choices.chance(kind, share):
            return 0.0
        return most * (1 + choices.pick(kind, 10)) / 10

    fair = not choices.chance("foul", 0.9)
    if fair:
        return Weather(disorder=0.1 * choices.pick("disorder", 3), drains=rate("drains", 0.5, 15.0))
    latency = rate("latency", 0.6, 0.05)
    return Weather(
        disorder=rate("disorder", 0.6, 0.3),
        lasts=5.0 + 5.0 * choices.pick("lasts", 6),
        journal=JournalFaults(
            latency=latency,
            refused=rate("refused", 0.3, 0.05),
            unknown=rate("unknown", 0.5, 0.1),
            late=rate("late", 0.5, 0.5),
            late_by=rate("late-by", 1.0, 3.0),
        ),
        broker=BrokerFaults(
            latency=latency,
            lost=rate("lost", 0.4, 0.1),
            unconfirmed=rate("unconfirmed", 0.4, 0.1),
            doubled=rate("doubled", 0.4, 0.2),
            held_up=rate("held-up", 0.4, 0.2),
            held_up_by=rate("held-up-by", 1.0, 20.0),
        ),
        kills=rate("kills", 0.7, 60.0),
        massacres=rate("massacres", 0.1, 4.0),
        pauses=rate("pauses", 0.4, 20.0),
        blocks=rate("blocks", 0.3, 20.0),
        drains=rate("drains", 0.3, 15.0),
        drops=rate("drops", 0.3, 15.0),
        journal_outages=rate("outages", 0.2, 6.0),
        broker_restarts=rate("broker-restarts", 0.2, 6.0),
        broker_blocks=rate("broker-blocks", 0.1, 6.0),
        purges=rate("purges", 0.15, 8.0),
        deletions=rate("deletions", 0.1, 6.0),
        fences=rate("fences", 0.1, 20.0),
    )


class Chaos:
    """Makes the weather of a run.

    Args:
        fleet: what it happens to.
        weather: what happens, how often.
        choices: when, and to whom.
    """

    def __init__(self, fleet: SimFleet, weather: Weather, choices: Choices) -> None:
        self._fleet = fleet
        self._weather = weather
        self._choices = choices

    async def run(self) -> None:
        """Until cancelled."""
        fleet, weather = self._fleet, self._weather
        if weather.journal != journal.CALM:
            fleet.server.faults = weather.journal
        fleet.network.faults = weather.broker
        kinds = [
            (weather.kills, self._kill),
            (weather.massacres, self._massacre),
            (weather.pauses, self._pause),
            (weather.blocks, self._block),
            (weather.drains, self._drain),
            (weather.drops, self._drop),
            (weather.journal_outages, self._journal_outage),
            (weather.broker_restarts, self._broker_restart),
            (weather.broker_blocks, self._broker_block),
            (weather.purges, self._purge),
            (weather.deletions, self._delete),
            (weather.fences, self._take_fence),
        ]
        happening = [(rate, do) for rate, do in kinds if rate > 0]
        total = sum(rate for rate, _ in happening)
        if not total:
            return
        while True:
            await asyncio.sleep(0.001 + self._choices.delay("next", 3 * 60.0 / total))
            at = self._choices.pick("which", 10_000) / 10_000 * total
            for rate, do in happening:
                at -= rate
                if at < 0:
                    do()
                    break

    def end(self) -> None:
        """Fair weather from now on."""
        fleet = self._fleet
        fleet.server.faults = journal.CALM
        fleet.network.faults = broker.CALM
        fleet.server.up = True
        fleet.hub.blocked = False
        if not fleet.hub.running:
            fleet.hub.start()
        fleet.settle()

    def _node(self) -> int:
        return self._choices.pick("node", len(self._fleet.nodes))

    def _kill(self) -> None:
        self._fleet.kill(self._fleet.nodes[self._node()])

    def _massacre(self) -> None:
        for node in self._fleet.nodes:
            self._fleet.kill(node)

    def _pause(self) -> None:
        seconds = self._choices.delay("pause", 5 * self._fleet.shape.lease)
        self._fleet.pause(self._fleet.nodes[self._node()], 0.01 + seconds)

    def _block(self) -> None:
        seconds = self._choices.delay("block", 4 * self._fleet.shape.lease)
        self._fleet.block(self._fleet.nodes[self._node()], 0.01 + seconds)

    def _drain(self) -> None:
        timeout = (
            30.0 if self._weather.harmless else (30.0, 0.0, 0.1)[self._choices.pick("drain", 3)]
        )
        self._fleet.drain(self._fleet.nodes[self._node()], timeout)

    def _drop(self) -> None:
        self._fleet.lose_connection(self._fleet.nodes[self._node()])

    def _journal_outage(self) -> None:
        fleet = self._fleet
        fleet.network.tell("journal-down", "journal")
        fleet.server.up = False
        fleet.network.later(0.1 + self._choices.delay("outage", 8.0), self._journal_back)

    def _journal_back(self) -> None:
        self._fleet.server.up = True

    def _broker_restart(self) -> None:
        fleet = self._fleet
        if not fleet.hub.running:
            return
        fleet.network.tell("broker-restart", "broker")
        fleet.hub.stop()
        fleet.network.later(0.1 + self._choices.delay("restart", 10.0), self._broker_back)

    def _broker_back(self) -> None:
        if not self._fleet.hub.running:
            self._fleet.hub.start()

    def _broker_block(self) -> None:
        fleet = self._fleet
        fleet.network.tell("blocked-connection", "broker")
        fleet.hub.blocked = True
        fleet.network.later(0.1 + self._choices.delay("alarm", 10.0), self._broker_unblock)

    def _broker_unblock(self) -> None:
        self._fleet.hub.blocked = False

    def _queue(self) -> str:
        return QUEUES[self._choices.pick("queue", len(QUEUES))]

    def _purge(self) -> None:
        name = self._queue()
        self._fleet.network.tell("purged", name)
        self._fleet.network.purge(name)

    def _delete(self) -> None:
        name = self._queue()
        self._fleet.network.tell("queue-deleted", name)
        self._fleet.hub.delete_queue(name)

    def _take_fence(self) -> None:
        """As when an operator takes an execution away from whoever has it."""
        fleet = self._fleet
        open_ones = [
            key
            for key, entry in fleet.store._store.entries.items()
            if not entry.row.status.terminal
        ]
        if not open_ones:
            return
        key = open_ones[self._choices.pick("fence", len(open_ones))]
        if fleet.server.at_once("operator", "acquire_fence", key, None):
            fleet.network.tell("fence taken by hand", "operator")
