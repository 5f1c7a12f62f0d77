"""A process that holds its presence token until it is killed."""

from __future__ import annotations

import asyncio
import sys

from loom_mq.broker.amqp import AmqpBroker
from loom_mq.broker.presence import PresenceToken


async def main(url: str, owner: str) -> None:
    async with AmqpBroker(url, name=owner) as broker:
        held = await PresenceToken(broker, owner).start()
        sys.stdout.write("held\n" if held else "not held\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
