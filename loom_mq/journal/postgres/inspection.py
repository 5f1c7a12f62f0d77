"""How a server keeps the journal: what `loom doctor` looks at, also where no journal is yet."""

from __future__ import annotations

import asyncio

import asyncpg
import msgspec

from loom_mq.errors import LoomError
from loom_mq.journal.postgres.endpoint import Connection, Endpoint
from loom_mq.journal.postgres.faults import translate, unreachable
from loom_mq.journal.postgres.migrate import REVISION, SCHEMA_VERSION
from loom_mq.journal.postgres.sql import FUNCTIONS_REVISION


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a server says of itself and of the journal in it.

    Attributes:
        server: its version.
        schema_version: of the journal; 0 where there is none.
        revision: of the journal's functions.
        known_version: the newest that this program knows.
        known_revision: the same of the functions.
        synchronous_commit: as the server's setting of that name.
        fsync: the same.
        full_page_writes: the same.
        standby: it takes no writes.
        most_connections: that it allows.
        connections: that it has.
        oldest_transaction: age in seconds; of others' only where the user may see them.
        now: its clock, microseconds since the epoch.
    """

    server: str
    schema_version: int
    revision: int
    known_version: int
    known_revision: int
    synchronous_commit: str
    fsync: str
    full_page_writes: str
    standby: bool
    most_connections: int
    connections: int
    oldest_transaction: float
    now: int


async def inspect_server(dsn: str, schema: str = "loom", *, timeout: float = 5.0) -> ServerFacts:
    """Look at a server and change nothing.

    Args:
        dsn: its URL, password included; it is never shown.
        schema: where the journal is.
        timeout: seconds in all.

    Raises:
        JournalUnreachableError: it cannot be reached.
        StorageWriteError: it refused to answer.
    """
    endpoint = Endpoint(dsn, schema=schema, timeout=timeout, sessions=False)
    try:
        connection = await endpoint.connect()
    except asyncpg.TooManyConnectionsError as error:
        raise unreachable(error, str(endpoint)) from error
    try:
        async with asyncio.timeout(timeout):
            return await _inspect(connection, endpoint)
    except LoomError:
        raise
    except Exception as error:
        raise translate(error, str(endpoint), writing=False) from error
    finally:
        connection.terminate()


async def _inspect(connection: Connection, endpoint: Endpoint) -> ServerFacts:
    sql = endpoint.sql
    meta: dict[str, str] = {}
    if await connection.fetchval(sql["meta_exists"], endpoint.schema):
        records = await connection.fetch(sql["read_meta"])
        meta = {record["name"]: record["value"] for record in records}
    record = await connection.fetchrow(sql["server_facts"])
    assert record is not None  # a SELECT without FROM has one row
    facts = dict(record)
    return ServerFacts(
        server=facts.pop("version"),
        schema_version=int(meta.get(SCHEMA_VERSION, "0")),
        revision=int(meta.get(REVISION, "0")),
        known_version=len(sql.migrations()),
        known_revision=FUNCTIONS_REVISION,
        **facts,
    )
