"""Schedules among services that race and die, damaged rows, and messages of any kind (F9)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest
from msgspec.structs import replace

import loom_mq as loom
from loom_mq.broker import topology
from loom_mq.broker.protocol import Broker, Delivery, Outgoing
from loom_mq.client.schedules import schedule_fields
from loom_mq.codec import wire
from loom_mq.engine.outbox import Outbox
from loom_mq.engine.schedule_rows import opened
from loom_mq.engine.schedules import ScheduleRunner
from loom_mq.errors import BrokerError, InvalidScheduleError, UnknownMessageVersionError
from loom_mq.model.execution import ExecutionKey
from loom_mq.model.messages import (
    SCHEDULES_VERSION,
    ControlMessage,
    ReplyItem,
    ReplyMessage,
    StartItem,
)
from loom_mq.model.schedules import ScheduleItem, ScheduleKey, ScheduleOp
from loom_mq.observe.metrics import Metrics
from loom_mq.testing import TestEnvironment
from tests.support.house import until
from tests.support.scheduled import HOUR, MINUTE, NOON, moments, report, runs


@pytest.fixture
async def env() -> AsyncIterator[TestEnvironment]:
    async with TestEnvironment([report], starts_at=NOON) as environment:
        yield environment


# ---- deaths, races and damage -------------------------------------------------------------------


class Mute(Outbox):
    """Of somebody who dies before a start is sent."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker, Metrics())
        self.starts.send = self._never  # type: ignore[method-assign]  # its fault

    def _never(self, queue: str, item: StartItem) -> asyncio.Future[BrokerError | None]:
        return asyncio.get_running_loop().create_future()


async def runner(
    env: TestEnvironment, make: Callable[[Broker], Outbox] | None = None
) -> ScheduleRunner:
    broker = await env.fleet.hub.connection("another timer service").__aenter__()
    return ScheduleRunner(
        env.fleet.journal,
        broker,
        Outbox(broker, Metrics()) if make is None else make(broker),
        limit=100,
        hold=0.0,
        metrics=Metrics(),
    )


async def test_f9_many_timer_services_start_a_run_once(env: TestEnvironment) -> None:
    """F9: all of them look at the very same row at the same time; one does it."""
    await env.client.schedules.create("s", report, "x", every=HOUR)
    await env.skip(MINUTE)
    await env.fleet.timers.drain(5)
    for hour in range(1, 4):
        env.fleet.clock.move_to(int((NOON + hour * HOUR).timestamp() * 10**6))
        others = [await runner(env) for _ in range(5)]
        await asyncio.gather(*(each.once() for each in others))
        await env.settle()
        assert len(await runs(env)) == hour
    starts = [row for row in await runs(env) if row.attempt == 1]
    assert len(starts) == 3
    assert await env.fleet.journal.dead_letters() == []


async def test_f9_a_decision_outlives_the_service_that_made_it(env: TestEnvironment) -> None:
    """F9: it dies between the decision and the start: a later look sends the start."""
    await env.client.schedules.create("s", report, "x", every=HOUR)
    await env.skip(MINUTE)
    await env.fleet.timers.drain(5)
    env.fleet.clock.move_to(int((NOON + HOUR).timestamp() * 10**6))
    doomed = await runner(env, Mute)
    look = asyncio.ensure_future(doomed.once())

    async def decided() -> bool:
        row = await env.fleet.journal.schedule(ScheduleKey("default", "s"))
        return row is not None and bool(opened(row).state.running)

    await until(decided)
    look.cancel()
    await (await runner(env)).once()
    await env.settle()
    assert await runs(env) == []
    env.fleet.clock.move_to(env.fleet.clock.now() + 5 * 10**6)
    await (await runner(env)).once()
    await env.settle()
    assert await moments(env) == ["03-28T13:00"]


async def test_f9_one_that_cannot_be_read_strands_no_other_and_can_be_seen(
    env: TestEnvironment,
) -> None:
    """F9: bytes that are damaged, or a zone that this host does not know."""
    schedules = env.client.schedules
    journal = env.fleet.journal
    for name in ("damaged", "good", "zoned"):
        await schedules.create(name, report, "x", cron="0 * * * *", zone="Europe/Berlin")
    await env.skip(MINUTE)
    row = await journal.schedule(ScheduleKey("default", "damaged"))
    assert row is not None
    await journal.put_schedule(replace(row, definition=b"\xc1"), row.revision)
    row = await journal.schedule(ScheduleKey("default", "zoned"))
    assert row is not None
    definition = row.definition.replace(b"Europe/Berlin", b"Europe/Berl1n")
    await journal.put_schedule(replace(row, definition=definition), row.revision)
    await env.skip(3 * HOUR)
    assert len(await runs(env, "good")) == 3
    assert await runs(env, "damaged") == await runs(env, "zoned") == []
    infos = {info.id: info for info in await schedules.list()}
    assert "cannot be read" in infos["damaged"].trouble
    assert infos["damaged"].schedule is None
    assert "no time zone 'Europe/Berl1n'" in infos["zoned"].trouble
    with pytest.raises(InvalidScheduleError, match="cannot be read"):
        await schedules.pause("damaged")
    assert await schedules.delete("damaged")
    await schedules.update("zoned", zone="Europe/Berlin")
    await env.skip(HOUR)
    assert len(await runs(env, "zoned")) == 1
    assert (await schedules.get("zoned")).trouble == ""


# ---- messages ---------------------------------------------------------------------------------


async def test_f9_a_request_that_is_delivered_again_counts_once(env: TestEnvironment) -> None:
    """F2, F9: every request has a name; the same name is the same request."""
    connection = env.fleet.hub.connection("raw")
    await connection.__aenter__()
    replies: list[ReplyItem] = []
    queue = topology.reply("raw")

    def take(delivery: Delivery) -> None:
        replies.extend(wire.decode(ReplyMessage, delivery.body).items)
        delivery.ack()

    await connection.consume(queue, take, prefetch=10)

    async def ask(item: ScheduleItem) -> ReplyItem:
        answered = len(replies)
        body = wire.encode(ControlMessage(items=(), schedules=(item,), v=SCHEDULES_VERSION))
        outgoing = Outgoing(
            queue=topology.CONTROL.name, body=body, type="control", reply_to=queue.name
        )
        await connection.publish([outgoing])

        async def there() -> bool:
            return len(replies) > answered

        await until(there)
        return replies[-1]

    fields = schedule_fields("report", b"\x00\xa1x", {"every": 3600})
    create = ScheduleItem(op=ScheduleOp.CREATE, id="s", fields=fields, correlation="c")
    trigger = ScheduleItem(op=ScheduleOp.TRIGGER, id="s", correlation="t")
    for item in (create, trigger):
        first, second = await ask(item), await ask(item)
        assert first.kind.value == second.kind.value == "schedule"
        assert (first.run, first.correlation) == (second.run, second.correlation)
    await env.skip(MINUTE)
    assert len(await runs(env)) == 1


async def test_f9_a_request_in_json_works_and_an_older_dispatcher_would_refuse_it(
    env: TestEnvironment,
) -> None:
    """F2: any language; and no request is ever left out without a word."""
    connection = env.fleet.hub.connection("json")
    await connection.__aenter__()
    message = {
        "v": 2,
        "type": "control",
        "items": [],
        "schedules": [
            {
                "op": "create",
                "id": "s",
                "fields": {"flow": "report", "input": "x", "cron": ["0 * * * *"]},
            }
        ],
    }
    body = msgspec.json.encode(message)
    outgoing = Outgoing(
        queue=topology.CONTROL.name, body=body, type="control", content_type=wire.JSON
    )
    await connection.publish([outgoing])

    async def there() -> bool:
        return bool(await env.client.schedules.list())

    await until(there)
    await env.skip(HOUR)
    assert await moments(env) == ["03-28T13:00"]
    assert await env.run("s@2026-03-28T13:00:00Z", report).result() == "x 2026-03-28T13:00:00Z"
    message["v"] = 3
    with pytest.raises(UnknownMessageVersionError):
        wire.decode(ControlMessage, msgspec.json.encode(message), wire.JSON)


async def test_f9_schedules_of_one_tenant_are_nobody_elses(env: TestEnvironment) -> None:
    """J9: the same id in two tenants is two schedules."""
    other = loom.Client(env.fleet.hub.connection("other"), tenant="other")
    async with other:
        await other.schedules.create("s", report, "theirs", every=HOUR)
        await env.client.schedules.create("s", report, "ours", every=2 * HOUR)
        await env.skip(2 * HOUR)
        assert [info.tenant for info in await other.schedules.list()] == ["other"]
        assert await other.schedules.delete("s")
        assert (await env.client.schedules.get("s")).runs == 1
    key = ExecutionKey("other", "s@2026-03-28T13:00:00Z")
    [row] = await env.fleet.journal.get([key])
    assert row is not None
