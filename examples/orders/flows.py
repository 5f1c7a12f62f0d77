"""Order fulfilment: charge, reserve and ship in parallel, a gate for large orders, a sleep.

Plain `async` functions. Whatever dies on the way, every step that is done stays done.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from decimal import Decimal

import loom_mq as loom
from examples.orders.ledger import record
from examples.orders.model import Invoice, Line, Order, Parcel, Receipt

LARGE = Decimal(1000)
"""From this total on a person must approve."""


class Declined(loom.TypedFailure[str], channel="declined"):
    """The bank said no; the payload says why."""


@loom.step(retry=loom.Retry(attempts=5, initial=0.2), failures=(Declined,))
async def charge(order: Order) -> Receipt:
    """Take the money. A real payment service would get the idempotency key."""
    if order.customer == "no-credit":
        raise Declined("the account is empty")
    await asyncio.sleep(0.01)
    record("charge")
    return Receipt(reference=f"pay-{order.id}", amount=order.total)


@loom.step
def reserve(line: Line) -> str:
    """Set goods aside; a plain function, so it runs in a thread."""
    record("reserve")
    return f"shelf-{line.sku}"


@loom.step(timeout=10)
async def ship(order_id: str, line: Line, shelf: str) -> Parcel:
    """Hand a line to the carrier."""
    await asyncio.sleep(0.02)
    record("ship")
    return Parcel(sku=line.sku, tracking=f"{order_id}/{shelf}")


@loom.step
async def refund(receipt: Receipt) -> None:
    """Give the money back."""
    record("refund")


@loom.flow
async def fulfil(ctx: loom.Context, order: Order) -> Invoice:
    """One order from payment to parcels."""
    try:
        receipt = await ctx.run(charge, order)
    except Declined:
        return Invoice(order.id, Decimal(0), (), approved_by_hand=False)
    shelves = await asyncio.gather(*(ctx.run(reserve, line) for line in order.lines))
    by_hand = order.total >= LARGE
    if by_hand and not await ctx.suspend(on="Approval", type=bool, timeout=timedelta(days=3)):
        await ctx.run(refund, receipt)
        return Invoice(order.id, Decimal(0), (), approved_by_hand=False)
    await ctx.sleep(timedelta(seconds=1))  # the customer may still change their mind
    parcels = await asyncio.gather(
        *(
            ctx.run(ship, order.id, line, shelf)
            for line, shelf in zip(order.lines, shelves, strict=True)
        )
    )
    return Invoice(order.id, receipt.amount, tuple(parcels), approved_by_hand=by_hand)
