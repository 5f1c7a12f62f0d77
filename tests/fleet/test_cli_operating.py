"""`loom queues`, `workers`, `dlq` and `doctor` over a real fleet, and what ails it (F11)."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import aio_pika
import asyncpg
import msgspec
import pytest
from structlog.testing import capture_logs

from loom_mq.cli.main import run
from loom_mq.codec import wire
from loom_mq.journal.protocol import DeadLetter
from loom_mq.model.messages import StartItem, StartMessage
from loom_mq.testing.servers import RabbitServer
from tests.support.cli import check_kind
from tests.support.fleet import Fleet
from tests.support.house import until

Item = dict[str, object]


class Bench:
    """A fleet, and `loom` that knows where it is."""

    def __init__(self, fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
        self.fleet = fleet
        self._capsys = capsys

    async def call(self, *arguments: str) -> tuple[int, str, str]:
        code = await asyncio.to_thread(run, arguments)
        out, err = self._capsys.readouterr()
        return code, out, err

    async def items(self, *arguments: str) -> list[Item]:
        """What a command answers a program, which is as its schema says."""
        _code, out, err = await self.call(*arguments, "--json")
        assert out, err
        body = json.loads(out)
        check_kind(body)
        found: list[Item] = body["items"]
        return found

    async def by(self, key: str, *arguments: str) -> dict[str, Item]:
        """The same by one of their keys."""
        return {str(item[key]): item for item in await self.items(*arguments)}

    async def until_reason(self, name: str, code: str) -> Item:
        """Wait until this is why an execution is where it is."""
        reasons: list[Item] = []

        async def so() -> bool:
            reasons[:] = await self.items("why", name)
            return reasons[0]["code"] == code

        await until(so, within=30, every=0.2)
        return reasons[0]


@pytest.fixture
async def bench(
    rabbit_url: str,
    postgres_dsn: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Bench]:
    monkeypatch.setenv("LOOM_JOURNAL", postgres_dsn)
    monkeypatch.setenv("LOOM_BROKER", rabbit_url)
    with capture_logs():
        async with Fleet(rabbit_url, postgres_dsn, tmp_path) as fleet:
            bench = Bench(fleet, capsys)
            assert (await bench.call("migrate"))[0] == 0
            yield bench


async def test_a_drain_is_seen_while_it_lasts(bench: Bench, tmp_path: Path) -> None:
    """F7, F11: in `workers`, in `queues`, and in the reason of what waits and what runs."""
    fleet = bench.fleet
    await fleet.start()
    door = tmp_path / "door"
    await bench.call("start", "held", json.dumps(str(door)), "--id", "inside")
    await bench.until_reason("inside", "running")

    async def begun() -> bool:
        return (await bench.by("queue", "queues"))["default"]["running"] == 1

    await until(begun, within=30, every=0.2)
    queues = await bench.by("queue", "queues")
    assert (queues["default"]["consumers"], queues["default"]["state"]) == (1, "ok")
    assert all(queues[f"loom.{name}"]["consumers"] == 1 for name in ("start", "control", "dead"))
    [worker] = fleet.of("worker")
    worker.send(signal.SIGTERM)

    async def draining() -> bool:
        return any(item["draining"] for item in await bench.items("workers"))

    await until(draining, within=10, every=0.1)
    shown = await bench.by("role", "workers")
    assert (shown["worker"]["draining"], shown["worker"]["executions"]) == (True, 1)
    assert not shown["dispatcher"]["draining"]
    assert worker.running
    await bench.call("start", "echo", "1", "--id", "outside")
    reason = await bench.until_reason("outside", "queue_no_consumers")
    assert "where 1 message waits" in str(reason["sentence"])
    queue = (await bench.by("queue", "queues"))["default"]
    assert (queue["ready"], queue["consumers"], queue["workers"]) == (1, 0, 0)
    assert queue["state"] == "no consumer"
    [inside] = await bench.items("why", "inside")
    assert "and drains" in str(inside["sentence"])
    code, out, _ = await bench.call("doctor")
    assert (code, "fail    workers" in out, "fail    queue default" in out) == (7, True, True)
    door.touch()
    assert await worker.exit_code() == 0
    await fleet.spawn("worker").ready()
    assert (await bench.call("result", "outside", "--wait", "--timeout", "30s"))[:2] == (0, "1\n")
    assert all(not item["draining"] for item in await bench.items("workers"))


async def test_a_dead_letter_is_sent_again(bench: Bench) -> None:
    """F2: a start that came too early arrives the second time; garbage is dropped."""
    fleet = bench.fleet
    await fleet.start()
    early = StartMessage(
        items=(StartItem(id="early", flow="echo", input=msgspec.Raw(msgspec.msgpack.encode(7))),)
    )
    await fleet.journal.record_dead_letters(
        [
            DeadLetter(
                id="kept",
                queue="loom.start",
                reason="unknown-flow: not yet",
                body=wire.encode(early),
                headers={"content_type": wire.MSGPACK},
            ),
            DeadLetter(id="odd", queue="loom.token.x", reason="", body=b""),
        ]
    )
    code, out, _ = await bench.call("dlq", "requeue", "--all", "--yes")
    assert code == 4, "one of them nobody would take"
    assert "sent 1 of 2 dead letters" in out

    async def done() -> bool:
        return (await bench.call("result", "early"))[:2] == (0, "7\n")

    await until(done, within=30, every=0.2)
    assert set(await bench.by("id", "dlq")) == {"odd"}
    assert (await bench.call("dlq", "drop", "odd", "--yes"))[0] == 0

    connection = await aio_pika.connect(fleet.broker)
    async with connection, connection.channel() as channel:
        garbage = aio_pika.Message(b"\xc1 nonsense", content_type=wire.MSGPACK)
        await channel.default_exchange.publish(garbage, "loom.start")

    async def kept() -> bool:
        return bool(await bench.items("dlq"))

    await until(kept, within=30, every=0.2)
    [found] = await bench.items("dlq")
    assert (found["queue"], found["executions"]) == ("loom.start", [])
    assert "malformed" in str(found["reason"])
    assert (await bench.by("check", "doctor"))["dead letters"]["status"] == "warn"


async def test_doctor_finds_what_is_wrong_and_says_what_to_do(
    bench: Bench, rabbit_server: RabbitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J4, F10: durability, topology, alarm, address; each with a remedy, each an exit code."""
    fleet = bench.fleet
    await fleet.start(dispatchers=2, workers=2, timers=2)
    code, out, _ = await bench.call("doctor", "--strict")
    assert (code, out.splitlines()[-1]) == (0, "everything is as it should be"), out
    checks = await bench.by("check", "doctor")
    assert "quorum" in str(checks["topology"]["detail"])

    connection = await asyncpg.connect(fleet.dsn)
    name = await connection.fetchval("SELECT current_database()")
    await connection.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off')
    await connection.close()
    checks = await bench.by("check", "doctor")
    assert checks["durability"]["status"] == "fail"
    assert "set it to on" in str(checks["durability"]["remedy"])

    await rabbit_server.evaluate("vm_memory_monitor:set_vm_memory_high_watermark(0.0)")
    try:
        checks = await bench.by("check", "doctor")
        assert checks["publishing"]["status"] == "fail"
        assert "alarm" in str(checks["publishing"]["detail"])
        assert "free memory" in str(checks["publishing"]["remedy"])
    finally:
        await rabbit_server.evaluate("vm_memory_monitor:set_vm_memory_high_watermark(0.4)")

    monkeypatch.setenv("LOOM_BROKER", "amqp://u:S3cr3t@127.0.0.1:1/")
    code, out, err = await bench.call("doctor", "--timeout", "2s")
    assert (code, "fail    broker" in out, "S3cr3t" in out + err) == (5, True, False)
    code, out, err = await bench.call("queues", "--timeout", "2s")
    assert (code, "default" in out) == (5, True), "what the journal knows is there all the same"
    assert err.startswith("loom: the broker ")
    monkeypatch.delenv("LOOM_BROKER")
    code, out, _ = await bench.call("doctor")
    assert (code, "no broker is given" in out) == (7, True)


async def test_doctor_finds_a_queue_of_another_type(bench: Bench) -> None:
    """F10, C71: somebody declared it by hand, and it would lose messages."""
    connection = await aio_pika.connect(bench.fleet.broker)
    async with connection, connection.channel() as channel:
        await channel.declare_queue("loom.start", durable=True)
    checks = await bench.items("doctor")
    wrong = [each for each in checks if each["check"] == "topology" and each["status"] == "fail"]
    assert len(wrong) == 1
    assert "loom.start" in str(wrong[0]["detail"])
    assert "delete it" in str(wrong[0]["remedy"])
    async with await aio_pika.connect(bench.fleet.broker) as again, again.channel() as channel:
        await channel.declare_queue("loom.start", passive=True)  # doctor changes nothing


async def test_a_broker_that_is_away_is_the_reason(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F11: `why` and `stuck` answer from the journal, and say that the broker is away."""
    fleet = bench.fleet
    await fleet.start()
    [worker] = fleet.of("worker")
    worker.kill()
    await bench.call("start", "echo", "1", "--id", "waits")
    monkeypatch.setenv("LOOM_BROKER", "amqp://u:S3cr3t@127.0.0.1:1/")
    code, out, err = await bench.call("why", "waits", "--timeout", "2s")
    assert (code, err) == (0, "")
    assert "the broker that would carry its package cannot be reached" in out
    assert "S3cr3t" not in out
    code, out, err = await bench.call("stuck", "--check", "--timeout", "2s")
    assert (code, "broker_unreachable" in out) == (7, True)
    assert err.startswith("the broker: ")


async def test_a_step_that_hangs_is_found(bench: Bench, tmp_path: Path) -> None:
    """F11: its worker is alive, so no sweep takes it; what such steps usually take tells."""
    fleet = bench.fleet
    await fleet.start()
    for number in range(6):
        door = tmp_path / f"open-{number}"
        door.touch()
        await bench.call("start", "held", json.dumps(str(door)), "--id", f"quick-{number}")
        await bench.call("result", f"quick-{number}", "--wait", "--timeout", "30s")
    await bench.call("start", "held", json.dumps(str(tmp_path / "shut")), "--id", "hangs")
    reason = await bench.until_reason("hangs", "step_slow")
    assert "'wait_for_file' runs for" in str(reason["sentence"])
    [found] = await bench.items("stuck")
    assert (found["id"], found["code"]) == ("hangs", "step_slow")
