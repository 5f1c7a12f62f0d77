"""What the parts of the journal on PostgreSQL stand on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import asyncpg

from loom_mq.clock import MICROS
from loom_mq.errors import StorageWriteError
from loom_mq.journal.postgres.endpoint import Connection, Endpoint
from loom_mq.journal.postgres.pool import Pool
from loom_mq.model.execution import ExecutionKey

ERROR_LIMIT: Final = 1000
"""Characters of an error kept in the index row."""
TEXT_LIMIT: Final = 4000
"""Characters of other text for people."""
MAX_ROUNDS: Final = 3
"""Tries of a write whose refusal was no longer true when it was looked at."""


class Store:
    """An endpoint and its pool.

    Args:
        endpoint: how to connect.
        pool: connections for the calls.
    """

    def __init__(self, endpoint: Endpoint, pool: Pool) -> None:
        self._endpoint = endpoint
        self._pool = pool
        self._sql = endpoint.sql

    async def _read_rows(self, statement: str, *arguments: object) -> list[asyncpg.Record]:
        async def work(connection: Connection) -> list[asyncpg.Record]:
            return await connection.fetch(statement, *arguments)

        return await self._pool.read(work)

    async def _read_row(self, statement: str, *arguments: object) -> asyncpg.Record:
        return (await self._read_rows(statement, *arguments))[0]

    async def _write_rows(self, statement: str, *arguments: object) -> list[asyncpg.Record]:
        async def work(connection: Connection) -> list[asyncpg.Record]:
            return await connection.fetch(statement, *arguments)

        return await self._pool.write(work)

    async def _write_row(self, statement: str, *arguments: object) -> asyncpg.Record:
        return (await self._write_rows(statement, *arguments))[0]

    async def _standings(
        self, keys: Sequence[ExecutionKey], first_seqs: Sequence[int], last_seqs: Sequence[int]
    ) -> dict[int, asyncpg.Record]:
        """Executions as decisions see them, by their place in the batch, counted from 1."""
        statement = self._sql.call(
            "standing_v1", 4, "item, moment, alive, waiters, recorded, (execution).*"
        )
        records = await self._read_rows(
            statement,
            [key.tenant for key in keys],
            [key.execution_id for key in keys],
            first_seqs,
            last_seqs,
        )
        return {record["item"]: record for record in records}


BATCH_BYTES: Final = 8_000_000
"""Payload sent in one call: a batch of large ones goes in several."""


def micros(seconds: float) -> int:
    """Seconds as the journal counts them."""
    return int(seconds * MICROS)


def restless(key: ExecutionKey) -> StorageWriteError:
    """What is raised when a refusal was never true any more when it was looked at."""
    return StorageWriteError(
        f"execution {key.execution_id!r} kept changing while it was written; try again",
        execution_id=key.execution_id,
    )


def waves(keys: Sequence[ExecutionKey]) -> list[list[int]]:
    """Places of a batch, each key once per wave and the keys of a wave in rising order.

    Nearly always there is one wave. All writers lock rows in this order, so that two
    batches never wait for each other.
    """
    places = sorted(range(len(keys)), key=keys.__getitem__)
    if len(set(keys)) == len(keys):
        return [places] if places else []
    found: list[list[int]] = []
    seen: dict[ExecutionKey, int] = {}
    for place in places:
        nth = seen.get(keys[place], 0)
        seen[keys[place]] = nth + 1
        if nth == len(found):
            found.append([])
        found[nth].append(place)
    return found


def loads(places: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """The places of a wave, cut where their payload gets too much for one call.

    Args:
        places: in rising order of their keys.
        sizes: bytes by place.
    """
    found: list[list[int]] = [[]]
    carried = 0
    for place in places:
        if found[-1] and carried + sizes[place] > BATCH_BYTES:
            found.append([])
            carried = 0
        found[-1].append(place)
        carried += sizes[place]
    return found
