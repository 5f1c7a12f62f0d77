"""Flows for clients that know nothing of loom-mq; see `tests/fleet/test_bare_client.py`."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

import loom_mq as loom


@dataclass(frozen=True)
class Basket:
    """What a foreign client sends."""

    owner: str
    prices: tuple[Decimal, ...]


@dataclass(frozen=True)
class Bill:
    """What it gets."""

    owner: str
    total: Decimal
    approved: bool


@loom.step
async def add_up(prices: tuple[Decimal, ...]) -> Decimal:
    return sum(prices, Decimal(0))


@loom.flow(name="bill")
async def bill(ctx: loom.Context, basket: Basket) -> Bill:
    return Bill(basket.owner, await ctx.run(add_up, basket.prices), approved=False)


@loom.flow(name="bill-by-hand")
async def bill_by_hand(ctx: loom.Context, basket: Basket) -> Bill:
    total = await ctx.run(add_up, basket.prices)
    return Bill(basket.owner, total, await ctx.suspend(on="Approval", type=bool))


@loom.flow(name="untyped")
async def untyped(ctx: loom.Context) -> object:
    return await ctx.run(make_pair)


@loom.step
async def make_pair() -> object:
    return ("a", 1)
