"""The schema of the embedded journal and its versions."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from sqlite3 import Connection
from typing import Final

from loom_mq.errors import ConfigurationError, SchemaVersionError
from loom_mq.journal.statements import load_migrations

_MIGRATIONS: Final = load_migrations("sqlite")
SCHEMA_VERSION: Final = len(_MIGRATIONS)

_GET: Final = "SELECT value FROM meta WHERE name = 'schema_version'"
_SET: Final = "INSERT OR REPLACE INTO meta (name, value) VALUES ('schema_version', ?)"


def migrate(db: Connection, path: Path, *, upgrade: bool) -> None:
    """Bring the schema up to date, inside the caller's transaction.

    Args:
        db: inside a transaction that may write.
        path: for messages.
        upgrade: whether an older schema may be changed; an empty file always may.

    Raises:
        SchemaVersionError: a newer release wrote the file, or an older one and
            `upgrade` is not set.
        ConfigurationError: the file belongs to another program.
    """
    found = _version(db, path)
    if found == SCHEMA_VERSION:
        return
    if found > SCHEMA_VERSION:
        raise SchemaVersionError(
            f"the journal {str(path)!r} has schema {found} and this release of loom-mq knows "
            f"{SCHEMA_VERSION}: use the newer release that wrote it, or a copy of the file "
            "from before"
        )
    if found and not upgrade:
        raise SchemaVersionError(
            f"the journal {str(path)!r} has schema {found} and this release of loom-mq needs "
            f"{SCHEMA_VERSION}: start an engine of this release on it once, which brings it "
            "up to date"
        )
    for number, script in _MIGRATIONS[found:]:
        for statement in split(script):
            db.execute(statement)
        db.execute(_SET, (str(number),))


def _version(db: Connection, path: Path) -> int:
    """The schema version of a file, 0 for an empty one."""
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_schema")}
    if not tables:
        return 0
    if "meta" not in tables or "executions" not in tables:
        raise ConfigurationError(
            f"{str(path)!r} is a database of another program, not a journal of loom-mq; "
            "name another file"
        )
    columns = db.execute(_GET).fetchone()
    return 0 if columns is None else int(columns[0])


def split(script: str) -> Iterator[str]:
    """The statements of a script, so that they can run inside one transaction."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if any(line.strip() and not line.startswith("--") for line in statement.splitlines()):
        raise ValueError("the script ends in the middle of a statement")
