"""Setting up the schema and bringing it up to date (C28, C88)."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Final

import asyncpg
import structlog

from loom_mq.errors import ConfigurationError, LoomError, SchemaVersionError
from loom_mq.journal.postgres.endpoint import Connection, Endpoint
from loom_mq.journal.postgres.faults import translate, unreachable
from loom_mq.journal.postgres.sql import FUNCTIONS_REVISION, Sql

SCHEMA_VERSION: Final = "schema_version"
REVISION: Final = "functions_revision"
CHECKSUM: Final = "functions_checksum"
OLDEST_SERVER: Final = 14
TIMEOUT: Final = 60.0
"""Seconds for all migrations, the wait for another process's included."""

_log = structlog.get_logger(__name__)


async def migrate(dsn: str, schema: str = "loom", *, timeout: float = TIMEOUT) -> int:
    """Set up the journal, or bring it up to date. Several processes may do so at once.

    Everything happens in one transaction, under a lock that ends with it, so it works
    behind a transaction pooler and leaves nothing half done.

    Args:
        dsn: the server's URL.
        schema: the schema that holds the journal; made when it is not there.
        timeout: seconds in all.

    Returns:
        The version of the schema afterwards.

    Raises:
        JournalUnreachableError: the server cannot be reached.
        SchemaVersionError: the journal is newer than this program.
        ConfigurationError: the server is older than PostgreSQL 14.
        StorageWriteError: the server refused a statement; nothing was changed.
    """
    endpoint = Endpoint(dsn, schema=schema, timeout=timeout, sessions=False)
    try:
        connection = await endpoint.connect()
    except asyncpg.TooManyConnectionsError as error:
        raise unreachable(error, str(endpoint)) from error
    try:
        async with asyncio.timeout(timeout):
            return await _migrate(connection, endpoint)
    except LoomError:
        raise
    except Exception as error:
        raise translate(error, str(endpoint), writing=True) from error
    finally:
        connection.terminate()


def migration_script(schema: str = "loom") -> str:
    """The SQL that sets up an empty journal, for those who apply it by hand."""
    sql = Sql(schema)
    parts = [f'CREATE SCHEMA IF NOT EXISTS "{schema}";', sql["create_meta"] + ";"]
    parts += [script for _number, script in sql.migrations()]
    parts.append(sql.functions())
    values = {SCHEMA_VERSION: len(sql.migrations()), REVISION: FUNCTIONS_REVISION}
    rows = ", ".join(f"('{name}', '{value}')" for name, value in values.items())
    parts.append(f'INSERT INTO "{schema}".meta (name, value) VALUES {rows};')
    return "\n".join(("BEGIN;", *parts, "COMMIT;", ""))


async def check_schema(connection: Connection, endpoint: Endpoint) -> None:
    """Refuse a journal that this program cannot work with.

    Raises:
        SchemaVersionError: newer or older than this program, or not there; says what
            to do.
    """
    version, revision, _checksum = await _state(connection, endpoint)
    known = len(endpoint.sql.migrations())
    if version > known:
        raise _newer(endpoint, version, known)
    if version == 0:
        raise SchemaVersionError(
            f"there is no journal in schema {endpoint.schema!r} at {endpoint}; make it with "
            "`loom migrate`, or set LOOM_MIGRATE=auto"
        )
    if version < known or revision < FUNCTIONS_REVISION:
        raise SchemaVersionError(
            f"the journal in schema {endpoint.schema!r} at {endpoint} has version {version} "
            f"(functions {revision}) and this program needs {known} (functions "
            f"{FUNCTIONS_REVISION}); bring it up to date with `loom migrate`, or set "
            "LOOM_MIGRATE=auto"
        )


async def _migrate(connection: Connection, endpoint: Endpoint) -> int:
    server = connection.get_server_version()
    if server.major < OLDEST_SERVER:
        raise ConfigurationError(
            f"the server at {endpoint} is PostgreSQL {server.major}; the journal needs "
            f"{OLDEST_SERVER} or newer"
        )
    sql = endpoint.sql
    checksum = hashlib.sha256(sql.functions().encode()).hexdigest()
    known = len(sql.migrations())
    if await _state(connection, endpoint) == (known, FUNCTIONS_REVISION, checksum):
        return known
    async with connection.transaction():
        await connection.execute("SET LOCAL TRANSACTION ISOLATION LEVEL READ COMMITTED")
        await connection.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))",
            f"loom.migrate/{endpoint.schema}",
        )
        version, revision, known_checksum = await _state(connection, endpoint)
        if version > known:
            raise _newer(endpoint, version, known)
        if version == 0:
            await _make_schema(connection, endpoint)
        for number, script in sql.migrations()[version:]:
            await connection.execute(script)
            _log.info("journal.migrated", version=number, schema=endpoint.schema)
        outdated = (revision, known_checksum) != (FUNCTIONS_REVISION, checksum)
        if version < known or (outdated and revision <= FUNCTIONS_REVISION):
            await connection.execute(sql.functions())
            await connection.execute(sql["write_meta"], REVISION, str(FUNCTIONS_REVISION))
            await connection.execute(sql["write_meta"], CHECKSUM, checksum)
        await connection.execute(sql["write_meta"], SCHEMA_VERSION, str(known))
    return known


async def _make_schema(connection: Connection, endpoint: Endpoint) -> None:
    # asked first: making one takes a right that whoever owns the schema need not have
    exists = await connection.fetchval(
        "SELECT true FROM pg_namespace WHERE nspname = $1", endpoint.schema
    )
    if not exists:
        await connection.execute(f'CREATE SCHEMA "{endpoint.schema}"')
    await connection.execute(endpoint.sql["create_meta"])


async def _state(connection: Connection, endpoint: Endpoint) -> tuple[int, int, str]:
    """Version of the schema, revision and checksum of the functions; zeros for none."""
    if not await connection.fetchval(endpoint.sql["meta_exists"], endpoint.schema):
        return 0, 0, ""
    records = await connection.fetch(endpoint.sql["read_meta"])
    found = {record["name"]: record["value"] for record in records}
    return (
        int(found.get(SCHEMA_VERSION, "0")),
        int(found.get(REVISION, "0")),
        found.get(CHECKSUM, ""),
    )


def _newer(endpoint: Endpoint, version: int, known: int) -> SchemaVersionError:
    return SchemaVersionError(
        f"the journal in schema {endpoint.schema!r} at {endpoint} has version {version}, this "
        f"program knows up to {known}; upgrade this program"
    )
