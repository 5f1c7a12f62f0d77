"""The raw pipeline's two processes: a hop like the dispatcher's and a hop like the worker's.

``python -m benchmarks.floor_roles dispatcher|worker batched|plain AMQP_URL DSN``

Nothing here is durable execution: no claim, no fence, no replay. It moves the same messages and
writes the same rows, each batch sealed by the broker's confirm or the database's commit before
its messages are acknowledged.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from itertools import groupby
from operator import attrgetter
from typing import Final

import asyncpg

from benchmarks.floor_links import Framing, Link, Package, open_link
from benchmarks.process import commands, say

START_QUEUE: Final = "floor.start"
WORK_QUEUE: Final = "floor.work"
STEPS: Final = 3
COMMIT_TIMEOUT: Final = 30.0

SCHEMA: Final = """
CREATE TABLE floor_executions (
    id text PRIMARY KEY, status smallint NOT NULL, last_seq integer NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE floor_events (
    execution_id text NOT NULL, seq integer NOT NULL, kind smallint NOT NULL,
    payload bytea NOT NULL, at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (execution_id, seq));
"""

WRITE_BATCH: Final = """
WITH journal AS (
    INSERT INTO floor_events (execution_id, seq, kind, payload)
    SELECT * FROM unnest($1::text[], $2::integer[], $3::smallint[], $4::bytea[]))
INSERT INTO floor_executions (id, status, last_seq)
SELECT id, 1, $6 FROM unnest($5::text[]) AS id
"""


class Hop(StrEnum):
    """Which part of the pipeline a process plays."""

    DISPATCHER = "dispatcher"
    WORKER = "worker"


async def write_batch(
    connection: asyncpg.Connection[asyncpg.Record], packages: Sequence[Package]
) -> None:
    """Three journal rows and one index row per execution, one statement, one commit."""
    ids = [package.execution_id for package in packages]
    await connection.execute(
        WRITE_BATCH,
        [execution_id for execution_id in ids for _ in range(STEPS)],
        list(range(STEPS)) * len(ids),
        [2] * (STEPS * len(ids)),
        [package.body for package in packages for _ in range(STEPS)],
        ids,
        STEPS - 1,
        timeout=COMMIT_TIMEOUT,
    )


async def dispatch(link: Link) -> None:
    """Start queue to work queue; a start message is settled once its package is confirmed."""
    while True:
        packages = await link.take()
        await link.send(WORK_QUEUE, packages)
        await link.acknowledge()


async def work(link: Link, dsn: str) -> None:
    """Work queue to rows to replies; a package is settled once its rows are committed."""
    connection = await asyncpg.connect(dsn, timeout=COMMIT_TIMEOUT)
    by_address = attrgetter("reply_to")
    while True:
        packages = await link.take()
        await write_batch(connection, packages)
        await link.acknowledge()
        for address, replies in groupby(sorted(packages, key=by_address), by_address):
            await link.send(address, list(replies), lasting=False)


async def main(hop: Hop, framing: Framing, amqp_url: str, dsn: str) -> None:
    """Run one hop until the driver closes its end; an error in the hop ends the process."""
    match hop:
        case Hop.DISPATCHER:
            link = await open_link(framing, amqp_url, START_QUEUE)
            loop = asyncio.create_task(dispatch(link))
        case Hop.WORKER:
            link = await open_link(framing, amqp_url, WORK_QUEUE)
            loop = asyncio.create_task(work(link, dsn))
    say("ready")
    end = asyncio.create_task(_end_of_input())
    await asyncio.wait((loop, end), return_when=asyncio.FIRST_COMPLETED)
    loop.cancel()
    with suppress(asyncio.CancelledError):
        await loop
    await link.close()


async def _end_of_input() -> None:
    async for _ in commands():
        pass


if __name__ == "__main__":
    asyncio.run(main(Hop(sys.argv[1]), Framing(sys.argv[2]), sys.argv[3], sys.argv[4]))
