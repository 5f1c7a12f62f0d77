"""A client that knows AMQP and JSON or msgpack, and nothing of loom-mq, against a real fleet.

Everything it knows is in `docs/reference/messages.md`: two queue names and a few maps.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from loom_mq.testing.servers import PostgresServer, RabbitServer
from tests.support.bare_client import (
    BASKET,
    JSON,
    MIB,
    MSGPACK,
    ROOT,
    Bare,
    Fleet,
    Letters,
    Map,
    bare_client,
    control,
    plain,
    start,
    written,
)

HOW_TO = ROOT / "docs" / "how-to" / "publish-a-start-message.md"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def fleet(
    rabbit_server: RabbitServer,
    postgres_server: PostgresServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Fleet]:
    """One fleet for all tests here: a bad message must not spoil the next one either."""
    await rabbit_server.ensure_running()
    await postgres_server.ensure_running()
    fleet = Fleet(
        await rabbit_server.create_vhost("bare"),
        await postgres_server.create_database("bare"),
        tmp_path_factory.mktemp("bare"),
    )
    fleet.start("dispatcher")
    fleet.start("worker", LOOM_APP="tests.support.bare_flows,examples/hello.py")
    fleet.start("timer")
    try:
        await fleet.ready()
        yield fleet
    finally:
        codes = await fleet.stop()
    assert codes == [0, 0, 0]
    assert fleet.complaints == []
    await rabbit_server.delete_vhost("bare")
    await postgres_server.drop_database("bare")


@pytest.fixture
async def client(fleet: Fleet) -> AsyncIterator[Bare]:
    async with bare_client(fleet.broker) as client:
        yield client


@pytest.mark.parametrize("content_type", [JSON, MSGPACK, ""])
async def test_a_start_in_any_language(client: Bare, content_type: str) -> None:
    """F2: JSON, msgpack, or msgpack under no name; admission and outcome in plain maps."""
    name = f"a/{content_type}"
    body = written(start(name), content_type)
    await client.publish("loom.start", body, content_type, "q1")
    admitted = await client.reply("q1", "admitted")
    assert (admitted["id"], admitted["created"], admitted["flow"]) == (name, True, "bill")
    assert (admitted["version"], admitted["queue"]) == ("1", "default")
    assert admitted["status"] == "pending"
    outcome = await client.reply("q1", "outcome")
    assert (outcome["id"], outcome["status"]) == (name, "completed")
    assert plain(outcome["result"]) == {"owner": "ann", "total": "10.00", "approved": False}

    await client.publish("loom.start", body, content_type, "q2")
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


async def test_direct_reply_to(fleet: Fleet) -> None:
    """F2: RabbitMQ's own reply address needs no queue at all."""
    async with bare_client(fleet.broker, direct=True) as client:
        await client.ask(start("d", value=BASKET), "d")
        assert (await client.reply("d", "outcome"))["status"] == "completed"


async def test_bad_messages_are_answered_and_kept(client: Bare, fleet: Fleet) -> None:
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
        ("unknown-message-version", JSON, written({**start("new"), "v": 3}, JSON)),
        ("unknown-message-version", MSGPACK, written({"v": 9, "type": "start"}, MSGPACK)),
        ("unknown-flow", JSON, written(start("lost", flow="nobody"), JSON)),
        ("unknown-flow", JSON, written(start("lost", version="7"), JSON)),
        ("invalid-id", JSON, written(start(""), JSON)),
        ("invalid-id", MSGPACK, written(start("é" * 128), MSGPACK)),
        ("payload-too-large", JSON, written(large, JSON)),
        ("payload-too-large", MSGPACK, written(large, MSGPACK)),
    ]
    async with Letters.of(fleet) as letters_of:
        for number, (code, content_type, body) in enumerate(bad):
            await client.publish("loom.start", body, content_type, f"bad {number}")
            error = await client.reply(f"bad {number}", "error")
            assert error["code"] == code, error
            assert error["message"]
        letters = await letters_of(len(bad))
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


async def test_nobody_to_answer(client: Bare, fleet: Fleet) -> None:
    """F2: without a reply address a refused start is kept all the same."""
    async with Letters.of(fleet) as letters_of:
        for name, body in (("a", b"rubbish"), ("b", written(start("b", flow="nobody"), JSON))):
            await client.publish("loom.start", body, JSON, name, answer=False)
        letters = await letters_of(2)
    assert {reason.split(":")[0] for _q, reason, _b in letters} == {
        "malformed-message",
        "unknown-flow",
    }
    await client.publish("loom.start", written(start("c"), JSON), JSON, "c", answer=False)
    assert (await watched(client, "c"))["status"] == "completed"


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


async def watched(client: Bare, name: str) -> Map:
    """The outcome of an execution whose start may still be on its queue."""
    for turn in range(200):
        await client.ask(control("watch", name), f"watch {turn}")
        first = await client.reply(f"watch {turn}", "state", "outcome", "error")
        if first["kind"] == "state":
            return await client.reply(f"watch {turn}", "outcome")
        if first["kind"] == "outcome":
            return first
        assert first["code"] == "unknown-execution"
        await asyncio.sleep(0.02)
    raise AssertionError(f"{name} was not admitted")


async def until_parked(client: Bare, name: str) -> None:
    """Ask for the state until the execution waits at a gate."""
    for turn in range(200):
        await client.ask(control("state", name), f"{name} {turn}")
        state = await client.reply(f"{name} {turn}", "state", "error")
        if state.get("status") == "suspended":
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{name} did not park")


async def test_the_programs_of_the_how_to_page(fleet: Fleet) -> None:
    """The page's programs do what the page says."""
    programs = programs_of(HOW_TO)
    assert len(programs) == 2
    for program in programs:
        assert "parcel 1" in await output_of(program, fleet.broker)


async def test_the_programs_of_the_readme(fleet: Fleet, client: Bare) -> None:
    """The client's program is the page's; the bare one starts what it says."""
    _hello, with_client, bare = programs_of(ROOT / "README.md")
    assert with_client == programs_of(HOW_TO)[0]
    await output_of(bare, fleet.broker)
    outcome = await watched(client, "order-18")
    assert (outcome["status"], plain(outcome["result"])) == ("completed", "parcel 1")


def programs_of(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


async def output_of(program: str, broker: str) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", program),
        cwd=ROOT,
        env=dict(os.environ) | {"LOOM_BROKER": broker},
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        said, _ = await process.communicate()
    assert process.returncode == 0
    return said.decode()
