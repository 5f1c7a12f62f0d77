"""Workers that die: no goodbye, no renewal, and what they had in hand goes on as a zombie."""

from __future__ import annotations

from loom_mq.engine.worker import Worker


async def die(worker: Worker) -> None:
    """As if the machine slept: its lease lapses, and it does not know."""
    await worker._lease._drop_session()
    assert worker._lease._task is not None
    worker._lease._task.cancel()
    for consumer in worker._consumers:
        await consumer.cancel()
