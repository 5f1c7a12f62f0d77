"""`loom verdict`: say how a step in doubt ended (K6).

Without a broker the verdict is laid into the journal's inbox; see `acting`.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
import typer

from loom_mq.cli.acting import PAYLOAD_LIMIT
from loom_mq.cli.answering import check_wanted, deliver
from loom_mq.cli.exits import Exit
from loom_mq.cli.inputs import parse_json
from loom_mq.cli.options import As, ExecutionId, reach_of
from loom_mq.cli.reach import Reach, open_client, open_journal
from loom_mq.cli.screen import Item, Page
from loom_mq.client.client import ANY
from loom_mq.client.handle import Answered, Handle, check_actor
from loom_mq.errors import InputError
from loom_mq.ids import RandomIds, check_id
from loom_mq.model.execution import InboxItem, InboxKind
from loom_mq.model.verdicts import Verdict, VerdictKind


def verdict(
    ctx: typer.Context,
    execution_id: ExecutionId,
    step: Annotated[
        str,
        typer.Argument(
            metavar="STEP", help="The step in doubt: its name, or its place such as #3."
        ),
    ],
    kind: Annotated[
        VerdictKind, typer.Argument(metavar="VERDICT", help="completed, failed or run-again.")
    ],
    value: Annotated[
        str | None, typer.Option("--value", metavar="JSON", help="What it returned (completed).")
    ] = None,
    message: Annotated[str, typer.Option("--message", help="Why; the error's text (failed).")] = "",
    actor: As = "",
) -> Exit:
    """Say how a step that must not run twice ended, when nobody knows.

    `completed` needs --value, what the step returned (null for nothing); `failed` needs
    --message, which the flow meets as an error. `run-again` runs it again: say it only
    when you know that the step did nothing.
    """
    reach = reach_of(ctx)
    key = reach.key(execution_id)
    _check(kind, value, message)
    answer = None if value is None else parse_json(value, "--value")
    if reach.broker is not None:
        return asyncio.run(_by_broker(reach, execution_id, step, kind, answer, message, actor))
    payload = b""
    if kind is VerdictKind.COMPLETED:
        payload = ANY.encode(answer, what=f"result of step {step}", limit=PAYLOAD_LIMIT)
    item = InboxItem(
        tenant=key.tenant,
        execution_id=key.execution_id,
        item_id=RandomIds().token(),
        kind=InboxKind.VERDICT,
        gate=check_id(step, "step"),
        payload=msgspec.msgpack.encode(Verdict(kind, payload, message)),
        actor=check_actor(actor),
    )
    return asyncio.run(_in_journal(reach, item, kind))


def _check(kind: VerdictKind, value: str | None, message: str) -> None:
    if kind is VerdictKind.COMPLETED and value is None:
        raise InputError(
            "a completed step returned something: say it with --value JSON, or --value null"
        )
    if kind is not VerdictKind.COMPLETED and value is not None:
        raise InputError(f"--value belongs to completed; {kind.value} has none")
    if kind is VerdictKind.FAILED and not message:
        raise InputError("a failed step needs --message, which the flow meets as an error")


async def _by_broker(
    reach: Reach,
    execution_id: str,
    step: str,
    kind: VerdictKind,
    value: object,
    message: str,
    actor: str,
) -> Exit:
    async with open_client(reach) as client:
        handle = client.handle(execution_id)
        fate = await _say(handle, step, kind, value, message, actor, reach.patience)
    return _tell(reach, execution_id, step, kind, fate)


async def _say(
    handle: Handle[object],
    step: str,
    kind: VerdictKind,
    value: object,
    message: str,
    actor: str,
    timeout: float,
) -> Answered:
    match kind:
        case VerdictKind.COMPLETED:
            return await handle.verdict(
                step, completed=value, message=message, actor=actor, timeout=timeout
            )
        case VerdictKind.FAILED:
            return await handle.verdict(step, failed=message, actor=actor, timeout=timeout)
        case VerdictKind.RUN_AGAIN:
            return await handle.verdict(
                step, run_again=True, message=message, actor=actor, timeout=timeout
            )


async def _in_journal(reach: Reach, item: InboxItem, kind: VerdictKind) -> Exit:
    async with open_journal(reach) as journal:
        await check_wanted(journal, item)
        fate = await deliver(reach, journal, item)
    return _tell(reach, item.execution_id, item.gate, kind, fate)


def _tell(reach: Reach, execution_id: str, step: str, kind: VerdictKind, fate: Answered) -> Exit:
    body: Item = {"id": execution_id, "step": step, "verdict": kind.value, "fate": fate.value}
    done = "it goes on" if fate is Answered.TAKEN else "kept until a worker takes it"
    line = f"{execution_id}: {step} {kind.value}; {done}"
    reach.screen.show(Page(kind="verdict", items=[body], lines=[line]))
    return Exit.DONE
