"""K16: starts under an id that is taken, and starts that are delivered again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import pytest

import loom_mq as loom
from loom_mq import StartPolicy
from loom_mq.broker import topology
from loom_mq.broker.memory import MemoryBroker
from loom_mq.broker.protocol import Broker, Delivery, Outgoing
from loom_mq.client.switchboard import Switchboard
from loom_mq.clock import JournalClock
from loom_mq.codec import wire
from loom_mq.engine.outcome import outcome_reply
from loom_mq.engine.succession import TRIES, Succession, digest_of, kept_as
from loom_mq.errors import BrokerUnreachableError, InputError, WaitTimeoutError
from loom_mq.ids import MAX_ID_BYTES, RandomIds, check_id
from loom_mq.journal.memory import MemoryJournal
from loom_mq.journal.protocol import Admission, AdmitVerdict, Journal, ListQuery
from loom_mq.journal.sqlite import SqliteJournal
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey, ExecutionRow, Status
from loom_mq.model.messages import ReplyItem, ReplyKind, ReplyMessage, StartItem, StartMessage
from tests.support.house import House, until

ran: list[int] = []
keys: list[str] = []
EVERY = tuple(StartPolicy)
ANEW = (StartPolicy.AFTER_CLOSE, StartPolicy.AFTER_FAILURE)


@loom.step(retry=loom.NO_RETRY)
async def work(number: int) -> int:
    ran.append(number)
    keys.append(loom.current_step().idempotency_key)
    if number < 0:
        raise ValueError("negative")
    return number * 10


@loom.flow
async def job(ctx: loom.Context, number: int) -> int:
    if number == 0:
        await ctx.suspend(on="Go", type=int)
    return await ctx.run(work, number)


@pytest.fixture(params=["memory", "sqlite"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    ran.clear()
    keys.clear()
    journal: Journal = MemoryJournal(JournalClock())
    if request.param == "sqlite":
        journal = SqliteJournal(tmp_path / "loom.sqlite")
    async with House([job], journal=journal) as house:
        yield house


class Post:
    """A client that sends what it likes as often as it likes, under names of its own."""

    def __init__(self, house: House) -> None:
        self._broker: Broker = house.hub.connection()
        self._queue = topology.reply("post")
        self.replies: list[ReplyItem] = []

    async def __aenter__(self) -> Self:
        await self._broker.__aenter__()
        await self._broker.consume(self._queue, self._take, prefetch=50)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._broker.__aexit__(kind, error, trace)

    def _take(self, delivery: Delivery) -> None:
        self.replies.extend(wire.decode(ReplyMessage, delivery.body, delivery.content_type).items)
        delivery.ack()

    async def send(self, *items: StartItem) -> None:
        """Publish one message; sent again it is the same message."""
        await self._broker.publish(
            [
                Outgoing(
                    queue=topology.START.name,
                    body=wire.encode(StartMessage(items=items)),
                    type="start",
                    reply_to=self._queue.name,
                )
            ]
        )

    async def ask(self, item: StartItem, until_: ReplyKind = ReplyKind.OUTCOME) -> ReplyItem:
        """Publish it, and return the next reply of a kind, or the refusal."""
        seen = len(self.replies)

        async def told() -> bool:
            return any(each.kind in (until_, ReplyKind.ERROR) for each in self.replies[seen:])

        await self.send(item)
        await until(told)
        return self.replies[-1]


def start(
    number: int,
    request: str,
    policy: StartPolicy = StartPolicy.AFTER_CLOSE,
    execution_id: str = "job",
) -> StartItem:
    return StartItem(
        id=execution_id,
        flow="job",
        input=msgspec.Raw(msgspec.msgpack.encode(number)),
        policy=policy,
        correlation=request,
    )


async def runs(house: House) -> list[ExecutionRow]:
    """All executions, oldest first."""
    return (await house.journal.find(ListQuery()))[::-1]


async def ended(house: House, number: int) -> None:
    """Have an execution `job` that has ended."""
    handle = await house.client.start(job, number, id="job")

    async def over() -> bool:
        return (await handle.state()).status.terminal

    await until(over)


@pytest.mark.parametrize("policy", EVERY)
async def test_an_id_that_is_free_starts(house: House, policy: StartPolicy) -> None:
    """K16, F2: whatever the policy."""
    assert await house.client.execute(job, 3, id="job", policy=policy, timeout=20) == 30
    handle = await house.client.start(job, 4, id="other", policy=policy)
    assert await handle.result(timeout=20) == 40
    assert len(await runs(house)) == 2


@pytest.mark.parametrize("policy", ANEW)
async def test_what_failed_makes_way(house: House, policy: StartPolicy) -> None:
    """K16: the one before is kept beside it, with its log and its outcome."""
    await ended(house, -1)
    old = await house.row("job")
    assert await house.client.execute(job, 5, id="job", policy=policy, timeout=20) == 50
    kept, new = await runs(house)
    assert kept.execution_id.startswith("job~")
    assert kept == msgspec.structs.replace(old, execution_id=kept.execution_id)
    assert (new.execution_id, new.status) == ("job", Status.COMPLETED)
    assert ran == [-1, 5]
    with pytest.raises(loom.ExecutionFailedError, match="negative"):
        await house.client.handle(kept.execution_id, job).result(timeout=20)
    assert await house.client.handle("job", job).result(timeout=20) == 50


async def test_what_completed_makes_way_after_close_alone(house: House) -> None:
    """K16: after a failure only failures make way; the same start finds what there is."""
    await ended(house, 1)
    after_failure = StartPolicy.AFTER_FAILURE
    assert await house.client.execute(job, 1, id="job", policy=after_failure, timeout=20) == 10
    with pytest.raises(loom.StartConflictError, match="does not replace it, since it is completed"):
        await house.client.execute(job, 2, id="job", policy=after_failure, timeout=20)
    assert ran == [1]
    for number in (1, 2, 2):
        after_close = StartPolicy.AFTER_CLOSE
        told = await house.client.execute(job, number, id="job", policy=after_close, timeout=20)
        assert told == number * 10
    assert ran == [1, 1, 2, 2]
    assert len(await runs(house)) == 4


@pytest.mark.parametrize("policy", ANEW)
async def test_what_has_not_ended_is_found(house: House, policy: StartPolicy) -> None:
    """K16, F2: by the same flow and input; another input is refused."""
    first = await house.client.start(job, 0, id="job")
    second = await house.client.start(job, 0, id="job", policy=policy)
    with pytest.raises(loom.StartConflictError, match=f"Policy '{policy.value}' does not"):
        await house.client.start(job, 7, id="job", policy=policy)
    await first.resume("Go", 1)
    assert await first.result(timeout=20) == await second.result(timeout=20) == 0
    assert ran == [0]


@pytest.mark.parametrize("number", [0, 1, -1])
async def test_reject_refuses_whatever_is_there(house: House, number: int) -> None:
    """K16: be it the same input, ended or not."""
    await house.client.start(job, number, id="job")
    with pytest.raises(loom.StartConflictError, match=r"exists already.*never used"):
        await house.client.start(job, number, id="job", policy=StartPolicy.REJECT)
    with pytest.raises(loom.StartConflictError, match="exists already"):
        await house.client.execute(job, number, id="job", policy=StartPolicy.REJECT, timeout=20)
    assert len(await runs(house)) == 1


async def test_a_new_run_is_awaited_by_whoever_started_it(house: House) -> None:
    """K16: an outcome of the one before that comes late, or again, is not taken for it."""
    old = await house.client.start(job, 2, id="job")
    assert await old.result(timeout=20) == 20
    new = await house.client.start(job, 0, id="job", policy=StartPolicy.AFTER_CLOSE)
    # the first start once more, as if its reply had been lost: it tells how things stand
    again = await house.client.start(job, 0, id="job")
    assert await old.result(timeout=20) == 20
    with pytest.raises(WaitTimeoutError):
        await new.result(timeout=0.05)
    await again.resume("Go", 1)
    assert await new.result(timeout=20) == await again.result(timeout=20) == 0


async def test_an_outcome_is_for_whoever_asked_for_it() -> None:
    """K16: a start that replaces a run shares nothing with those who wait for that run."""
    async with MemoryBroker().connection() as broker:
        board = Switchboard(broker, "replies", RandomIds())
        old = board.outcome_of(start(1, "old", StartPolicy.EXISTING))
        new = board.outcome_of(start(1, "new"))
        queue = topology.reply("board")
        await broker.consume(queue, board.on_reply, prefetch=1)
        for correlation in ("unknown", "old"):
            item = outcome_reply(ExecutionKey(DEFAULT_TENANT, "job"), correlation, Status.COMPLETED)
            body = wire.encode(ReplyMessage(items=(item,)))
            await broker.publish([Outgoing(queue=queue.name, body=body)])
        told = await asyncio.wait_for(old, 10)
        assert told.correlation == "old"
        assert not new.done()
        await board.close()
        with pytest.raises(BrokerUnreachableError):
            await new


@pytest.mark.parametrize("policy", [StartPolicy.REJECT, *ANEW])
async def test_the_same_message_again_starts_nothing(house: House, policy: StartPolicy) -> None:
    """K16, F2: also after what it started has ended, and after that made way for another. It
    is answered with what it started.
    """
    async with Post(house) as post:
        item = start(-1, "first", policy)
        told = await post.ask(item)
        assert (told.kind, told.status) == (ReplyKind.OUTCOME, Status.FAILED)
        again = await post.ask(item)
        assert (again.kind, again.status, again.id) == (ReplyKind.OUTCOME, Status.FAILED, "job")
        admitted = [each for each in post.replies if each.kind is ReplyKind.ADMITTED]
        assert [each.created for each in admitted] == [True, True]
        assert ran == [-1]

        other = await post.ask(start(2, "second", StartPolicy.AFTER_CLOSE))
        assert other.status is Status.COMPLETED
        late = await post.ask(item)
        assert (late.kind, late.status, late.id) == (ReplyKind.OUTCOME, Status.FAILED, "job")
        assert ran == [-1, 2]


async def test_the_same_message_many_times_at_once(house: House) -> None:
    """K16: one of them makes the new run, the others find it."""
    await ended(house, 1)
    async with Post(house) as post:
        item = start(3, "same")
        await asyncio.gather(*(post.send(item) for _ in range(20)))

        async def all_told() -> bool:
            kinds = [each.kind for each in post.replies]
            return kinds.count(ReplyKind.ADMITTED) == 20 and ReplyKind.OUTCOME in kinds

        await until(all_told)
        assert ran == [1, 3]
        assert {each.created for each in post.replies if each.kind is ReplyKind.ADMITTED} == {True}


async def test_a_name_of_its_own_is_needed(house: House) -> None:
    """K16: without one a start could not be told from its repetition."""
    async with Post(house) as post:
        told = await post.ask(start(3, ""))
        assert (told.kind, told.code) == (ReplyKind.ERROR, InputError.code)
        assert "needs a correlation" in told.message
    assert ran == []


async def test_a_name_used_for_something_else_is_told(house: House) -> None:
    """K16: rather than answered with what was asked for then, though it made way since."""
    async with Post(house) as post:
        await post.ask(start(1, "name"))
        for request in ("name", "other"):
            told = await post.ask(start(2, request))
            assert (told.code == "start-conflict") is (request == "name")
        assert "a correlation of its own" in (await post.ask(start(3, "name"))).message
    assert ran == [1, 2]


async def test_another_name_is_another_start(house: House) -> None:
    """K16: so the nightly job runs every night, with the same input."""
    async with Post(house) as post:
        for night in range(4):
            assert (await post.ask(start(1, f"night {night}"))).status is Status.COMPLETED
    rows = await runs(house)
    assert ran == [1] * 4
    assert [row.execution_id == "job" for row in rows] == [False, False, False, True]
    assert len({row.execution_id for row in rows}) == 4


async def test_one_message_of_many_starts_with_long_ids(house: House) -> None:
    """K16, J10: ids that are cut to the same text are kept apart all the same."""
    names = [f"{'é' * 120}{number}" for number in range(3)]
    async with Post(house) as post:
        for request in ("one", "two"):
            seen = len(post.replies)
            await post.send(*(start(1, request, execution_id=name) for name in names))

            async def told(seen: int = seen) -> bool:
                return sum(e.kind is ReplyKind.OUTCOME for e in post.replies[seen:]) == 3

            await until(told)
    rows = await runs(house)
    assert len(rows) == 6
    assert all(check_id(row.execution_id, "execution id") for row in rows)


def admission(request: str, policy: StartPolicy = StartPolicy.AFTER_CLOSE) -> Admission:
    return Admission(
        key=ExecutionKey(DEFAULT_TENANT, "job"),
        flow="job",
        version="1",
        queue="default",
        start=b"",
        input_digest=digest_of("job", b"", policy, request),
        policy=policy,
    )


async def test_two_that_replace_the_same_run_do_not_replace_each_other() -> None:
    """K16: whoever looked first and writes last finds that another was there."""
    async with House([job]) as house:
        await ended(house, 1)
        journal = house.journal
        looked = asyncio.Event()
        go_on = asyncio.Event()

        async def look(key: ExecutionKey) -> ExecutionRow | None:
            [row] = await journal.get([key])
            looked.set()
            return row

        async def admit_late(one: Admission) -> AdmitVerdict:
            await go_on.wait()
            [verdict] = await journal.admit([one])
            return verdict

        slow = asyncio.ensure_future(Succession(look, admit_late).admit(admission("same")))
        await looked.wait()
        fast = await Succession.over(journal).admit(admission("same"))
        assert fast.created
        go_on.set()
        late = await slow
        assert (late.created, late.row.created_at) == (False, fast.row.created_at)
        assert len(await runs(house)) == 2


async def test_it_gives_up_on_an_id_that_others_start_over_and_over() -> None:
    """K16: bounded, and told."""
    async with House([job]) as house:
        await ended(house, 1)
        row = await house.row("job")
        tries = 0

        async def look(key: ExecutionKey) -> ExecutionRow | None:
            return row if key.execution_id == "job" else None

        async def admit(_one: Admission) -> AdmitVerdict:
            nonlocal tries
            tries += 1
            return AdmitVerdict(row, created=False, same=False)

        with pytest.raises(loom.StartConflictError, match="over and over"):
            await Succession(look, admit).admit(admission("mine"))
        assert tries == TRIES


@pytest.mark.parametrize("name", ["a", "é" * 127, "\U0001f9f5" * 63 + "abc", "x" * 255])
def test_the_id_to_be_kept_under_is_lawful_and_its_own(name: str) -> None:
    """J10."""
    kept = [kept_as(name, start) for start in (b"1", b"2")]
    assert kept[0] != kept[1]
    for each in kept:
        check_id(each, "execution id")
        assert len(each.encode()) <= MAX_ID_BYTES
        assert each.startswith(name[:50])


async def test_k4_a_new_run_has_keys_of_its_own(house: House) -> None:
    """K4, K16: a service that knows the keys of the run before must not take the new run's
    steps for repetitions.
    """
    for number in (1, 1):
        await house.client.execute(
            job, number, id="job", policy=StartPolicy.AFTER_CLOSE, timeout=20
        )
    await house.client.execute(job, 1, id="other", timeout=20)
    assert len(set(keys)) == len(keys) == 3
    assert keys[2] == "default/other/#0"
