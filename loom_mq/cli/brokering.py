"""What the broker says of itself, without its management plugin."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Final

from loom_mq.broker import topology
from loom_mq.broker.protocol import Broker, Outgoing, QueueDepth
from loom_mq.cli.reach import Reach, open_broker
from loom_mq.errors import LoomError
from loom_mq.ids import RandomIds
from loom_mq.kernel.facts import BrokerFacts, Depth

_LOOK_SECONDS: Final = 0.02
_ALARM: Final = "it has blocked publishers (memory or disk alarm)"


async def facts(reach: Reach, queues: Iterable[str]) -> BrokerFacts | None:
    """What the broker says, for a reason; None when there is none to ask.

    Args:
        reach: where it is.
        queues: the fleet's names of the queues to look at.
    """
    if reach.broker is None or reach.embedded:
        return None
    try:
        async with open_broker(reach) as broker:
            _seconds, alarm = await confirmed(broker)
            depths = {name: await depth(broker, topology.work(name).name) for name in queues}
    except LoomError as error:
        return BrokerFacts(unreachable=error.message)
    return BrokerFacts(alarm=alarm, depths=depths)


async def depth(broker: Broker, name: str) -> Depth | None:
    """Messages and consumers of a queue by its broker's name; None when it does not exist.

    Raises:
        BrokerUnreachableError: no answer.
    """
    found: QueueDepth | None = await broker.depth(name)
    return None if found is None else Depth(found.ready, found.consumers)


async def confirmed(broker: Broker) -> tuple[float, str]:
    """Publish two messages that nobody gets, to see whether the broker takes any.

    They go to a queue of this connection's own, and go with it. A broker with an alarm may
    still take the first one: only then does it look at who sends.

    Returns:
        The seconds until one was confirmed, and why it was not; empty when it was.

    Raises:
        BrokerError: the queue could not be made.
    """
    queue = topology.reply(f"probe-{RandomIds().token()}")
    await broker.declare([queue])
    seconds = 0.0
    for _ in range(2):
        began = time.monotonic()
        trouble = await _publish(broker, queue.name)
        seconds = time.monotonic() - began
        if trouble:
            return seconds, trouble
    return seconds, ""


async def _publish(broker: Broker, queue: str) -> str:
    """Why a message was not confirmed; empty when it was."""
    publishing = asyncio.ensure_future(
        broker.publish([Outgoing(queue=queue, body=b"", type="probe", persistent=False)])
    )
    while not publishing.done() and not broker.health().blocked:
        await asyncio.wait({publishing}, timeout=_LOOK_SECONDS)
    if broker.health().blocked:
        publishing.cancel()
        await asyncio.wait({publishing})
        return _ALARM
    [error] = publishing.result()
    return "" if error is None else error.message
