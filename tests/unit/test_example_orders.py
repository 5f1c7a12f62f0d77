"""The example's flow, tested as a user would: a gate, its three days, and every crash."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from examples.orders.flows import LARGE, fulfil
from examples.orders.ledger import VARIABLE, calls
from examples.orders.model import Line, Order
from loom_mq import ExecutionFailedError
from loom_mq.testing import TestEnvironment, crash_everywhere

SMALL = Order("order-1", "ada", (Line("bolt", 10, Decimal("0.30")), Line("nut", 2, Decimal(1))))
LARGE_ONE = Order("order-2", "ada", (Line("crane", 1, LARGE),))
POOR = Order("order-3", "no-credit", SMALL.lines)


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the example's effects write that they happened."""
    path = tmp_path / "ledger.jsonl"
    monkeypatch.setenv(VARIABLE, str(path))
    return path


def forget(ledger: Path) -> Callable[[], None]:
    return lambda: ledger.unlink(missing_ok=True)


async def test_a_small_order_needs_nobody(ledger: Path) -> None:
    async with TestEnvironment([fulfil]) as env:
        invoice = await env.execute(fulfil, SMALL)
    assert invoice.paid == SMALL.total
    assert [parcel.sku for parcel in invoice.parcels] == ["bolt", "nut"]
    assert not invoice.approved_by_hand
    assert set(calls(ledger).values()) == {1}


@pytest.mark.parametrize("approved", [True, False])
async def test_a_large_order_waits_for_a_person(ledger: Path, approved: bool) -> None:
    async with TestEnvironment([fulfil]) as env:
        run = await env.start(fulfil, LARGE_ONE)
        await run.reach("Approval")
        await env.skip(timedelta(days=2, hours=23))
        await run.resume("Approval", approved)
        invoice = await run.result()
        steps = [each.name for each in await run.history() if each.kind == "STEP_COMPLETED"]
    assert invoice.paid == (LARGE_ONE.total if approved else 0)
    assert steps == ["charge", "reserve", "ship" if approved else "refund"]


async def test_after_three_days_nobody_waits_any_more() -> None:
    async with TestEnvironment([fulfil]) as env:
        before = env.now
        with pytest.raises(ExecutionFailedError, match="GateTimeoutError"):
            await env.execute(fulfil, LARGE_ONE)
        assert env.now - before >= timedelta(days=3)


@pytest.mark.parametrize(
    ("order", "answers"),
    [(SMALL, {}), (LARGE_ONE, {"Approval": True}), (LARGE_ONE, {"Approval": False}), (POOR, {})],
    ids=["small", "approved", "refused", "declined"],
)
async def test_wherever_a_worker_dies_the_order_ends_the_same(
    ledger: Path, order: Order, answers: dict[str, object]
) -> None:
    """Same invoice, same steps, and each of its effects seen by the outside world."""
    crashes = await crash_everywhere(
        fulfil,
        order,
        answers=answers,
        effects=lambda: set(calls(ledger)),
        reset=forget(ledger),
    )
    assert len(crashes.points) >= 4
