"""Starting executions and waiting for what they return.

Over the broker they are a client like any other. Without one they write what a
dispatcher would have written, a pending row, straight into the journal: the sweep of
whoever serves it finds that within a second.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

import typer

from loom_mq.cli.exits import Exit
from loom_mq.cli.inputs import parse_json, parse_labels
from loom_mq.cli.options import ExecutionId, reach_of
from loom_mq.cli.reach import Reach, open_client, open_journal
from loom_mq.cli.screen import Item, Page
from loom_mq.client.client import ANY
from loom_mq.clock import JournalClock
from loom_mq.codec import wire
from loom_mq.codec.values import to_display
from loom_mq.engine.admission import Admitter, KnownFlows
from loom_mq.engine.succession import Succession
from loom_mq.errors import (
    ExecutionCancelledError,
    ExecutionFailedError,
    LoomError,
    UnknownExecutionError,
    WaitTimeoutError,
)
from loom_mq.ids import RandomIds, check_id
from loom_mq.journal.protocol import Journal
from loom_mq.kernel.fold import decode_payload
from loom_mq.model import events as ev
from loom_mq.model.events import Envelope
from loom_mq.model.execution import ExecutionKey, Status
from loom_mq.model.messages import Notify, StartItem
from loom_mq.model.policies import StartPolicy

PAYLOAD_LIMIT: Final = 1024 * 1024
_LOOK_SECONDS: Final = 0.1

Wait = Annotated[bool, typer.Option("--wait", help="Wait for the end; --timeout bounds it.")]


# ---- loom start ------------------------------------------------------------------------------


def start(
    ctx: typer.Context,
    flow: Annotated[str, typer.Argument(metavar="FLOW", help="Name of the flow.")],
    value: Annotated[str, typer.Argument(metavar="JSON", help="Its input.")] = "null",
    execution_id: Annotated[
        str | None, typer.Option("--id", help="The execution's id; a new one by default.")
    ] = None,
    queue: Annotated[str, typer.Option("--queue", help="Not the flow's own queue.")] = "",
    label: Annotated[
        list[str] | None, typer.Option("--label", help="NAME=VALUE; repeatable.")
    ] = None,
    policy: Annotated[
        StartPolicy, typer.Option("--policy", help="What to do when the id is taken.")
    ] = StartPolicy.EXISTING,
    wait: Wait = False,
) -> Exit:
    """Start an execution. The same id with the same input twice is one execution.

    --policy reject refuses an id that is taken; after-close and after-failure let a new
    execution take the place of one that has ended, or that failed or was cancelled.
    """
    reach = reach_of(ctx)
    item = StartItem(
        id=RandomIds().execution() if execution_id is None else check_id(execution_id, "id"),
        flow=check_id(flow, "flow name"),
        queue=queue,
        tenant=reach.tenant,
        payload=ANY.encode(parse_json(value, "the input"), what="the input", limit=PAYLOAD_LIMIT),
        labels=parse_labels(label or ()),
        policy=policy,
        notify=Notify.NOTHING,
        correlation=RandomIds().token(),
    )
    if reach.broker is not None:
        return asyncio.run(_start_by_broker(reach, item, parse_json(value, "the input"), wait=wait))
    return asyncio.run(_start_in_journal(reach, item, wait=wait))


async def _start_by_broker(reach: Reach, item: StartItem, value: object, *, wait: bool) -> Exit:
    async with open_client(reach) as client:
        handle = await client.start(
            item.flow,
            value,
            id=item.id,
            queue=item.queue,
            labels=item.labels,
            policy=item.policy,
            timeout=30.0 if reach.timeout is None else reach.timeout,
        )
        if not wait:
            return _tell_started(reach, item, None)
        return _tell_result(reach, item.id, await handle.result(timeout=reach.timeout))


async def _start_in_journal(reach: Reach, item: StartItem, *, wait: bool) -> Exit:
    async with open_journal(reach) as journal:
        # no broker carries a first package, so the sweep is to send one at once
        admitter = Admitter(
            KnownFlows(journal, JournalClock()), payload_limit=PAYLOAD_LIMIT, resend_after=0.0
        )
        admission = await admitter.admission(item, wire.MSGPACK, None, item.correlation)
        verdict = await Succession.over(journal).admit(admission)
        await note_if_alone(reach, journal)
        if not wait:
            return _tell_started(reach, item, verdict.created)
        ended = await _ended(reach, journal, admission.key, wait=True)
    return _tell_outcome(reach, item.id, ended)


def _tell_started(reach: Reach, item: StartItem, created: bool | None) -> Exit:
    body: Item = {"id": item.id, "flow": item.flow, "created": created}
    reach.screen.show(Page(kind="start", items=[body], lines=[item.id]))
    if created is False:
        reach.screen.note("it existed already, with the same input")
    return Exit.DONE


async def note_if_alone(reach: Reach, journal: Journal) -> bool:
    """Whether nobody is there to act on it; people are told so."""
    alone = not await journal.workers()
    if alone:
        reach.screen.note("stored; no worker is alive on this journal, the next one takes it")
    return alone


# ---- loom result -----------------------------------------------------------------------------


def result(ctx: typer.Context, execution_id: ExecutionId, wait: Wait = False) -> Exit:
    """Print what an execution returned, as JSON."""
    reach = reach_of(ctx)
    if reach.broker is not None:
        return asyncio.run(_result_by_broker(reach, execution_id, wait=wait))
    return asyncio.run(_result_in_journal(reach, execution_id, wait=wait))


async def _result_by_broker(reach: Reach, execution_id: str, *, wait: bool) -> Exit:
    async with open_client(reach) as client:
        handle = client.handle(execution_id)
        if not wait and not (await handle.state(timeout=reach.patience)).status.terminal:
            raise _not_ended(execution_id, reach.timeout, waited=False)
        timeout = reach.timeout if wait else reach.patience
        return _tell_result(reach, execution_id, await handle.result(timeout=timeout))


async def _result_in_journal(reach: Reach, execution_id: str, *, wait: bool) -> Exit:
    async with open_journal(reach) as journal:
        ended = await _ended(reach, journal, reach.key(execution_id), wait=wait)
    return _tell_outcome(reach, execution_id, ended)


async def _ended(reach: Reach, journal: Journal, key: ExecutionKey, *, wait: bool) -> Envelope:
    """The event that ended an execution.

    Raises:
        UnknownExecutionError: there is no such execution.
        WaitTimeoutError: it has not ended.
    """
    loop = asyncio.get_running_loop()
    deadline = None if reach.timeout is None else loop.time() + reach.timeout
    while True:
        verdict = await journal.watch(key, None)
        if verdict.row is None:
            raise UnknownExecutionError(
                f"there is no execution {key.execution_id!r}", execution_id=key.execution_id
            )
        if verdict.terminal is not None:
            return verdict.terminal
        if not wait or (deadline is not None and loop.time() >= deadline):
            raise _not_ended(key.execution_id, reach.timeout, waited=wait)
        await asyncio.sleep(_LOOK_SECONDS)


def _not_ended(execution_id: str, timeout: float | None, *, waited: bool) -> WaitTimeoutError:
    within = f" within {timeout:g} s" if waited and timeout is not None else " yet"
    advice = f"`loom why {execution_id}` says what it waits for" if waited else "wait with --wait"
    return WaitTimeoutError(
        f"execution {execution_id!r} has not ended{within}; {advice}",
        execution_id=execution_id,
    )


def _tell_outcome(reach: Reach, execution_id: str, ended: Envelope) -> Exit:
    match decode_payload(ended):
        case ev.ExecutionCompleted(result=data):
            return _tell_result(reach, execution_id, to_display(data))
        case ev.ExecutionCancelled(reason=reason):
            raise ExecutionCancelledError(
                f"execution {execution_id!r} was cancelled: {reason or 'no reason given'}",
                execution_id=execution_id,
            )
        case ev.ExecutionFailed(failure=failure):
            raise ExecutionFailedError(
                f"execution {execution_id!r} failed: {failure.headline}",
                execution_id=execution_id,
            )
    raise LoomError(
        f"execution {execution_id!r} ended with {ended.kind}, which this release does not know",
        execution_id=execution_id,
    )


def _tell_result(reach: Reach, execution_id: str, value: object) -> Exit:
    if reach.screen.json:
        body: Item = {"id": execution_id, "status": Status.COMPLETED.value, "result": value}
        reach.screen.show(Page(kind="result", items=[body]))
    else:
        reach.screen.value(value)
    return Exit.DONE
