"""The engine of the demo, in a process of its own that the demo kills.

``python -m examples.orders.house JOURNAL ORDERS``: starts the first ORDERS orders, a few
at a time as customers would, and serves them until its standard input ends. Started
again on the same journal it starts them all again: the same id is the same execution.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.orders.catalogue import read_orders
from examples.orders.flows import fulfil
from examples.orders.model import Order
from loom_mq import Client
from loom_mq.flows.registry import Registry
from loom_mq.observe.logging import LogLevel, configure_logging
from loom_mq.runtime.embedded import Embedded

PER_WAVE = 10
PAUSE = 0.12
"""Seconds between two waves of orders."""
LIFETIME = 300.0
"""Seconds after which it ends whatever happens."""


async def serve(journal: Path, orders: Sequence[Order]) -> None:
    """Serve until standard input ends."""
    async with Embedded(Registry([fulfil]), journal) as house:
        starting = asyncio.ensure_future(start_all(house.client, orders))
        told = asyncio.ensure_future(end_of_input())
        await asyncio.wait({starting, told}, timeout=LIFETIME, return_when=asyncio.FIRST_EXCEPTION)
        for task in (starting, told):
            task.cancel()
        if starting.done() and not starting.cancelled():
            starting.result()


async def start_all(client: Client, orders: Sequence[Order]) -> None:
    """Start every order under its own id."""
    for first in range(0, len(orders), PER_WAVE):
        wave = orders[first : first + PER_WAVE]
        await client.start_many(fulfil, [(order.id, order) for order in wave])
        await asyncio.sleep(PAUSE)


async def end_of_input() -> None:
    """Return when the demo closes our input, or is gone itself."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    await reader.read()


if __name__ == "__main__":
    configure_logging(service="house", worker="house", level=LogLevel.WARNING)
    asyncio.run(serve(Path(sys.argv[1]), read_orders(int(sys.argv[2]))))
