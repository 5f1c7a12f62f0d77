"""The private servers keep their promises: durable data, real kills, real freezes, no remains."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aio_pika
import aio_pika.abc
import asyncpg
import pytest

from loom_mq.testing.servers import PostgresServer, RabbitServer, ServerFailedError, trees

_FROZEN_SECONDS = 0.3
# What asyncpg may raise on a connection that the server cut, by the moment it notices.
_CUT = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
_OWNER = """
import asyncio, sys
from loom_mq.testing.servers import PostgresServer

async def main():
    server = PostgresServer(fsync=False)
    await server.start()
    print(server.pid, server.folder, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@asynccontextmanager
async def _connection(url: str) -> AsyncIterator[aio_pika.abc.AbstractConnection]:
    connection = await aio_pika.connect(url, timeout=10)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def _channel(url: str) -> AsyncIterator[aio_pika.abc.AbstractChannel]:
    async with _connection(url) as connection:
        yield await connection.channel()


async def test_postgres_keeps_what_it_committed(
    postgres_server: PostgresServer, postgres_dsn: str
) -> None:
    connection = await asyncpg.connect(postgres_dsn)
    await connection.execute("CREATE TABLE kept (n int)")
    await connection.execute("INSERT INTO kept VALUES (7)")
    await postgres_server.kill()
    with pytest.raises(_CUT):
        await connection.fetchval("SELECT 1")
    await postgres_server.start()
    connection = await asyncpg.connect(postgres_dsn)
    assert await connection.fetchval("SELECT n FROM kept") == 7
    await connection.close()


async def test_postgres_pauses_and_resumes(
    postgres_server: PostgresServer, postgres_dsn: str
) -> None:
    connection = await asyncpg.connect(postgres_dsn)
    await postgres_server.pause()
    answer = asyncio.create_task(connection.fetchval("SELECT 1"))
    done, _ = await asyncio.wait([answer], timeout=_FROZEN_SECONDS)
    assert not done
    await postgres_server.resume()
    assert await asyncio.wait_for(answer, 10) == 1
    await connection.close()


async def test_postgres_cuts_connections(
    postgres_server: PostgresServer, postgres_dsn: str
) -> None:
    connection = await asyncpg.connect(postgres_dsn)
    name = postgres_dsn.rpartition("/")[2]
    assert await postgres_server.terminate_backends(name) == 1
    with pytest.raises(_CUT):
        await connection.fetchval("SELECT 1")


async def test_postgres_tells_why_it_refused(
    postgres_server: PostgresServer, postgres_dsn: str
) -> None:
    await postgres_server.ensure_running()
    with pytest.raises(ServerFailedError, match="division by zero"):
        await postgres_server.psql("SELECT 1/0", postgres_dsn.rpartition("/")[2])


async def test_rabbit_keeps_what_it_confirmed(rabbit_server: RabbitServer, rabbit_url: str) -> None:
    vhost = rabbit_url.rpartition("/")[2]
    async with _channel(rabbit_url) as channel:
        await channel.declare_queue("kept", durable=True, arguments={"x-queue-type": "quorum"})
        message = aio_pika.Message(b"7", delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await channel.default_exchange.publish(message, "kept")
        await rabbit_server.kill()
    await rabbit_server.start()
    async with _channel(rabbit_url) as channel:
        queue = await channel.get_queue("kept")
        kept = await queue.get(timeout=10)
        assert kept.body == b"7"
        await kept.ack()
    assert [(q.name, q.type) for q in await rabbit_server.list_queues(vhost)] == [
        ("kept", "quorum")
    ]
    await rabbit_server.delete_queue(vhost, "kept")
    assert await rabbit_server.list_queues(vhost) == []


async def test_rabbit_pauses_and_resumes(rabbit_server: RabbitServer, rabbit_url: str) -> None:
    async with _channel(rabbit_url) as channel:
        await rabbit_server.pause()
        answer = asyncio.create_task(channel.declare_queue("frozen", exclusive=True))
        done, _ = await asyncio.wait([answer], timeout=_FROZEN_SECONDS)
        assert not done
        await rabbit_server.resume()
        assert (await asyncio.wait_for(answer, 10)).name == "frozen"


@pytest.mark.parametrize("abruptly", [False, True])
async def test_rabbit_cuts_connections(
    rabbit_server: RabbitServer, rabbit_url: str, abruptly: bool
) -> None:
    async with _connection(rabbit_url) as connection:
        closed = asyncio.Event()
        connection.close_callbacks.add(lambda *_: closed.set())
        assert await rabbit_server.close_all_connections(abruptly=abruptly) == 1
        await asyncio.wait_for(closed.wait(), 10)


async def test_rabbitmqctl_talks_to_this_server(rabbit_server: RabbitServer) -> None:
    await rabbit_server.ensure_running()
    assert (
        await rabbit_server.ctl("eval", "node().") == await rabbit_server.evaluate("node()") + "\n"
    )


@pytest.mark.parametrize("frozen", [False, True])
async def test_a_killed_owner_leaves_nothing_behind(frozen: bool) -> None:
    command = [sys.executable, "-c", _OWNER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid, folder = owner.stdout.readline().split()
        processes = trees.freeze(int(pid)) if frozen else trees.tree(int(pid))
        owner.kill()
    assert len(processes) > 1
    async with asyncio.timeout(30):
        while Path(folder).exists() or any(trees.inspect(p.pid) for p in processes):
            await asyncio.sleep(0.01)


async def test_two_servers_live_side_by_side(postgres_server: PostgresServer) -> None:
    await postgres_server.ensure_running()
    async with PostgresServer(fsync=False, settings={"log_statement": "all"}) as second:
        assert second.port != postgres_server.port
        assert await second.psql("SHOW fsync") == "off"
        assert await postgres_server.psql("SHOW fsync") == "on"
        folder = second.folder
        os.kill(second.pid, signal.SIGSTOP)
    assert not folder.exists()
