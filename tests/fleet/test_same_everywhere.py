"""The same values, ids, limits and errors embedded and on the fleet (C104)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

import loom_mq as loom
from loom_mq.errors import InputError, InvalidIdError, LoomError, PayloadTooLargeError
from loom_mq.flows.registry import load
from loom_mq.model.execution import Status
from loom_mq.runtime.embedded import Embedded
from loom_mq.testing.servers import PostgresServer, RabbitServer
from tests.support.fleet import Fleet
from tests.support.house import until
from tests.support.value_flows import (
    UNFIT,
    UNTYPED,
    answers,
    described,
    dozing,
    fails_with,
    returns_input,
    returns_unfit,
    too_large,
    twice_typed,
    twice_untyped,
)

APP = "tests.support.value_flows"

IDS = [
    "a/b",
    "a#b?c=1",
    "x_'some/value'",
    "a b",
    "100%",
    "..",
    ".",
    "ünï-漢字-😀",
    "e\u0301",
    "\u00e9",
    "'; DROP TABLE executions;--",
    "{0}",
    "%s",
    "../../etc",
    "ends with a newline\n",
    "x" * 255,
    "😀" * 63,
]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["embedded", "fleet"])
async def client(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    rabbit_server: RabbitServer,
    postgres_server: PostgresServer,
) -> AsyncIterator[loom.Client]:
    folder: Path = tmp_path_factory.mktemp(request.param)
    async with AsyncExitStack() as stack:
        if request.param == "embedded":
            house = await stack.enter_async_context(Embedded(load([APP]), folder / "j.sqlite"))
            yield house.client
        else:
            await rabbit_server.ensure_running()
            await postgres_server.ensure_running()
            fleet = await stack.enter_async_context(
                Fleet(
                    await rabbit_server.create_vhost("same"),
                    await postgres_server.create_database("same"),
                    folder,
                    app=APP,
                )
            )
            await fleet.start()
            yield fleet.client


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("name", UNTYPED)
async def test_c44_a_value_is_the_same_again_on_a_replay(client: loom.Client, name: str) -> None:
    """C44, C46, C16: first run, replay, and what was meant: type and value."""
    first, again, meant = await client.execute(twice_untyped, name, timeout=20)
    assert first == again == meant


async def test_c44_declared_types_are_the_same_again(client: loom.Client) -> None:
    """C44: dataclass, Struct, Enum, NamedTuple and the rest, declared."""
    first, again, meant = await client.execute(twice_typed, timeout=20)
    assert first == again == meant


@pytest.mark.parametrize("name", UNFIT)
async def test_c20_a_value_that_cannot_be_stored_fails_once(client: loom.Client, name: str) -> None:
    """C20, C16: a codec error that names the step; not tried again; the worker lives."""
    with pytest.raises(loom.ExecutionFailedError, match="step unfit: value at") as failed:
        await client.execute(returns_unfit, name, timeout=20)
    assert failed.value.error_type == "CodecError"


@pytest.mark.parametrize("name", UNTYPED)
async def test_values_as_input_and_result(client: loom.Client, name: str) -> None:
    """C46, C16: the same values as a start argument and as a result."""
    value = UNTYPED[name]
    assert described(await client.execute(returns_input, value, timeout=20)) == described(value)


@pytest.mark.parametrize("name", ["nul", "2**64", "tuple", "none", "big keys"])
async def test_values_as_answers(client: loom.Client, name: str) -> None:
    """C16, C46: the same values as an answer to a gate, None among them."""
    value = UNTYPED[name]
    handle = await client.start(answers)

    async def waiting() -> bool:
        return (await handle.state()).status is Status.SUSPENDED

    await until(waiting)
    assert await handle.resume("Value", value) is loom.Answered.TAKEN
    assert described(await handle.result(timeout=20)) == described(value)


async def test_c16_an_error_text_with_a_nul_is_recorded(client: loom.Client) -> None:
    """C16: error texts are stored in an escaped form; nothing stays running."""
    handle = await client.start(fails_with, "x\x00y")
    with pytest.raises(loom.ExecutionFailedError, match="ValueError: x"):
        await handle.result(timeout=20)
    assert (await handle.state()).status is Status.FAILED


@pytest.mark.parametrize("name", IDS)
async def test_c53_ids_of_every_kind(client: loom.Client, name: str) -> None:
    """C53, J10: start, state, answer, result and cancel under the very same bytes."""
    handle = await client.start(answers, id=name)

    async def waiting() -> bool:
        return (await handle.state()).status is Status.SUSPENDED

    await until(waiting)
    assert (await handle.state()).id == name
    await handle.resume("Value", name)
    assert await client.handle(name).result(timeout=20) == name
    with pytest.raises(loom.LoomError, match="ended"):
        await handle.cancel()


@pytest.mark.parametrize("name", ["", "x" * 256, "x" * 100_000, "😀" * 200, "a\x00b", "\ud800"])
async def test_c30_ids_past_the_rule_are_refused_at_the_call(
    client: loom.Client, name: str
) -> None:
    """C30, J10: a typed error that says the rule; the connection goes on."""
    with pytest.raises(InvalidIdError, match="execution id"):
        await client.start(returns_input, 1, id=name)
    with pytest.raises(InvalidIdError):
        client.handle(name)
    with pytest.raises(InvalidIdError, match="label"):
        await client.start(returns_input, 1, labels={"n" * 300: "x"})
    assert await client.execute(returns_input, 1, timeout=20) == 1


async def test_c86_a_payload_over_the_limit(client: loom.Client) -> None:
    """J10, C86, C104: refused with size and limit, at the call and in a step alike."""
    with pytest.raises(PayloadTooLargeError, match="over the limit of 1048576 bytes"):
        await client.start(returns_input, bytes(20_000_000 + 6))
    with pytest.raises(loom.ExecutionFailedError, match="over the limit") as failed:
        await client.execute(too_large, 2_000_000, timeout=20)
    assert failed.value.error_type == "PayloadTooLargeError"


async def test_c51_many_starts_of_one_id(client: loom.Client) -> None:
    """C51: 50 starts at once: one execution; the same with two inputs: one wins, typed errors."""
    handles = await asyncio.gather(*(client.start(returns_input, 1, id="c51") for _ in range(50)))
    assert {await handle.result(timeout=20) for handle in handles} == {1}
    tries = await asyncio.gather(
        *(client.start(returns_input, n, id="c51-conflict") for n in range(50)),
        return_exceptions=True,
    )
    won = [each for each in tries if isinstance(each, loom.Handle)]
    lost = [each for each in tries if isinstance(each, loom.StartConflictError)]
    assert (len(won), len(lost)) == (1, 49)


async def test_c14_cancel_in_a_sleep(client: loom.Client) -> None:
    """C14, C104: a cancel reaches a sleeping execution; a second one is no error."""
    handle = await client.start(dozing)
    await handle.cancel("enough")
    with pytest.raises(loom.ExecutionCancelledError, match="enough"):
        await handle.result(timeout=20)
    assert (await handle.state()).status is Status.CANCELLED


async def test_unknown_flows_and_executions(client: loom.Client) -> None:
    with pytest.raises(loom.UnknownFlowError):
        await client.start("nobody", 1)
    with pytest.raises(loom.UnknownExecutionError):
        await client.handle("nobody").result(timeout=20)


async def test_c108_a_client_says_which_loop_it_belongs_to(client: loom.Client) -> None:
    """C108: used from another thread with its own loop: an error that names the trouble."""

    def elsewhere() -> str:
        async def use() -> str:
            try:
                await client.start(returns_input, 1)
            except LoomError as error:
                return f"{error.code}: {error.message}"
            return "not refused"

        return asyncio.run(use())

    said = await asyncio.get_running_loop().run_in_executor(None, elsewhere)
    assert said.startswith("configuration: this client belongs to another event loop")
    assert await client.execute(returns_input, 2, timeout=20) == 2


async def test_an_input_that_the_flow_does_not_take(client: loom.Client) -> None:
    with pytest.raises(InputError, match="takes no input"):
        await client.start(dozing, 1)  # type: ignore[misc]  # wrong on purpose
