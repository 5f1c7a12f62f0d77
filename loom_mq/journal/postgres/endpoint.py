"""Where the journal's server is, and how a connection to it is made."""

from __future__ import annotations

import re
from typing import Final, TypeAlias
from urllib.parse import urlsplit

import asyncpg

from loom_mq.errors import ConfigurationError
from loom_mq.journal.postgres.faults import unreachable
from loom_mq.journal.postgres.sql import Sql

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

APPLICATION: Final = "loom-mq"
_SERVER_SHARE: Final = 0.9
_SCHEMA: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


class Endpoint:
    """How to connect. Belongs to no event loop; printing it shows no secret.

    Args:
        dsn: the server's URL, password included.
        schema: the schema that holds the journal.
        timeout: seconds that a connection and an answer may take.
        sessions: False behind a transaction pooler: no statement outlives its
            transaction, and nothing may be set or locked for a session.

    Raises:
        ConfigurationError: `schema` is no plain name.
    """

    def __init__(self, dsn: str, *, schema: str, timeout: float, sessions: bool) -> None:
        if _SCHEMA.fullmatch(schema) is None:
            raise ConfigurationError(
                f"the journal's schema {schema!r} must be letters, digits and underscores, and "
                "begin with no digit"
            )
        self._dsn = dsn
        self.schema = schema
        self.timeout = timeout
        self.sessions = sessions
        self.sql = Sql(schema)

    def __repr__(self) -> str:
        return f"Endpoint({self})"

    def __str__(self) -> str:
        """Host, port and database: never user, password or parameters."""
        try:
            parts = urlsplit(self._dsn)
        except ValueError:
            return "postgresql://***"
        if "@" in parts.path + parts.query + parts.fragment:
            return "postgresql://***"  # a password that was not encoded may have slipped there
        return f"postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}"

    async def connect(self) -> Connection:
        """A new connection on the running loop.

        Where sessions are ours, the server itself gives up a statement a moment before
        we do, so that nothing is left running for nobody, and says that it did.

        Raises:
            JournalUnreachableError: it cannot be had; `ConfigurationError` is its cause
                where waiting will not help.
            TooManyConnectionsError: the server has no connection left (C89).
        """
        settings = {"application_name": APPLICATION}
        if self.sessions:
            settings["statement_timeout"] = str(max(1, int(self.timeout * _SERVER_SHARE * 1000)))
        try:
            return await asyncpg.connect(
                self._dsn,
                timeout=self.timeout,
                statement_cache_size=100 if self.sessions else 0,
                max_cached_statement_lifetime=0,
                server_settings=settings,
            )
        except asyncpg.TooManyConnectionsError:
            raise
        except Exception as error:
            failure = unreachable(error, str(self))
        raise failure
