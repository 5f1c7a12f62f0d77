"""`loom recover` over real servers: a package goes out for each, at once (F4, F8)."""

from __future__ import annotations

import asyncio
import json

import pytest
from structlog.testing import capture_logs

from loom_mq.broker import topology
from loom_mq.broker.amqp import AmqpBroker
from loom_mq.cli.main import run
from loom_mq.journal.postgres import PostgresJournal, migrate
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey
from loom_mq.testing.conformance.journal_rig import Rig, Stores


def _looker(url: str) -> AmqpBroker:
    return AmqpBroker(url, name="looker")


async def test_recover_sends_a_package_for_each(
    postgres_dsn: str, rabbit_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """F8: the queue is made when it is missing, and nobody else is needed."""
    with capture_logs():  # in a process of its own `loom` keeps the log out of its answers
        await _recover_by_hand(postgres_dsn, rabbit_url, capsys)


async def _recover_by_hand(
    postgres_dsn: str, rabbit_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await migrate(postgres_dsn)

    async def call(*arguments: str) -> dict[str, object]:
        where = ("--json", "--journal", postgres_dsn, "--broker", rabbit_url)
        code = await asyncio.to_thread(run, [*arguments, *where])
        out, err = capsys.readouterr()
        assert code == 0, err
        item: dict[str, object] = json.loads(out)["items"][0]
        return item

    async with PostgresJournal(postgres_dsn) as journal, _looker(rabbit_url) as broker:
        rig = Rig(Stores(journal, journal))
        keys = [ExecutionKey(DEFAULT_TENANT, name) for name in ("a", "b/ü", "c")]
        for key in keys:
            await rig.started("dead", key=key)

        async def ready() -> int | None:
            depth = await broker.depth(topology.work("default").name)
            return None if depth is None else depth.ready

        assert await ready() is None
        item = await call("recover", "--owner-gone")
        assert (item["recovered"], item["unconfirmed"], item["failed"]) == (3, 0, 0)
        packages = await ready()
        assert packages is not None
        assert 1 <= packages <= 3, "packages share a message"
        rows = await journal.get(keys)
        assert [row.owner for row in rows if row is not None] == [None] * 3
        assert (await call("recover", "--owner-gone"))["claimed"] == 0
        assert (await call("recover", "b/ü", "--again"))["again"] is True
        assert await ready() == packages + 1
        assert (await rig.row(keys[1])).fence == 2
