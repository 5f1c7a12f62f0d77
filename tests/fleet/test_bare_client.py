"""A client that knows AMQP and JSON or msgpack, and nothing of loom-mq, against a real fleet.

Everything it knows is in `docs/reference/messages.md`: two queue names and a few maps.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aio_pika
import aio_pika.abc
import asyncpg
import msgspec
import pytest

ROOT = Path(__file__).parents[2]
HOW_TO = ROOT / "docs" / "how-to" / "publish-a-start-message.md"

JSON = "application/json"
MSGPACK = "application/msgpack"
BASKET = {"owner": "ann", "prices": ["9.90", "0.10"]}
MIB = 1024 * 1024

Map = dict[str, Any]


def written(message: object, content_type: str) -> bytes:
    """As any library writes it."""
    if content_type == JSON:
        return json.dumps(message).encode()
    return msgspec.msgpack.encode(message)


def start(name: str, flow: str = "bill", value: object = BASKET, **more: object) -> Map:
    item = {"id": name, "flow": flow, "input": value, **more}
    return {"v": 1, "type": "start", "items": [item]}


def control(op: str, name: str, **more: object) -> Map:
    return {"v": 1, "type": "control", "items": [{"op": op, "id": name, **more}]}


def plain(stored: bytes) -> object:
    """A stored value, as the page of messages tells to read it."""
    if stored[0] == 3:
        return json.loads(stored[1:])
    assert stored[0] in (0, 1, 2)
    return msgspec.msgpack.decode(stored[1:])


class Bare:
    """One channel, one reply address, and the replies that came."""

    def __init__(self, channel: aio_pika.abc.AbstractChannel, address: str) -> None:
        self.channel = channel
        self.address = address
        self._arrived: asyncio.Queue[Map] = asyncio.Queue()
        self._kept: list[Map] = []

    async def receive(self, message: aio_pika.abc.AbstractIncomingMessage) -> None:
        assert (message.content_type, message.type) == (MSGPACK, "reply")
        body = msgspec.msgpack.decode(message.body)
        assert (body["v"], body["type"]) == (1, "reply")
        for item in body["items"]:
            self._arrived.put_nowait(item)

    async def publish(
        self, queue: str, body: bytes, content_type: str, name: str, *, answer: bool = True
    ) -> None:
        message = aio_pika.Message(
            body,
            content_type=content_type,
            correlation_id=name,
            reply_to=self.address if answer else None,
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        )
        await self.channel.default_exchange.publish(message, queue, mandatory=True, timeout=10)

    async def ask(self, message: Map, name: str) -> None:
        await self.publish(f"loom.{message['type']}", written(message, JSON), JSON, name)

    async def reply(self, correlation: str, kind: str) -> Map:
        """The next reply of a kind to a request."""
        async with asyncio.timeout(30):
            while True:
                for item in self._kept:
                    if (item.get("correlation"), item["kind"]) == (correlation, kind):
                        self._kept.remove(item)
                        return item
                self._kept.append(await self._arrived.get())


class Fleet:
    """A dispatcher, a worker and a timer service, and what they wrote into their logs."""

    def __init__(self) -> None:
        self.log: list[Map] = []

    @asynccontextmanager
    async def service(self, role: str, **settings: str) -> AsyncIterator[None]:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("LOOM_")}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", f"services.{role}"),
            cwd=ROOT,
            env=environ | settings,
            stderr=asyncio.subprocess.PIPE,
            limit=MIB,
        )
        reading = None
        try:
            async with asyncio.timeout(60):
                await self._read(process, until="service.ready")
            reading = asyncio.create_task(self._read(process))
            yield
            process.terminate()
            async with asyncio.timeout(20):
                assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            if reading is not None:
                await reading

    async def _read(self, process: asyncio.subprocess.Process, until: str = "") -> None:
        assert process.stderr is not None
        while line := await process.stderr.readline():
            fields = json.loads(line) if line.startswith(b"{") else {"event": line.decode()}
            self.log.append(fields)
            if fields["event"] == until:
                return
        assert not until, self.log

    @property
    def complaints(self) -> list[Map]:
        """What went wrong inside, as opposed to what a client did wrong."""
        ours = ("message.rejected", "package.dead_lettered")
        bad = ("error", "critical")
        return [
            line
            for line in self.log
            if "Traceback" in str(line) or (line.get("level") in bad and line["event"] not in ours)
        ]


@asynccontextmanager
async def bare_client(url: str, *, direct: bool = False) -> AsyncIterator[Bare]:
    connection = await aio_pika.connect(url, timeout=10)
    async with connection:
        channel = await connection.channel(on_return_raises=True)
        if direct:
            queue = await channel.get_queue("amq.rabbitmq.reply-to", ensure=False)
        else:
            queue = await channel.declare_queue(exclusive=True)
        client = Bare(channel, queue.name)
        await queue.consume(client.receive, no_ack=True)
        yield client


@pytest.fixture
async def fleet(rabbit_url: str, postgres_dsn: str) -> AsyncIterator[Fleet]:
    settings = {
        "LOOM_BROKER": rabbit_url,
        "LOOM_JOURNAL": postgres_dsn,
        "LOOM_DRAIN": "10",
    }
    app = "tests.support.bare_flows,examples/hello.py"
    fleet = Fleet()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(fleet.service("dispatcher", **settings))
        await stack.enter_async_context(fleet.service("worker", LOOM_APP=app, **settings))
        await stack.enter_async_context(fleet.service("timer", **settings))
        yield fleet
    assert fleet.complaints == []


@pytest.fixture
async def client(rabbit_url: str, fleet: Fleet) -> AsyncIterator[Bare]:
    async with bare_client(rabbit_url) as client:
        yield client


async def dead_letters(dsn: str, count: int) -> list[tuple[str, str, bytes]]:
    """Queue, reason and body of the dead letters, once there are so many."""
    connection = await asyncpg.connect(dsn)
    try:
        async with asyncio.timeout(30):
            while True:
                rows = await connection.fetch(
                    "SELECT queue, reason, body FROM loom.dead_letters ORDER BY position"
                )
                if len(rows) >= count:
                    return [(row["queue"], row["reason"], row["body"]) for row in rows]
                await asyncio.sleep(0.05)
    finally:
        await connection.close()


@pytest.mark.parametrize("content_type", [JSON, MSGPACK, ""])
async def test_a_start_in_any_language(client: Bare, content_type: str) -> None:
    """F2: JSON, msgpack, or msgpack under no name; admission and outcome in plain maps."""
    await client.publish("loom.start", written(start("a/1"), content_type), content_type, "q1")
    admitted = await client.reply("q1", "admitted")
    assert (admitted["id"], admitted["created"], admitted["flow"]) == ("a/1", True, "bill")
    assert (admitted["version"], admitted["queue"]) == ("1", "default")
    assert admitted["status"] == "pending"
    outcome = await client.reply("q1", "outcome")
    assert (outcome["id"], outcome["status"]) == ("a/1", "completed")
    assert plain(outcome["result"]) == {"owner": "ann", "total": "10.00", "approved": False}

    await client.publish("loom.start", written(start("a/1"), content_type), content_type, "q2")
    assert (await client.reply("q2", "admitted"))["created"] is False
    assert (await client.reply("q2", "outcome"))["result"] == outcome["result"]


async def test_many_starts_in_one_message(client: Bare) -> None:
    """F2: each item has its own answer, one refused item touches no other."""
    message = start("m0", correlation="m0")
    message["items"] = [
        *({"id": f"m{n}", "flow": "bill", "input": BASKET, "correlation": f"m{n}"} for n in (1, 2)),
        {"id": "m3", "flow": "nobody", "correlation": "m3"},
        {"id": "m4", "flow": "untyped", "correlation": "m4", "notify": "result"},
    ]
    await client.ask(message, "all")
    for name in ("m1", "m2", "m4"):
        assert (await client.reply(name, "outcome"))["status"] == "completed"
    assert (await client.reply("m3", "error"))["code"] == "unknown-flow"


async def test_direct_reply_to(rabbit_url: str, fleet: Fleet) -> None:
    """F2: RabbitMQ's own reply address needs no queue at all."""
    async with bare_client(rabbit_url, direct=True) as client:
        await client.ask(start("d", value=BASKET), "d")
        assert (await client.reply("d", "outcome"))["status"] == "completed"


async def test_bad_messages_are_answered_and_kept(
    client: Bare, fleet: Fleet, postgres_dsn: str
) -> None:
    """C37, C41, F2: a typed error, a dead letter with its reason, and the fleet goes on."""
    large = start("large", value={"owner": "x" * MIB, "prices": []})
    bad = [
        ("malformed-message", JSON, b"\xff\xfe\x00 no message of any kind"),
        ("malformed-message", MSGPACK, b"\xc1"),
        ("malformed-message", MSGPACK, b""),
        ("malformed-message", JSON, b'{"v": 1, "type": "start", "items": [{"id": "cut", "fl'),
        ("malformed-message", MSGPACK, written(start("cut"), MSGPACK)[:-9]),
        ("malformed-message", JSON, written(start("nameless", flow="f", notify="loudly"), JSON)),
        ("malformed-message", JSON, written(control("state", "a"), JSON)),
        ("malformed-message", JSON, b"[" * 100_000),
        ("malformed-message", MSGPACK, b"\x91" * 100_000),
        ("unknown-message-version", JSON, written({**start("new"), "v": 2}, JSON)),
        ("unknown-message-version", MSGPACK, written({"v": 9, "type": "start"}, MSGPACK)),
        ("unknown-flow", JSON, written(start("lost", flow="nobody"), JSON)),
        ("unknown-flow", JSON, written(start("lost", version="7"), JSON)),
        ("invalid-id", JSON, written(start(""), JSON)),
        ("invalid-id", MSGPACK, written(start("é" * 128), MSGPACK)),
        ("payload-too-large", JSON, written(large, JSON)),
        ("payload-too-large", MSGPACK, written(large, MSGPACK)),
    ]
    for number, (code, content_type, body) in enumerate(bad):
        await client.publish("loom.start", body, content_type, f"bad {number}")
        error = await client.reply(f"bad {number}", "error")
        assert error["code"] == code, error
        assert error["message"]
    letters = await dead_letters(postgres_dsn, len(bad))
    assert len(letters) == len(bad)
    assert {queue for queue, _reason, _body in letters} == {"loom.start"}
    # a letter that comes by way of the broker may be recorded after a later one
    assert sorted(reason.split(":")[0] for _queue, reason, _body in letters) == sorted(
        code for code, _type, _body in bad
    )
    unread = [body for code, _type, body in bad if code == "malformed-message"]
    assert all(any(body == kept for _q, _r, kept in letters) for body in unread)

    await client.ask(start("good"), "good")
    assert (await client.reply("good", "outcome"))["status"] == "completed"


async def test_nobody_to_answer(client: Bare, fleet: Fleet, postgres_dsn: str) -> None:
    """F2: without a reply address a refused start is kept all the same."""
    for name, body in (("a", b"rubbish"), ("b", written(start("b", flow="nobody"), JSON))):
        await client.publish("loom.start", body, JSON, name, answer=False)
    letters = await dead_letters(postgres_dsn, 2)
    assert {reason.split(":")[0] for _q, reason, _b in letters} == {
        "malformed-message",
        "unknown-flow",
    }
    await client.publish("loom.start", written(start("c"), JSON), JSON, "c", answer=False)
    await client.ask(control("watch", "c"), "w")
    assert (await client.reply("w", "outcome"))["status"] == "completed"


async def test_an_input_that_does_not_fit(client: Bare) -> None:
    """F2: admitted, for only a worker knows the type; then the execution ends failed."""
    await client.ask(start("f", value={"owner": 7}), "f")
    outcome = await client.reply("f", "outcome")
    assert outcome["status"] == "failed"
    kind, module, message, traceback, causes, channel, payload = outcome["failure"]
    assert (kind, module, channel, payload) == ("CodecError", "loom_mq.errors", None, None)
    assert "$.owner" in message
    assert isinstance(traceback, str)
    assert isinstance(causes, list)


async def test_a_start_that_exists_with_another_input(client: Bare) -> None:
    """F2, K16: one id, one input."""
    await client.ask(start("s"), "s1")
    await client.reply("s1", "outcome")
    await client.ask(start("s", value={**BASKET, "owner": "bob"}), "s2")
    assert (await client.reply("s2", "error"))["code"] == "start-conflict"


async def test_everything_else_one_may_ask(client: Bare) -> None:
    """K7, K13: state, watch, resume and cancel in JSON."""
    await client.ask(start("g", flow="bill-by-hand", notify="nothing"), "start")
    await until_parked(client, "g")

    await client.ask(control("watch", "g"), "watch")
    assert (await client.reply("watch", "state"))["gates"] == ["Approval"]
    await client.ask(control("resume", "g", gate="Approval", input="perhaps"), "wrong")
    assert (await client.reply("wrong", "stored"))["gates"] == ["Approval"]
    refused = await client.reply("wrong", "error")
    assert (refused["code"], refused["reason"]) == ("resume-refused", "wrong-type")
    await client.ask(control("resume", "g", gate="Approval", input=True, item_id="1"), "right")
    assert (await client.reply("right", "stored"))["id"] == "g"
    assert (await client.reply("right", "taken"))["id"] == "g"
    outcome = await client.reply("watch", "outcome")
    assert plain(outcome["result"]) == {"owner": "ann", "total": "10.00", "approved": True}

    await client.ask(control("resume", "g", gate="Approval", input=True), "late")
    assert (await client.reply("late", "error"))["reason"] == "terminal"
    await client.ask(control("cancel", "g"), "too late")
    assert (await client.reply("too late", "error"))["code"] == "execution-ended"
    await client.ask(control("state", "nobody"), "nobody")
    assert (await client.reply("nobody", "error"))["code"] == "unknown-execution"

    await client.ask(start("h", flow="bill-by-hand"), "h")
    await until_parked(client, "h")
    await client.ask(control("cancel", "h", reason="changed my mind", item_id="c"), "cancel")
    assert (await client.reply("cancel", "stored"))["id"] == "h"
    ended = await client.reply("h", "outcome")
    assert (ended["status"], ended["reason"]) == ("cancelled", "changed my mind")


async def until_parked(client: Bare, name: str) -> None:
    """Ask for the state until the execution waits at a gate."""
    for turn in range(200):
        await client.ask(control("state", name), f"{name} {turn}")
        state = await client.reply(f"{name} {turn}", "state")
        if state["status"] == "suspended":
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{name} did not park")


async def test_the_programs_of_the_how_to_page(rabbit_url: str, fleet: Fleet) -> None:
    """The page's programs do what the page says."""
    programs = programs_of(HOW_TO)
    assert len(programs) == 2
    for program in programs:
        assert "parcel 1" in await output_of(program, rabbit_url)


async def test_the_programs_of_the_readme(rabbit_url: str, client: Bare) -> None:
    """The client's program is the page's; the bare one starts what it says."""
    _hello, with_client, bare = programs_of(ROOT / "README.md")
    assert with_client == programs_of(HOW_TO)[0]
    await output_of(bare, rabbit_url)
    await client.ask(control("watch", "order-18"), "w")
    outcome = await client.reply("w", "outcome")
    assert (outcome["status"], plain(outcome["result"])) == ("completed", "parcel 1")


def programs_of(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


async def output_of(program: str, rabbit_url: str) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", program),
        cwd=ROOT,
        env=dict(os.environ) | {"LOOM_BROKER": rabbit_url},
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        said, _ = await process.communicate()
    assert process.returncode == 0
    return said.decode()
