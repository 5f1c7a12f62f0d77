"""An AMQP client that knows two queue names and a few maps, and a fleet for it to talk to."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aio_pika
import aio_pika.abc
import asyncpg
import msgspec

ROOT = Path(__file__).parents[2]

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

    async def reply(self, correlation: str, *kinds: str) -> Map:
        """The next reply of such a kind to a request."""
        async with asyncio.timeout(30):
            while True:
                for item in self._kept:
                    if item.get("correlation") == correlation and item["kind"] in kinds:
                        self._kept.remove(item)
                        return item
                self._kept.append(await self._arrived.get())


class Fleet:
    """A dispatcher, a worker and a timer service, and what they wrote into their logs."""

    def __init__(self, broker: str, journal: str, folder: Path) -> None:
        self.broker = broker
        self.journal = journal
        self._folder = folder
        self._services: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, role: str, **settings: str) -> None:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("LOOM_")} | {
            "LOOM_BROKER": self.broker,
            "LOOM_JOURNAL": self.journal,
            "LOOM_DRAIN": "10",
            **settings,
        }
        with self._log(role).open("wb") as log:
            command = [sys.executable, "-m", f"services.{role}"]
            process = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=log, stderr=log)
        self._services[role] = process

    async def ready(self) -> None:
        async with asyncio.timeout(90):
            for role, process in self._services.items():
                while not any(line["event"] == "service.ready" for line in self.lines(role)):
                    assert process.poll() is None, self._log(role).read_text()
                    await asyncio.sleep(0.05)

    async def stop(self) -> list[int]:
        """End all of them in good order; their exit codes."""
        for process in self._services.values():
            process.terminate()
        try:
            return [process.wait(30) for process in self._services.values()]
        finally:
            for process in self._services.values():
                process.kill()

    def lines(self, role: str) -> list[Map]:
        """What a service has logged."""
        lines = self._log(role).read_text(errors="replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    @property
    def complaints(self) -> list[str]:
        """What went wrong inside, as opposed to what a client did wrong."""
        ours = ("message.rejected", "package.dead_lettered")
        return [
            str(line)
            for role in self._services
            for line in self.lines(role)
            if line.get("level") in ("error", "critical") and line["event"] not in ours
        ] + [role for role in self._services if "Traceback" in self._log(role).read_text()]

    def _log(self, role: str) -> Path:
        return self._folder / f"{role}.log"


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


class Letters:
    """The dead letters that come after this was made."""

    def __init__(self, connection: asyncpg.Connection, before: int) -> None:
        self._connection = connection
        self._before = before

    @classmethod
    @asynccontextmanager
    async def of(cls, fleet: Fleet) -> AsyncIterator[Letters]:
        connection = await asyncpg.connect(fleet.journal)
        try:
            before = await connection.fetchval("SELECT count(*) FROM loom.dead_letters")
            yield cls(connection, before)
        finally:
            await connection.close()

    async def __call__(self, count: int) -> list[tuple[str, str, bytes]]:
        """Queue, reason and body of each, once there are so many."""
        async with asyncio.timeout(30):
            while True:
                rows = await self._connection.fetch(
                    "SELECT queue, reason, body FROM loom.dead_letters ORDER BY position OFFSET $1",
                    self._before,
                )
                if len(rows) >= count:
                    return [(row["queue"], row["reason"], row["body"]) for row in rows]
                await asyncio.sleep(0.05)
