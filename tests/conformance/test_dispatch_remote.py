"""A worker over the wire: outcomes, refusals with a code and an id, and nothing else (F5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio
from msgspec.structs import replace

import loom_mq as loom
from loom_mq.broker import topology
from loom_mq.broker.amqp import AmqpBroker
from loom_mq.broker.memory import MemoryBroker
from loom_mq.broker.protocol import Broker, Outgoing
from loom_mq.clock import JournalClock
from loom_mq.dispatch import (
    Allocation,
    ExecutionWorker,
    FoldedState,
    LocalDispatcher,
    LocalWorker,
    RemoteWorker,
    WorkerHost,
    await_by_id,
    package_for,
)
from loom_mq.engine.outcome import error_reply
from loom_mq.errors import (
    AttemptFailedError,
    AttemptTimeoutError,
    BrokerUnreachableError,
    ExecutionAlreadyExistsError,
    ExecutionSupersededError,
    HeldByLiveOwnerError,
    LoomError,
    StaleFenceError,
    StorageWriteError,
    UnroutableError,
    is_superseded_refusal,
)
from loom_mq.flows.registry import Registry
from loom_mq.journal.memory import MemoryJournal
from loom_mq.model.execution import ExecutionKey, Status
from loom_mq.model.messages import Package, ReplyItem, ReplyKind
from loom_mq.testing.conformance.dispatcher import KEY, PACKAGE, ScriptedWorker, ended
from tests.support.house import until

gates: dict[int, asyncio.Event] = {}
"""What steps wait for, by the number that they double."""


@loom.step(retry=loom.NO_RETRY)
async def double(number: int) -> int:
    if number in gates:
        await gates[number].wait()
    return number * 2


@loom.flow
async def doubles(ctx: loom.Context, number: int) -> int:
    return await ctx.run(double, number)


@loom.flow
async def breaks(ctx: loom.Context) -> None:
    raise ValueError("on purpose")


@loom.flow
async def waits(ctx: loom.Context) -> str:
    return await ctx.suspend(on="Never", type=str)


class Wire:
    """One broker, and what is connected to it."""

    def __init__(self, url: str | None, stack: AsyncExitStack) -> None:
        self._url = url
        self._hub = MemoryBroker()
        self._stack = stack
        self.seen: list[tuple[ExecutionKey, LoomError]] = []
        self.failed: list[Exception] = []

    async def connect(self) -> Broker:
        broker: Broker = (
            self._hub.connection() if self._url is None else AmqpBroker(self._url, name="test")
        )
        return await self._stack.enter_async_context(broker)

    async def host(self, worker: ExecutionWorker) -> WorkerHost:
        return await self._stack.enter_async_context(
            WorkerHost(
                await self.connect(),
                worker,
                on_superseded=lambda key, error: self.seen.append((key, error)),
                on_error=lambda _key, error: self.failed.append(error),
            )
        )

    async def remote(self, timeout: float = 20.0) -> RemoteWorker:
        remote = RemoteWorker(
            await self.connect(),
            timeout=timeout,
            on_superseded=lambda key, error: self.seen.append((key, error)),
        )
        return await self._stack.enter_async_context(remote)


@pytest.fixture(params=["memory", "rabbitmq"])
def wire(request: pytest.FixtureRequest) -> Wire:
    # the server first, so that what is connected to it leaves before its host is deleted
    url = request.getfixturevalue("rabbit_url") if request.param == "rabbitmq" else None
    return Wire(url, request.getfixturevalue("wire_stack"))


@pytest.fixture
def memory_wire(wire_stack: AsyncExitStack) -> Wire:
    return Wire(None, wire_stack)


@pytest_asyncio.fixture
async def wire_stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest_asyncio.fixture
async def worker() -> AsyncIterator[LocalWorker]:
    gates.clear()
    registry = Registry([doubles, breaks, waits])
    async with (
        MemoryJournal(JournalClock()) as journal,
        LocalWorker(journal, registry, policy=Allocation.PREEMPTING) as worker,
    ):
        yield worker


async def test_f5_outcomes_cross_the_wire(wire: Wire, worker: LocalWorker) -> None:
    """F3, F4: completed, failed and parked are told as they are, and told again."""
    await wire.host(worker)
    remote = await wire.remote()
    dispatcher = LocalDispatcher(remote, max_attempts=3)
    package = package_for(doubles, 21, id="d/ü")
    state = await dispatcher.dispatch(package)
    assert (state.status, state.result) == (
        Status.COMPLETED,
        doubles.result_codec.encode(42, what="result"),
    )
    assert await dispatcher.dispatch(package) == state
    broken = await dispatcher.dispatch(package_for(breaks, id="b"))
    assert broken.status is Status.FAILED
    assert broken.failure is not None
    assert broken.failure.message == "on purpose"
    parked = await dispatcher.dispatch(package_for(waits, id="w"))
    assert (parked.status, parked.gates) == (Status.SUSPENDED, ("Never",))
    assert await remote.load_state(parked.key) == parked
    assert await remote.load_state(ExecutionKey("default", "unknown")) is None
    assert not wire.seen


async def test_f5_a_superseded_attempt_crosses_the_wire(wire: Wire, worker: LocalWorker) -> None:
    """F5: two dispatchers, one worker, both remote: the older attempt is told code and id,
    operators hear of it by hook and counter on both sides and of no error, and the refused
    caller waits by id for the outcome.
    """
    gates[1] = asyncio.Event()
    host = await wire.host(worker)
    first, second = await wire.remote(), await wire.remote()
    package = package_for(doubles, 1, id="d")
    key = ExecutionKey("default", "d")
    refused = asyncio.ensure_future(LocalDispatcher(first, max_attempts=3).dispatch(package))

    async def runs() -> bool:
        state = await worker.load_state(key)
        return state is not None and state.status is Status.RUNNING

    await until(runs)
    taken = asyncio.ensure_future(LocalDispatcher(second, max_attempts=3).dispatch(package))
    with pytest.raises(ExecutionSupersededError) as caught:
        await refused
    assert is_superseded_refusal(caught.value, "d")
    assert [each for each, _error in wire.seen] == [key, key]
    assert not wire.failed
    assert first.metrics.value("loom_superseded_total", at="remote") == 1
    assert host.metrics.value("loom_superseded_total", at="hosted") == 1
    gates[1].set()
    assert await await_by_id(first, key, timeout=10) == await taken


@pytest.mark.parametrize(
    "error",
    [
        StaleFenceError("kit", held=1, current=2),
        ExecutionAlreadyExistsError("kit"),
        HeldByLiveOwnerError("kit", owner="w"),
        ExecutionSupersededError("taken", execution_id="kit"),
    ],
    ids=repr,
)
async def test_f5_every_refusal_for_another_holder_has_one_code(
    memory_wire: Wire, error: LoomError
) -> None:
    """F5, F7: and a dispatcher never sends it again."""
    scripted = ScriptedWorker(error, ended(Status.COMPLETED))
    await memory_wire.host(scripted)
    dispatcher = LocalDispatcher(await memory_wire.remote(), max_attempts=3)
    with pytest.raises(ExecutionSupersededError):
        await dispatcher.dispatch(PACKAGE)
    assert scripted.attempts == 1


@pytest.mark.parametrize(
    "error",
    [
        StaleFenceError("another", held=1, current=2),
        ExecutionSupersededError("taken", execution_id="another"),
        StorageWriteError("disk full", execution_id="kit"),
        RuntimeError("a crash"),
    ],
    ids=repr,
)
async def test_f5_anything_else_is_an_ordinary_failure(memory_wire: Wire, error: Exception) -> None:
    """F4, F5: told to the hook for errors, told to the sender, and sent again."""
    scripted = ScriptedWorker(error, ended(Status.COMPLETED))
    await memory_wire.host(scripted)
    remote = await memory_wire.remote()
    with pytest.raises(AttemptFailedError) as caught:
        await remote.execute(PACKAGE)
    assert not is_superseded_refusal(caught.value, "kit")
    assert (memory_wire.failed, memory_wire.seen) == ([error], [])
    scripted.attempts = 0
    state = await LocalDispatcher(remote, max_attempts=2).dispatch(PACKAGE)
    assert (state, scripted.attempts) == (ended(Status.COMPLETED), 2)


def told(code: str, id: str, tenant: str = "default") -> ReplyItem:
    return ReplyItem(kind=ReplyKind.ERROR, id=id, tenant=tenant, code=code, message="no")


@pytest.mark.parametrize(
    ("reply", "superseded"),
    [
        (told("superseded", "kit"), True),
        (told("superseded", "another"), False),
        (told("superseded", "kit", "another"), False),
        (told("superseded", ""), False),
        (told("stale-fence", "kit"), False),
        (told("execution-already-exists", "kit"), False),
        (told("", "kit"), False),
    ],
)
async def test_f5_code_and_id_must_both_match(
    memory_wire: Wire, monkeypatch: pytest.MonkeyPatch, reply: ReplyItem, superseded: bool
) -> None:
    """F5: whatever a worker of another make may answer."""
    host = await memory_wire.host(ScriptedWorker(ended(Status.COMPLETED)))

    async def lie(_package: Package, correlation: str) -> ReplyItem:
        return replace(reply, correlation=correlation)

    monkeypatch.setattr(host, "_attempt", lie)
    remote = await memory_wire.remote()
    with pytest.raises(LoomError) as caught:
        await remote.execute(PACKAGE)
    assert is_superseded_refusal(caught.value, "kit") is superseded
    assert type(caught.value) is (ExecutionSupersededError if superseded else AttemptFailedError)
    assert len(memory_wire.seen) == superseded


@pytest.mark.parametrize(
    "reply",
    [
        FoldedState(key=ExecutionKey("default", "other"), status=Status.COMPLETED).as_reply(""),
        ReplyItem(kind=ReplyKind.STATE, id="kit"),
        error_reply(KEY, "", AttemptFailedError("no", execution_id="kit")),
    ],
)
async def test_f5_an_answer_that_says_nothing_is_a_failure(
    memory_wire: Wire, monkeypatch: pytest.MonkeyPatch, reply: ReplyItem
) -> None:
    host = await memory_wire.host(ScriptedWorker(ended(Status.COMPLETED)))

    async def lie(_package: Package, correlation: str) -> ReplyItem:
        return replace(reply, correlation=correlation)

    monkeypatch.setattr(host, "_attempt", lie)
    with pytest.raises(AttemptFailedError):
        await (await memory_wire.remote()).execute(PACKAGE)


async def test_f4_nobody_there(wire: Wire) -> None:
    """F4: no host has ever run: told at once. One that is gone: told in time."""
    remote = await wire.remote(timeout=0.3)
    with pytest.raises(UnroutableError, match="no worker host"):
        await remote.execute(PACKAGE)
    async with WorkerHost(await wire.connect(), ScriptedWorker(ended(Status.COMPLETED))):
        assert await remote.execute(PACKAGE) == ended(Status.COMPLETED)
    with pytest.raises(AttemptTimeoutError, match="is a worker host running"):
        await remote.execute(PACKAGE)


async def test_whoever_waits_is_told_of_the_close(memory_wire: Wire) -> None:
    remote = RemoteWorker(await memory_wire.connect())

    class Never(ScriptedWorker):
        async def execute(self, package: Package) -> FoldedState:
            self.attempts += 1
            await asyncio.Event().wait()
            raise AssertionError

    never = Never()
    await memory_wire.host(never)
    async with remote:
        waiting = asyncio.ensure_future(remote.execute(PACKAGE))
        while not never.attempts:
            await asyncio.sleep(0)
    with pytest.raises(BrokerUnreachableError):
        await waiting


async def test_f2_what_cannot_be_read_is_kept_as_a_dead_letter(memory_wire: Wire) -> None:
    await memory_wire.host(ScriptedWorker(ended(Status.COMPLETED)))
    broker = await memory_wire.connect()
    queue = topology.attempts("default").name
    [error] = await broker.publish([Outgoing(queue=queue, body=b"\xc1", type="packages")])
    assert error is None

    async def kept() -> bool:
        depth = await broker.depth(topology.DEAD.name)
        return depth is not None and depth.ready == 1

    await until(kept)
