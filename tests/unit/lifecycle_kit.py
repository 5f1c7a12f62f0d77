"""Logs for the tests of what is done with executions afterwards."""

from __future__ import annotations

import random

import msgspec

import loom_mq as loom
from loom_mq.codec.values import codec_for
from loom_mq.ids import RandomIds
from loom_mq.journal.memory import MemoryJournal
from loom_mq.kernel.fold import fold
from loom_mq.lifecycle.archive import ArchivedExecution
from loom_mq.lifecycle.planting import planted
from loom_mq.model import events as ev
from loom_mq.model.events import EVENT_SCHEMA, Envelope, Wait, WaitKind, kind_of_type
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey, ExecutionRow, Status
from loom_mq.model.failures import CauseLine, Failure
from loom_mq.model.verdicts import VerdictKind
from tests.support.house import House, until

SECRET = "Ada Lovelace"
"""Stands in every payload of `full_log`, whatever its kind."""

_pack = msgspec.msgpack.encode
_ids = RandomIds()


class Clock:
    """Time that stands where it is put."""

    def __init__(self, now: int = 10_000_000) -> None:
        self.time = now

    def now(self) -> int:
        return self.time

    def monotonic(self) -> float:
        return self.time / 1e6


def key_of(execution_id: str, tenant: str = DEFAULT_TENANT) -> ExecutionKey:
    return ExecutionKey(tenant, execution_id)


def stored(value: object) -> bytes:
    return codec_for(object).encode(value, what="test")


def log_of(*payloads: msgspec.Struct, begin: int = 1_000_000, pace: int = 1000) -> list[Envelope]:
    """A log of these events, the first at `begin`, `pace` microseconds apart."""
    return [
        Envelope(
            _ids.envelope(),
            seq,
            kind_of_type[type(payload)].value,
            begin + seq * pace,
            1 + seq // 5,
            True,
            EVENT_SCHEMA,
            _pack(payload),
        )
        for seq, payload in enumerate(payloads)
    ]


def started(flow: str = "order", labels: dict[str, str] | None = None) -> ev.ExecutionStarted:
    return ev.ExecutionStarted(flow, "1", stored({"name": SECRET}), labels=labels or {})


def failure(kind: str = "ValueError") -> Failure:
    return Failure(
        kind,
        "builtins",
        f"no such customer: {SECRET}\nnor anybody else",
        traceback=f"  raise ValueError({SECRET!r})",
        causes=(CauseLine("OSError", f"{SECRET}.txt"),),
        channel="declined",
        payload=stored(SECRET),
    )


def full_log(end: msgspec.Struct | None = None, subject: str = SECRET) -> list[Envelope]:
    """One event of every kind, three ways to end at choice, data of `SECRET` all over."""
    gate = Wait("#5", WaitKind.GATE, "approve", 1_050_000, "bool")
    return log_of(
        started(labels={"subject": subject, "mail": f"{SECRET}@example.org"}),
        ev.DecisionRecorded("#0", "now", stored(SECRET)),
        ev.StepStarted("#1", "charge", 1, 77),
        ev.StepRetrying("#1", failure("OSError"), 1, 1_004_500),
        ev.ExecutionRecovered("worker/host/1/ab", 2),
        ev.StepStarted("#1", "charge", 2, 77),
        ev.StepCompleted("#1", stored(SECRET), 1),
        ev.CustomEmitted("#2", "progress", stored(SECRET)),
        ev.StepStarted("#3", "ship", 1, 78),
        ev.StepFailed("#3", failure(), ev.UNTOLD),
        ev.StepTold("#3", 2),
        ev.StepStarted("#4", "notify", 1),
        ev.EffectInDoubt("#4", "notify", 1),
        ev.ExecutionSuspended((Wait("#4?1", WaitKind.VERDICT, "notify"),)),
        ev.ExecutionResumed(),
        ev.VerdictTaken("#4", VerdictKind.RUN_AGAIN, f"asked {SECRET}", "v1", SECRET),
        ev.StepStarted("#4", "notify", 2),
        ev.StepCancelled("#4"),
        ev.ExecutionSuspended((gate,)),
        ev.ExecutionResumed(("#5",), 3),
        ev.AnswerTaken("#6", "approve", stored(SECRET), "a1", 4, SECRET),
        ev.CancelRequested(f"{SECRET} wants it", SECRET),
        *([ev.ExecutionCompleted(stored(SECRET))] if end is None else [end]),
    )


PARKED = 19
"""So many events of `full_log` end in a park at a gate."""

ENDS = (
    ev.ExecutionCompleted(stored(SECRET)),
    ev.ExecutionFailed(failure()),
    ev.ExecutionCancelled(f"{SECRET} wants it"),
)


def execution(
    execution_id: str,
    events: list[Envelope],
    *,
    created_at: int | None = None,
    tenant: str = DEFAULT_TENANT,
) -> ArchivedExecution:
    """An execution with this log, its row derived from it."""
    state = fold(events)
    row = ExecutionRow(
        tenant=tenant,
        execution_id=execution_id,
        flow=state.flow,
        version=state.version,
        queue="default",
        status=Status.PENDING,
        last_seq=-1,
        wake_at=None,
        gates=(),
        error=None,
        recoveries=0,
        parent=state.parent,
        features=state.features,
        labels=state.labels,
        created_at=events[0].at if created_at is None else created_at,
        updated_at=0,
        started_at=None,
        ended_at=None,
        fence=max(event.fence for event in events),
        owner=None,
        attempt=2,
        deadline=None,
        hint_at=None,
        hints=0,
        inbox=0,
        input_digest=b"\x00digest\xff",
    )
    planting = planted(row, state, events[-1].at, events=tuple(events))
    return ArchivedExecution(row=planting.row, events=planting.events)


async def shelf(*executions: ArchivedExecution, clock: Clock | None = None) -> MemoryJournal:
    """A journal that holds these."""
    journal = MemoryJournal(clock or Clock())
    plantings = [planted(each.row, fold(each.events), 0, events=each.events) for each in executions]
    assert await journal.plant(plantings) == [None] * len(plantings)
    return journal


async def dump(journal: MemoryJournal, key: ExecutionKey) -> tuple[object, ...]:
    """All that the journal's public face tells of an execution."""
    [row], events = await journal.get([key]), await journal.read(key)
    return (row, events, await journal.snapshot(key), await journal.inbox([key]))


def random_log(seed: int) -> list[Envelope]:
    """A lawful log of any shape: steps, waits, answers, parks, an end or none."""
    chance = random.Random(seed)
    payloads: list[msgspec.Struct] = [started(labels={"subject": f"s{seed % 3}"})]
    for place in range(chance.randrange(1, 12)):
        payloads += _piece(chance, f"#{place}")
    if chance.random() < 0.7:
        payloads.append(chance.choice(ENDS))
    return log_of(*payloads, pace=chance.randrange(1, 10**6))


def _piece(chance: random.Random, place: str) -> list[msgspec.Struct]:
    value = stored([chance.randrange(1000), "\x00é\u2028", {"a": chance.random()}, b"\xff"])
    name = chance.choice(["charge", "ship", 'odd "name"\n'])
    began = ev.StepStarted(place, name, 1, chance.randrange(2**60))
    gate = Wait(place, WaitKind.GATE, name, chance.choice([None, 5_000_000]), "bool")
    return chance.choice(
        [
            [began, ev.StepCompleted(place, value)],
            [began, ev.StepFailed(place, failure(name))],
            [began],
            [
                began,
                ev.StepRetrying(place, failure(), 1, 5),
                ev.StepStarted(place, name, 2),
                ev.StepCompleted(place, value),
            ],
            [ev.DecisionRecorded(place, name, value)],
            [ev.CustomEmitted(place, name, value)],
            [
                ev.ExecutionSuspended((gate,)),
                ev.ExecutionResumed(),
                ev.AnswerTaken(place, name, value, f"a{place}"),
            ],
            [ev.ExecutionSuspended((gate,)), ev.ExecutionResumed((place,))],
            [ev.ExecutionRecovered("worker/b", 2)],
        ]
    )


# ---- real ones -------------------------------------------------------------------------------

effects: list[str] = []


@loom.step
async def reserve(name: str) -> str:
    effects.append(f"reserve {name}")
    return f"seat of {name}"


@loom.step(retry=loom.Retry(attempts=3, initial=0.001))
async def charge(name: str) -> int:
    effects.append(f"charge {name}")
    if loom.current_step().attempt == 1:
        raise OSError(f"no line to the bank of {name}")
    return 50


@loom.step(retry=loom.NO_RETRY)
async def print_ticket(name: str) -> None:
    effects.append(f"print {name}")
    raise ValueError(f"no paper for {name}")


@loom.flow
async def booking(ctx: loom.Context, name: str) -> str:
    """Reserves, charges with a retry, catches a failure, asks at a gate."""
    seat = await ctx.run(reserve, name)
    await ctx.emit("seat", seat)
    paid = await ctx.run(charge, name)
    try:
        await ctx.run(print_ticket, name)
    except ValueError:
        seat += " without a ticket"
    if await ctx.suspend(on="board", type=bool):
        return f"{seat} for {paid}"
    raise LookupError(f"{name} stayed at home")


async def book(house: House, execution_id: str, *, answer: bool | None = True) -> None:
    """Run a booking to its gate, and on to its end with an answer."""
    handle = await house.client.start(
        booking, SECRET, id=execution_id, labels={"subject": SECRET, "kind": "seat"}
    )
    await until(lambda: waits_at_gate(house, execution_id))
    if answer is not None:
        await handle.resume("board", answer)
        await until(lambda: has_ended(house, execution_id))


async def waits_at_gate(house: House, execution_id: str) -> bool:
    return (await house.row(execution_id)).gates == ("board",)


async def has_ended(house: House, execution_id: str) -> bool:
    return (await house.row(execution_id)).status.terminal
