"""What is outside of the flow that plays random programs: its steps, and who watches them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

import loom_mq as loom
from tests.simulation.random_programs import FLAVOURS, Node


class Call(msgspec.Struct, frozen=True):
    """One beginning of an effect."""

    place: str
    attempt: int
    kind: str


class World:
    """What is outside of the flow, in one run of one program.

    Attributes:
        program: what the flow does.
        luck: how long steps take and whether they fail.
        calls: effects that began.
        began: called when an effect begins.
    """

    def __init__(self, program: Node, luck: random.Random) -> None:
        self.program = program
        self.luck = luck
        self.calls: list[Call] = []
        self.began: Callable[[Call], None] = lambda _call: None


class Present:
    """Where the flow and its steps find the world of the present run."""

    world: World


def _begin(kind: str) -> random.Random:
    world = Present.world
    info = loom.current_step()
    call = Call(info.idempotency_key.rpartition("/")[2], info.attempt, kind)
    world.calls.append(call)
    world.began(call)
    return world.luck


async def _dawdle(luck: random.Random) -> None:
    """Take some turns of the event loop, or some time."""
    match luck.randrange(4):
        case 0:
            await asyncio.sleep(luck.choice((0.001, 0.004, 0.02, 0.1)))
        case 1:
            await asyncio.sleep(0.001)
        case _:
            for _ in range(luck.randrange(6)):
                await asyncio.sleep(0)


# ---- steps -----------------------------------------------------------------------------


class Declined(loom.TypedFailure[int], channel="declined"):
    """A failure that is part of a contract."""


async def _work(value: int) -> int:
    await _dawdle(_begin("work"))
    return value + 1


def _plain(value: int) -> int:
    _begin("plain")
    return value + 2


async def _fails(value: int) -> int:
    await _dawdle(_begin("fails"))
    raise ValueError(f"no {value}")


async def _declines(value: int) -> int:
    await _dawdle(_begin("declines"))
    raise Declined(value)


async def _flaky(value: int) -> int:
    luck = _begin("flaky")
    await _dawdle(luck)
    if luck.random() < 0.5:
        raise ValueError(f"not yet {value}")
    return value + 3


async def _sluggish(value: int) -> int:
    luck = _begin("sluggish")
    await _dawdle(luck)
    if luck.random() < 0.5:
        raise ValueError(f"not now {value}")
    return value + 4


async def _once(value: int) -> int:
    luck = _begin("once")
    await _dawdle(luck)
    await _dawdle(luck)
    return value + 5


async def _once_fails(value: int) -> int:
    await _dawdle(_begin("once_fails"))
    raise ValueError(f"never {value}")


async def _stubborn(value: int) -> int:
    """Takes a cancellation for a hint."""
    luck = _begin("stubborn")
    try:
        await _dawdle(luck)
        await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        await _dawdle(luck)
    return value + 6


async def _sour(value: int) -> int:
    """Answers a cancellation with an error of its own."""
    luck = _begin("sour")
    try:
        await _dawdle(luck)
        await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        await _dawdle(luck)
        raise ValueError(f"sour {value}") from None
    return value + 7


async def _timed(value: int) -> int:
    luck = _begin("timed")
    await asyncio.sleep(luck.choice((0.0, 0.001, 0.05)))
    return value + 8


async def _undo(value: int) -> int:
    await _dawdle(_begin("undo"))
    return value


async def _undo_fails(value: int) -> int:
    await _dawdle(_begin("undo_fails"))
    raise ValueError(f"cannot undo {value}")


QUICKLY: Final = loom.Retry(attempts=3, initial=0.01, maximum=0.05)
SLOWLY: Final = loom.Retry(attempts=3, initial=2.0, maximum=4.0)
Steps = dict[str, tuple[loom.Step[[int], int], ...]]


def _flavours(
    kind: str,
    function: Callable[[int], Coroutine[Any, Any, int]],
    **options: Any,
) -> tuple[loom.Step[[int], int], ...]:
    return tuple(loom.step(name=f"{kind}{n}", **options)(function) for n in range(FLAVOURS))


STEPS: Final[Steps] = {
    "work": _flavours("work", _work),
    "plain": tuple(loom.step(name=f"plain{n}")(_plain) for n in range(FLAVOURS)),
    "fails": _flavours("fails", _fails, retry=loom.NO_RETRY),
    "declines": _flavours("declines", _declines, failures=[Declined]),
    "flaky": _flavours("flaky", _flaky, retry=QUICKLY),
    "sluggish": _flavours("sluggish", _sluggish, retry=SLOWLY),
    "once": _flavours("once", _once, idempotent=False),
    "once_fails": _flavours("once_fails", _once_fails, idempotent=False),
    "stubborn": _flavours("stubborn", _stubborn),
    "sour": _flavours("sour", _sour, retry=QUICKLY),
    "timed": _flavours("timed", _timed, retry=QUICKLY, timeout=0.02),
}
UNDO: Final = loom.step(name="undo", retry=loom.NO_RETRY)(_undo)
UNDO_FAILS: Final = loom.step(name="undo_fails", retry=loom.NO_RETRY)(_undo_fails)
