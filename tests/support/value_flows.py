"""Flows that return what they are given, through steps, so that values meet every codec."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

import loom_mq as loom


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Point(NamedTuple):
    x: int
    y: int


class Box(msgspec.Struct):
    size: int
    tags: set[str]


@dataclasses.dataclass
class Everything:
    """One of each, declared."""

    colour: Colour = Colour.RED
    level: Level = Level.HIGH
    point: Point = dataclasses.field(default_factory=lambda: Point(1, 2))
    box: Box = dataclasses.field(default_factory=lambda: Box(1, {"a"}))
    pair: tuple[int, str] = (1, "x")
    numbers: frozenset[int] = frozenset({1, 2})
    price: Decimal = Decimal("1.10")
    name: UUID = dataclasses.field(default_factory=lambda: UUID(int=7))
    day: dt.date = dt.date(2026, 1, 2)
    clock: dt.time = dt.time(1, 2, 3)
    naive: dt.datetime = dt.datetime(2026, 1, 2, 3, 4, 5)
    aware: dt.datetime = dt.datetime(2026, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    span: dt.timedelta = dt.timedelta(days=1, microseconds=3)
    raw: bytes = b"\x00\xff"
    huge: int = 10**40
    nothing: None = None


UNTYPED: dict[str, object] = {
    "tuple": (1, (2, "x")),
    "set": {1, 2, 3},
    "frozenset": frozenset({"a"}),
    "decimal": Decimal("1.10"),
    "uuid": UUID(int=7),
    "date": dt.date(2026, 1, 2),
    "time": dt.time(1, 2, 3),
    "naive": dt.datetime(2026, 1, 2, 3, 4, 5),
    "aware": dt.datetime(2026, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=-5))),
    "timedelta": dt.timedelta(seconds=-1),
    "bytes": b"\x00\xff",
    "bytearray": bytearray(b"xy"),
    "true": True,
    "none": None,
    "minus zero": -0.0,
    "infinity": float("inf"),
    "2**63": 2**63,
    "2**64": 2**64,
    "-2**63-1": -(2**63) - 1,
    "10**40": 10**40,
    "big keys": {2**70: "x", (1, 2): "y"},
    "nul": "a\x00b",
    "nul key": {"k\x00": 1},
    "deep": [[[[{"a": [(1,)]}]]]],
}


def _circle() -> list[object]:
    circle: list[object] = []
    circle.append(circle)
    return circle


def _deep(levels: int) -> list[object]:
    deep: list[object] = []
    for _ in range(levels):
        deep = [deep]
    return deep


UNFIT: dict[str, Callable[[], object]] = {
    "lone surrogate": lambda: "\ud800",
    "complex": lambda: 1j,
    "lock": object,
    "generator": lambda: (n for n in [1]),
    "enum without its type": lambda: Colour.RED,
    "str subclass": lambda: type("Text", (str,), {})("x"),
    "contains itself": _circle,
    "far too deep": lambda: _deep(5000),
}


ran: list[str] = []


@loom.step(retry=loom.Retry(attempts=5, initial=0.001))
async def untyped(name: str) -> Any:
    return UNTYPED[name]


@loom.step
async def typed() -> Everything:
    return Everything()


@loom.step(retry=loom.Retry(attempts=5, initial=0.001))
async def unfit(name: str) -> Any:
    ran.append(name)
    return UNFIT[name]()


@loom.step(retry=loom.NO_RETRY)
async def raising(text: str) -> None:
    raise ValueError(text + "\ud83d")


@loom.step(retry=loom.NO_RETRY)
async def large(size: int) -> bytes:
    return bytes(size)


def described(value: object) -> str:
    """Type and value, for a comparison that no equality can blur."""
    return f"{type(value).__qualname__} {value!r}"


@loom.flow
async def twice_untyped(ctx: loom.Context, name: str) -> list[str]:
    """What the step gave at first, and what it gives on the re-run after a park."""
    first = described(await ctx.run(untyped, name))
    noted = await ctx.decide("first", lambda: first)
    await ctx.sleep(0.001)
    return [noted, first, described(UNTYPED[name])]


@loom.flow
async def twice_typed(ctx: loom.Context) -> list[str]:
    made = await ctx.run(typed)
    first = described(made)
    noted = await ctx.decide("first", lambda: first)
    await ctx.sleep(0.001)
    return [noted, first, described(Everything())]


@loom.flow
async def returns_unfit(ctx: loom.Context, name: str) -> None:
    await ctx.run(unfit, name)


@loom.flow
async def fails_with(ctx: loom.Context, text: str) -> None:
    await ctx.run(raising, text)


@loom.flow
async def too_large(ctx: loom.Context, size: int) -> None:
    await ctx.run(large, size)


@loom.flow
async def returns_input(ctx: loom.Context, value: Any) -> Any:
    return value


@loom.flow
async def answers(ctx: loom.Context) -> Any:
    return await ctx.suspend(on="Value", type=object)


@loom.flow
async def dozing(ctx: loom.Context) -> None:
    await ctx.sleep(3600)
