"""``python -m tests.golden.record``: records the histories that later releases must still fit.

Writes them into the folder of the present event schema. Never record anew what is there: a
difference is what the test is for.
"""

from __future__ import annotations

import asyncio
from decimal import Decimal
from pathlib import Path

from examples.orders.flows import LARGE, fulfil
from examples.orders.model import Line, Order
from loom_mq.lifecycle.lines import to_lines
from loom_mq.lifecycle.reading import fetch
from loom_mq.model.events import EVENT_SCHEMA
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey
from loom_mq.testing import TestEnvironment
from tests.support import timing_flows

HERE = Path(__file__).parent
LINES = (Line("bolt", 10, Decimal("0.30")), Line("nut", 2, Decimal(1)))
CRANE = (Line("crane", 1, LARGE),)
ORDERS: tuple[tuple[str, Order, bool | None], ...] = (
    ("small", Order("order-1", "ada", LINES), None),
    ("approved", Order("order-2", "ada", CRANE), True),
    ("refused", Order("order-2", "ada", CRANE), False),
    ("declined", Order("order-3", "no-credit", LINES), None),
    ("waiting", Order("order-2", "ada", CRANE), None),
)


async def record(folder: Path) -> None:
    """Run the examples and keep their histories."""
    folder.mkdir(exist_ok=True)
    async with TestEnvironment([fulfil, *timing_flows.ALL]) as env:
        for name, order, answer in ORDERS:
            run = await env.start(fulfil, order, id=name)
            if order.lines is CRANE:
                await run.reach("Approval")
                if answer is not None:
                    await run.resume("Approval", answer)
            if name != "waiting":
                await run.result()
        for flow in timing_flows.ALL:
            await env.execute(flow, id=flow.name)
        names = [name for name, _order, _answer in ORDERS]
        for name in names + [flow.name for flow in timing_flows.ALL]:
            archived = await fetch(env.fleet.journal, ExecutionKey(DEFAULT_TENANT, name))
            text = "\n".join(to_lines(archived)) + "\n"
            (folder / f"{name}.ndjson").write_text(text)


if __name__ == "__main__":
    asyncio.run(record(HERE / f"schema-{EVENT_SCHEMA}"))
