"""The whole engine in one event loop, over the memory journal: the life of an execution."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

import loom_mq as loom
from loom_mq.errors import GateTimeoutError, InputError, ResumeRefusedError, StepFailedError
from loom_mq.flows.registry import AnyFlow
from loom_mq.model.execution import Status
from tests.support.house import House, until

calls: list[str] = []


class Declined(loom.TypedFailure[int], channel="declined"):
    """A failure with a payload."""


@loom.step
async def double(number: int) -> int:
    calls.append(f"double {number}")
    return number * 2


@loom.step
def in_thread(text: str) -> tuple[str, bool]:
    return text.upper(), threading.current_thread() is threading.main_thread()


@loom.step(retry=loom.Retry(attempts=3, initial=0.001))
async def flaky(after: int) -> int:
    calls.append("flaky")
    if loom.current_step().attempt <= after:
        raise OSError("not yet")
    return loom.current_step().attempt


@loom.step(retry=loom.NO_RETRY)
async def broken() -> None:
    raise ValueError("broken on purpose")


@loom.step(failures=(Declined,))
async def declining(why: int) -> None:
    calls.append("declining")
    raise Declined(why)


@loom.step(retry=loom.NO_RETRY, timeout=0.02)
async def endless() -> None:
    await asyncio.Event().wait()


@loom.step(retry=loom.NO_RETRY)
async def exiting() -> None:
    raise SystemExit(3)


@loom.flow
async def three_steps(ctx: loom.Context, number: int) -> int:
    for _ in range(3):
        number = await ctx.run(double, number)
    return number


@loom.flow
async def shout(ctx: loom.Context, text: str) -> tuple[str, bool]:
    return await ctx.run(in_thread, text)


@loom.flow
async def trying(ctx: loom.Context, after: int) -> int:
    return await ctx.run(flaky, after)


@loom.flow
async def failing(ctx: loom.Context) -> None:
    await ctx.run(broken)


@loom.flow
async def catching(ctx: loom.Context) -> str:
    try:
        await ctx.run(broken)
    except ValueError as error:
        return f"caught {error}"
    return "not reached"


class OurOwnError(Exception):
    """A class of the flow's own module, with a constructor that no record can feed."""

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(f"{code}: {detail}")


@loom.step(retry=loom.NO_RETRY)
async def fails_once(kind: str) -> str:
    calls.append("fails_once")
    if calls.count("fails_once") > 1:
        return "succeeds the second time"
    raise {"builtin": ValueError("once"), "ours": OurOwnError(7, "once")}[kind]


@loom.flow
async def falling_back(ctx: loom.Context, kind: str) -> str:
    try:
        return await ctx.run(fails_once, kind)
    except (ValueError, OurOwnError) as error:
        fallback = await ctx.run(double, 1)
        await ctx.sleep(0.01)
        return f"{type(error).__name__} {error} then {fallback}"


@loom.flow
async def declined(ctx: loom.Context) -> tuple[int, bool]:
    try:
        await ctx.run(declining, 7)
    except Declined as failure:
        answer = await ctx.suspend(on="Continue", type=bool)
        return failure.payload, answer
    return 0, False


@loom.flow
async def timing_out(ctx: loom.Context) -> str:
    try:
        await ctx.run(endless)
    except TimeoutError as error:
        return type(error).__name__
    return "not reached"


@loom.flow
async def surviving_exit(ctx: loom.Context) -> str:
    try:
        await ctx.run(exiting)
    except StepFailedError as error:
        return str(error)
    return "not reached"


@loom.flow
async def napping(ctx: loom.Context) -> tuple[datetime, datetime]:
    before = await ctx.now()
    await ctx.sleep(0.05)
    return before, await ctx.now()


@loom.flow
async def asking(ctx: loom.Context) -> str:
    number = await ctx.run(double, 1)
    approved = await ctx.suspend(on="Approval", type=bool)
    return f"{number} {approved}"


@loom.flow
async def asking_briefly(ctx: loom.Context) -> str:
    try:
        await ctx.suspend(on="Approval", type=bool, timeout=0.05)
    except GateTimeoutError:
        return "too late"
    return "in time"


@loom.flow
async def side_by_side(ctx: loom.Context) -> list[int]:
    async def branch(number: int) -> int:
        first = await ctx.run(double, number)
        return await ctx.run(double, first)

    results = await asyncio.gather(*(branch(n) for n in range(1, 4)))
    await ctx.sleep(0.01)
    return results


@loom.flow
async def two_gates(ctx: loom.Context) -> tuple[int, str]:
    first, second = await asyncio.gather(
        ctx.suspend(on="A", type=int), ctx.suspend(on="B", type=str)
    )
    return first, second


@loom.flow
async def choosing(ctx: loom.Context) -> list[object]:
    chosen: list[object] = [
        await ctx.uuid(),
        await ctx.random(),
        await ctx.decide("tuple", lambda: (1, {2})),
    ]
    await ctx.emit("progress", chosen[2])
    await ctx.sleep(0.01)
    return chosen


FLOWS: list[AnyFlow] = [
    three_steps,
    shout,
    trying,
    failing,
    falling_back,
    catching,
    declined,
    timing_out,
    surviving_exit,
    napping,
    asking,
    asking_briefly,
    side_by_side,
    two_gates,
    choosing,
]


@pytest.fixture
async def house() -> AsyncIterator[House]:
    calls.clear()
    async with House(FLOWS) as house:
        yield house


async def test_three_steps_in_four_commits(house: House) -> None:
    """The write barrier: n steps cost n + 1 commits, and each step runs once."""
    assert await house.client.execute(three_steps, 1, id="e", timeout=5) == 8
    assert calls == ["double 1", "double 2", "double 4"]
    assert await house.kinds("e") == [
        "EXECUTION_STARTED",
        *["STEP_STARTED", "STEP_COMPLETED"] * 3,
        "EXECUTION_COMPLETED",
    ]
    assert house.metrics.value("loom_journal_appends_total", outcome="committed") == 4
    row = await house.row("e")
    assert (row.status, row.owner, row.fence, row.last_seq) == (Status.COMPLETED, None, 1, 7)


async def test_c21_messages_are_counted_by_what_became_of_them(house: House) -> None:
    """C21: a package that no queue took is counted, and sent again to a queue made for it."""
    await house.workers[0].drain(1)
    await house.workers[0].stop()
    house.hub.delete_queue("loom.work.default")
    handle = await house.client.start(three_steps, 1)
    await house.worker()
    assert await handle.result(timeout=10) == 8
    queue = {"queue": "loom.work.default"}
    assert house.metrics.value("loom_packages_returned_total", **queue) == 1
    published = house.metrics.value("loom_packages_published_total", outcome="confirmed", **queue)
    assert published is not None
    assert published >= 1


async def test_the_same_id_twice_is_one_execution(house: House) -> None:
    """F2, C51: same input, same execution; other input, a typed refusal."""
    first = await house.client.start(three_steps, 1, id="e")
    assert await first.result(timeout=5) == 8
    again = await house.client.start(three_steps, 1, id="e")
    assert await again.result(timeout=5) == 8
    assert calls == ["double 1", "double 2", "double 4"]
    with pytest.raises(loom.StartConflictError, match="another input"):
        await house.client.start(three_steps, 2, id="e")


async def test_a_flow_nobody_knows_is_refused_and_kept(house: House) -> None:
    """F2: unknown flow: a typed error for the caller, a dead letter for the operator."""
    with pytest.raises(loom.UnknownFlowError, match="no worker has ever registered"):
        await house.client.start("nobody", 1, timeout=5)
    [letter] = await house.journal.dead_letters()
    assert letter.reason.startswith("unknown-flow")


async def test_plain_functions_run_in_threads(house: House) -> None:
    assert await house.client.execute(shout, "hi", timeout=5) == ("HI", False)


async def test_a_failing_step_is_tried_again(house: House) -> None:
    """K4: retries are on the log, each attempt is numbered."""
    assert await house.client.execute(trying, 2, id="e", timeout=5) == 3
    assert (await house.kinds("e")).count("STEP_RETRYING") == 2


async def test_an_escaped_error_ends_the_execution(house: House) -> None:
    """K1: STEP_FAILED, then EXECUTION_FAILED with the error; the caller gets it typed."""
    with pytest.raises(loom.ExecutionFailedError, match="ValueError: broken on purpose") as caught:
        await house.client.execute(failing, id="e", timeout=5)
    assert caught.value.error_type == "ValueError"
    assert "broken on purpose" in caught.value.traceback_text
    assert (await house.kinds("e"))[-2:] == ["STEP_FAILED", "EXECUTION_FAILED"]
    assert (await house.row("e")).error == "ValueError: broken on purpose"


async def test_a_caught_failure_is_not_the_executions(house: House) -> None:
    assert await house.client.execute(catching, timeout=5) == "caught broken on purpose"


@pytest.mark.parametrize(
    ("kind", "told"),
    [("builtin", "ValueError once then 2"), ("ours", "OurOwnError 7: once then 2")],
)
async def test_c18_a_failure_that_the_flow_went_past_is_met_again(
    house: House, kind: str, told: str
) -> None:
    """C18, K3: what the flow did after the failure is on the log, so the re-run after a park
    raises the same class with the same text instead of calling the step again.
    """
    assert await house.client.execute(falling_back, kind, id="e", timeout=5) == told
    assert calls == ["fails_once", "double 1"]


async def test_k5_a_typed_failure_is_served_from_the_log(house: House) -> None:
    """K5: after a park the same class is raised with its payload, the step is not called."""
    handle = await house.client.start(declined, id="e")
    await until(lambda: _status(house, Status.SUSPENDED))
    assert await handle.resume("Continue", True) is loom.Answered.TAKEN
    assert await handle.result(timeout=5) == (7, True)
    assert calls == ["declining"]


async def test_a_step_has_a_timeout(house: House) -> None:
    assert await house.client.execute(timing_out, timeout=5) == "StepTimeoutError"


async def test_c70_a_system_exit_does_not_reach_the_worker(house: House) -> None:
    """C70: SystemExit in a step is that step's failure; the worker goes on."""
    assert "SystemExit" in await house.client.execute(surviving_exit, timeout=5)
    assert await house.client.execute(three_steps, 1, timeout=5) == 8


async def test_f9_a_sleep_holds_nothing_and_is_never_early(house: House) -> None:
    before, after = await house.client.execute(napping, id="e", timeout=5)
    assert after - before >= timedelta(seconds=0.05)
    assert before.tzinfo is UTC
    assert "EXECUTION_SUSPENDED" in await house.kinds("e")
    assert (await house.row("e")).fence == 2


async def test_a_gate_takes_a_typed_answer(house: House) -> None:
    """K7: a wrong type is refused and the gate stays open; the right one is taken."""
    handle = await house.client.start(asking, id="e")
    await until(lambda: _status(house, Status.SUSPENDED))
    state = await handle.state()
    assert (state.status, state.gates, state.owner) == (Status.SUSPENDED, ("Approval",), None)
    with pytest.raises(ResumeRefusedError, match="does not fit gate") as refused:
        await handle.resume("Approval", "yes")
    assert refused.value.reason == "wrong-type"
    await until(lambda: _status(house, Status.SUSPENDED))
    assert await handle.resume("Approval", True) is loom.Answered.TAKEN
    assert await handle.result(timeout=5) == "2 True"
    assert calls == ["double 1"]


async def test_an_early_answer_waits_for_its_gate(house: House) -> None:
    """K7: an answer to a gate that opens later is kept; the same answer id counts once."""
    handle = await house.client.start(two_gates, id="e")
    await until(lambda: _status(house, Status.SUSPENDED))
    await handle.resume("B", "two", answer_id="b")
    await handle.resume("B", "other", answer_id="b")
    await handle.resume("A", 1)
    assert await handle.result(timeout=5) == (1, "two")


async def test_a_gate_gives_up_in_time(house: House) -> None:
    assert await house.client.execute(asking_briefly, timeout=5) == "too late"


async def test_refusals_of_resume(house: House) -> None:
    with pytest.raises(ResumeRefusedError) as unknown:
        await house.client.handle("nobody").resume("A", 1)
    assert unknown.value.reason == "unknown-execution"
    await house.client.execute(three_steps, 1, id="e", timeout=5)
    with pytest.raises(ResumeRefusedError) as ended:
        await house.client.handle("e").resume("A", 1)
    assert ended.value.reason == "terminal"


async def test_branches_of_a_gather(house: House) -> None:
    """C43: the same step in branches, through a park: each result is its own."""
    assert await house.client.execute(side_by_side, timeout=5) == [4, 8, 12]
    assert len(calls) == 6


async def test_choices_are_repeated(house: House) -> None:
    """K2: what was decided before the park is served after it, types included."""
    chosen = await house.client.execute(choosing, id="e", timeout=5)
    assert chosen[2] == [1, [2]] or chosen[2] == (1, {2})
    assert (await house.kinds("e")).count("DECISION_RECORDED") == 3
    assert (await house.kinds("e")).count("CUSTOM_EMITTED") == 1


async def test_cancel_a_parked_execution(house: House) -> None:
    """K13, C14: durable, idempotent, and the caller of `result` is told."""
    handle = await house.client.start(asking, id="e")
    await until(lambda: _status(house, Status.SUSPENDED))
    await handle.cancel("no longer wanted")
    with pytest.raises(loom.ExecutionCancelledError, match="no longer wanted"):
        await handle.result(timeout=5)
    with pytest.raises(loom.LoomError, match="ended"):
        await handle.cancel()
    assert (await house.kinds("e"))[-1] == "EXECUTION_CANCELLED"


async def test_input_that_does_not_fit_is_the_executions_failure(house: House) -> None:
    handle = await house.client.start("three_steps", "text", id="e")
    with pytest.raises(loom.ExecutionFailedError, match="CodecError"):
        await handle.result(timeout=5)


async def test_an_unknown_execution_says_so(house: House) -> None:
    with pytest.raises(loom.UnknownExecutionError):
        await house.client.handle("nobody").result(timeout=5)
    with pytest.raises(loom.UnknownExecutionError):
        await house.client.handle("nobody").state()


async def test_ids_out_of_rule_are_refused_before_anything_is_sent(house: House) -> None:
    """J10, C30."""
    for bad in ("", "x" * 256, "a\x00b", "é" * 128, "\ud800"):
        with pytest.raises(InputError):
            await house.client.start(three_steps, 1, id=bad)
    assert await house.client.execute(three_steps, 1, id="é" * 127, timeout=5) == 8


async def _status(house: House, status: Status) -> bool:
    return (await house.row("e")).status is status
