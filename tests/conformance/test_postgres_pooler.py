"""The journal behind a transaction pooler (C12, C88): a real PgBouncer."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest
import pytest_asyncio

from loom_mq.errors import ConfigurationError, JournalUnreachableError
from loom_mq.journal.postgres import PostgresJournal, migrate
from loom_mq.testing.conformance.journal_rig import (
    COMPLETED,
    LONG,
    Rig,
    Stores,
    accepted,
    events,
    name,
)
from loom_mq.testing.servers.ports import free_port
from tests.conformance.postgres_support import NEWEST, PATIENCE, Journal
from tests.conformance.test_postgres_schema import MIGRATE

PROGRAM = (
    os.environ.get("LOOM_TEST_PGBOUNCER")
    or shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    or "pgbouncer"
)
"""`make servers` installs it where it is missing."""

SETTINGS = """
[databases]
* = host={host} port={port} user={user} password={password}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
unix_socket_dir =
auth_type = plain
auth_file = {users}
pool_mode = transaction
default_pool_size = 2
"""


@pytest_asyncio.fixture
async def pooled_dsn(postgres_dsn: str) -> AsyncIterator[str]:
    """The test's database through a pooler with two connections."""
    parts = urlsplit(postgres_dsn)
    own_port = free_port()
    with tempfile.TemporaryDirectory(prefix="loom-pooler-") as folder:
        users = Path(folder, "users.txt")
        users.write_text(f'"{parts.username}" "{parts.password}"\n')
        configuration = Path(folder, "pgbouncer.ini")
        configuration.write_text(
            SETTINGS.format(
                host=parts.hostname,
                port=parts.port,
                user=parts.username,
                password=parts.password,
                own_port=own_port,
                users=users,
            )
        )
        process = _start(Path(folder), configuration)
        try:
            async with asyncio.timeout(PATIENCE):
                while not await _listening(own_port):
                    assert process.poll() is None, Path(folder, "log").read_text()
                    await asyncio.sleep(0.01)
            host = f"{parts.username}:{parts.password}@127.0.0.1:{own_port}"
            yield urlunsplit(parts._replace(netloc=host))
        finally:
            process.kill()
            process.wait()


def _start(folder: Path, configuration: Path) -> subprocess.Popen[bytes]:
    # it refuses to run as root
    user = pwd.getpwnam("postgres") if os.geteuid() == 0 else None
    if user is not None:
        for path in (folder, *folder.iterdir()):
            os.chown(path, user.pw_uid, user.pw_gid)
    with Path(folder, "log").open("wb") as log:
        return subprocess.Popen(
            [PROGRAM, "-q", configuration],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            user=None if user is None else user.pw_uid,
            group=None if user is None else user.pw_gid,
            extra_groups=None if user is None else [],
        )


async def _listening(port: int) -> bool:
    try:
        _reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.transport.abort()
    return True


async def test_fleet_behind_a_pooler(pooled_dsn: str) -> None:
    """C12: 200 lives of two processes over two connections, no statement is missed."""
    await migrate(pooled_dsn)
    async with (
        Journal(pooled_dsn, statement_cache=False) as one,
        Journal(pooled_dsn, statement_cache=False) as two,
    ):

        async def live(journal: PostgresJournal, owner: str) -> None:
            rig = Rig(Stores(journal, journal))
            key = await rig.parked(timers=(5,))
            await rig.deliver(key)
            claimed = (await rig.claim(key, owner, 1)).claimed
            assert claimed is not None
            assert len(claimed.inbox) == 1
            end = events(2, fence=2)
            accepted(await rig.append(key, end, fence=2, index=COMPLETED, release=True))

        sessions = [await Rig(Stores(each, each)).alive(name("w")) for each in (one, two)]
        for _ in range(10):
            await asyncio.gather(
                *(live(one, "one") for _ in range(10)), *(live(two, "two") for _ in range(10))
            )
            for session in sessions:
                assert (await session.renew(LONG)).held
        assert await one.due_timers(limit=10, hold=LONG) == []
        for session in sessions:
            await session.close()
        assert len(await one.workers()) == 2


async def test_migrating_through_a_pooler(pooled_dsn: str) -> None:
    """C88: three processes at once: neither deadlock nor twice."""
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", MIGRATE, pooled_dsn, "loom"), stdout=asyncio.subprocess.PIPE
        )
        for _ in range(3)
    ]
    async with asyncio.timeout(60):
        answers = [(await process.communicate())[0] for process in processes]
    assert [answer.split()[-1] for answer in answers] == [str(NEWEST).encode()] * 3


async def test_forgotten_setting_is_told(pooled_dsn: str) -> None:
    """C12: one line says what to set."""
    await migrate(pooled_dsn)
    with pytest.raises(JournalUnreachableError, match="LOOM_STATEMENT_CACHE=false") as caught:
        await PostgresJournal(pooled_dsn).__aenter__()
    assert isinstance(caught.value.__cause__, ConfigurationError)
