"""A private PostgreSQL."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from loom_mq.testing.servers.base import PrivateServer, ServerFailedError, StopMode
from loom_mq.testing.servers.ports import free_port

_USER: Final = "loom"
_TOOL_TIMEOUT: Final = 60.0
_UNSAFE_BUT_FAST: Final = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}


class PostgresServer(PrivateServer):
    """A private PostgreSQL, reached over TCP with a password of its own.

    Args:
        fsync: False gives up durability for speed; for tests that do not measure and do not
            kill the server.
        settings: more settings of the server, by name, for example ``{"log_statement": "all"}``.
        start_timeout: seconds until a start counts as failed.

    Raises:
        ServerFailedError: PostgreSQL is not installed.
    """

    _gentle = signal.SIGQUIT
    _stop_signals: Mapping[StopMode, signal.Signals] = {
        "fast": signal.SIGINT,
        "immediate": signal.SIGQUIT,
    }

    def __init__(
        self,
        *,
        fsync: bool = True,
        settings: Mapping[str, str] | None = None,
        start_timeout: float = 60.0,
    ) -> None:
        # PostgreSQL refuses to run as root; its packages come with this account.
        super().__init__("postgres", user="postgres", start_timeout=start_timeout)
        self._bin = find_postgres()
        self._password = secrets.token_hex(16)
        self.port = free_port()
        self._settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "200",
            # Shared memory as files in the data folder: kill -9 leaves nothing elsewhere.
            "dynamic_shared_memory_type": "mmap",
            "log_line_prefix": "%m [%p] ",
            **({} if fsync else _UNSAFE_BUT_FAST),
            **(settings or {}),
        }

    @property
    def dsn(self) -> str:
        """The URL of the database ``postgres``, for the superuser, password included."""
        return self.dsn_of("postgres")

    def dsn_of(self, database: str) -> str:
        """The URL of a database, whether it exists or not."""
        host = f"{_USER}:{self._password}@127.0.0.1:{self.port}"
        return f"postgresql://{host}/{quote(database, safe='')}"

    async def create_database(self, name: str, template: str = "template1") -> str:
        """Create a database as a copy of `template` and return its URL.

        Raises:
            ServerFailedError: it exists, or somebody is connected to the template.
        """
        await self.psql(f"CREATE DATABASE {_identifier(name)} TEMPLATE {_identifier(template)}")
        return self.dsn_of(name)

    async def drop_database(self, name: str) -> None:
        """Drop a database if it exists, throwing out whoever is connected."""
        await self.psql(f"DROP DATABASE IF EXISTS {_identifier(name)} WITH (FORCE)")

    async def terminate_backends(self, database: str | None = None) -> int:
        """Cut the connections of all clients, or of those of one database; how many there were."""
        only = "" if database is None else f" AND datname = {_literal(database)}"
        answer = await self.psql(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            f" WHERE backend_type = 'client backend' AND pid <> pg_backend_pid(){only}"
        )
        return int(answer)

    async def psql(self, sql: str, database: str = "postgres") -> str:
        """Run SQL as the superuser and return what it prints: rows by line, fields by ``|``.

        Raises:
            ServerFailedError: the server refused it, or gave no answer in a minute.
        """
        command: list[str | Path] = [
            *(self._bin / "psql", "--no-psqlrc", "--quiet", "--tuples-only", "--no-align"),
            *("--set=ON_ERROR_STOP=1", "--host=127.0.0.1", f"--port={self.port}"),
            *(f"--username={_USER}", f"--dbname={database}", f"--command={sql}"),
        ]
        return (await self._run(command, _TOOL_TIMEOUT)).rstrip("\n")

    async def _prepare(self) -> None:
        secret = self.folder / "password"
        secret.write_text(self._password)
        self._own(secret)
        command: list[str | Path] = [
            *(self._bin / "initdb", f"--pgdata={self._data}", "--no-sync", "--encoding=UTF8"),
            *("--locale=C", f"--username={_USER}", f"--pwfile={secret}", "--auth=password"),
        ]
        await self._run(command, _TOOL_TIMEOUT)
        with (self._data / "postgresql.conf").open("a") as configuration:
            for name, value in self._settings.items():
                configuration.write(f"{name} = {_literal(value)}\n")

    def _command(self) -> Sequence[str | Path]:
        return [self._bin / "postgres", "-D", self._data]

    def _environment(self) -> Mapping[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("PG")}
        return {**inherited, "LC_ALL": "C", "PGPASSWORD": self._password}

    async def _settle(self) -> None:
        """Nothing to do: what it committed stays."""

    async def _ready(self) -> bool:
        # The file that pg_ctl waits for: the first line names the process, the eighth its state.
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) > 7 and lines[0] == str(self.pid) and lines[7].strip() == "ready"

    @property
    def _data(self) -> Path:
        return self.folder / "data"


def find_postgres() -> Path:
    """The folder of the newest PostgreSQL's programs.

    Raises:
        ServerFailedError: there is none.
    """
    chosen = os.environ.get("LOOM_TEST_POSTGRES_BIN")
    if chosen:
        folders = [Path(chosen)]
    else:
        debian = Path("/usr/lib/postgresql").glob("*/bin")
        folders = sorted(debian, key=lambda path: _version(path.parent.name), reverse=True)
        folders += [Path(found).resolve().parent for found in [shutil.which("postgres")] if found]
    for folder in folders:
        if (folder / "postgres").exists() and (folder / "initdb").exists():
            return folder
    raise ServerFailedError(
        "PostgreSQL is not installed: run `make servers`, or name the folder of its programs"
        " in LOOM_TEST_POSTGRES_BIN"
    )


def _version(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.split(".") if part.isdecimal())


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
