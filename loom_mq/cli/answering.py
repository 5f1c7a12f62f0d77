"""Telling an execution something: the answer to a gate (K7).

Without a broker the item is laid into the journal's inbox; see `acting`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Final

import typer

from loom_mq.cli.acting import PAYLOAD_LIMIT, note_if_alone
from loom_mq.cli.exits import Exit
from loom_mq.cli.inputs import parse_json
from loom_mq.cli.options import As, ExecutionId, reach_of
from loom_mq.cli.reach import Reach, open_client, open_journal
from loom_mq.cli.reading import existing, folded, pages
from loom_mq.cli.screen import Item, Page
from loom_mq.client.client import ANY
from loom_mq.client.handle import Answered, check_actor
from loom_mq.errors import ExecutionEndedError, ResumeRefusedError
from loom_mq.ids import RandomIds, check_id
from loom_mq.journal.protocol import DeliverVerdict, Journal
from loom_mq.kernel.fold import decode_payload
from loom_mq.kernel.refusals import refusal_of
from loom_mq.kernel.wording import names
from loom_mq.model import events as ev
from loom_mq.model.execution import ExecutionKey, InboxItem, InboxKind
from loom_mq.model.messages import RefusalReason

FOLLOW_SECONDS: Final = 4.0
"""How long to look on while a process that is alive takes what was given to it: a holder
looks into its inboxes at each renewal of its lease."""
_LOOK_SECONDS: Final = 0.1


# ---- loom resume -----------------------------------------------------------------------------


def resume(
    ctx: typer.Context,
    execution_id: ExecutionId,
    gate: Annotated[str, typer.Argument(metavar="GATE", help="Name of the gate.")],
    value: Annotated[str, typer.Argument(metavar="JSON", help="The answer.")],
    answer_id: Annotated[
        str | None, typer.Option("--answer-id", help="The same id twice counts once.")
    ] = None,
    actor: As = "",
) -> Exit:
    """Answer a gate. An answer to a gate that opens later is kept for it."""
    reach = reach_of(ctx)
    answer = parse_json(value, "the answer")
    key = reach.key(execution_id)
    check_id(gate, "gate name")
    item_id = RandomIds().token() if answer_id is None else check_id(answer_id, "answer id")
    if reach.broker is not None:
        return asyncio.run(_resume_by_broker(reach, key, gate, answer, item_id, actor))
    item = InboxItem(
        tenant=key.tenant,
        execution_id=key.execution_id,
        item_id=item_id,
        kind=InboxKind.ANSWER,
        gate=gate,
        payload=ANY.encode(answer, what=f"answer to gate {gate}", limit=PAYLOAD_LIMIT),
        actor=check_actor(actor),
    )
    return asyncio.run(_resume_in_journal(reach, item))


async def _resume_by_broker(
    reach: Reach, key: ExecutionKey, gate: str, answer: object, item_id: str, actor: str
) -> Exit:
    async with open_client(reach) as client:
        fate = await client.handle(key.execution_id).resume_as(
            actor, gate, answer, answer_id=item_id, timeout=reach.patience
        )
    return _tell_answered(reach, key, gate, item_id, fate)


async def _resume_in_journal(reach: Reach, item: InboxItem) -> Exit:
    async with open_journal(reach) as journal:
        await check_wanted(journal, item)
        fate = await deliver(reach, journal, item)
    return _tell_answered(reach, item.key, item.gate, item.item_id, fate)


async def check_wanted(journal: Journal, item: InboxItem) -> None:
    """Look whether anybody would ever take an answer or a verdict.

    Raises:
        ResumeRefusedError: no; `reason` says why.
        UnknownExecutionError: there is no such execution.
    """
    row = await existing(journal, item.key)
    if row.status.terminal:
        return  # the journal refuses it in its own words
    state = await folded(journal, item.key)
    refusal = refusal_of(state, item)
    if refusal is not None:
        raise refusal
    if item.kind is InboxKind.ANSWER and row.in_doubt and item.gate not in row.gates:
        raise ResumeRefusedError(
            f"execution {row.execution_id!r} waits for a verdict on "
            f"{names('step', row.in_doubt)}, not for an answer to gate {item.gate!r}; say first "
            "how it ended (`loom verdict`)",
            reason=RefusalReason.IN_DOUBT.value,
            execution_id=row.execution_id,
        )


async def deliver(reach: Reach, journal: Journal, item: InboxItem) -> Answered:
    """Lay an answer or a verdict into its inbox, and see what becomes of it.

    Raises:
        ResumeRefusedError: it has ended, or what it waits at did not take it.
    """
    [verdict] = await journal.deliver([item], resend_after=0.0)
    check_delivered(verdict, item)
    if await note_if_alone(reach, journal):
        return Answered.STORED
    return await _fate(journal, item)


def check_delivered(verdict: DeliverVerdict, item: InboxItem) -> None:
    """Raise what the journal said against an item."""
    error = verdict.error
    if error is None:
        return
    if item.kind is not InboxKind.CANCEL and isinstance(error, ExecutionEndedError):
        reason = RefusalReason.TERMINAL.value
        raise ResumeRefusedError(error.message, reason=reason, execution_id=item.execution_id)
    raise error


async def _fate(journal: Journal, item: InboxItem) -> Answered:
    """What became of an answer or a verdict within a short while.

    Raises:
        ResumeRefusedError: its gate or its step did not take it.
    """

    async def gone() -> bool:
        [unread] = await journal.inbox([item.key])
        return all(each.item_id != item.item_id for each in unread)

    if not await within(FOLLOW_SECONDS, gone):
        return Answered.STORED
    async for page in pages(journal, item.key):
        for envelope in page:
            event = decode_payload(envelope)
            match event:
                case ev.AnswerTaken(answer_id=taken) | ev.VerdictTaken(verdict_id=taken):
                    if taken == item.item_id:
                        return Answered.TAKEN
    row = await existing(journal, item.key)
    if row.status.terminal:
        raise ResumeRefusedError(
            f"execution {row.execution_id!r} has ended {row.status.value}",
            reason=RefusalReason.TERMINAL.value,
            execution_id=row.execution_id,
        )
    what = f"the answer does not fit gate {item.gate!r}; the gate stays open"
    if item.kind is InboxKind.VERDICT:
        what = f"the verdict does not fit step {item.gate!r}; it stays in doubt"
    raise ResumeRefusedError(
        f"execution {row.execution_id!r}: {what}",
        reason=RefusalReason.WRONG_TYPE.value,
        execution_id=row.execution_id,
    )


def _tell_answered(
    reach: Reach, key: ExecutionKey, gate: str, item_id: str, fate: Answered
) -> Exit:
    body: Item = {"id": key.execution_id, "gate": gate, "answer_id": item_id, "fate": fate.value}
    kept = "its gate took it" if fate is Answered.TAKEN else "kept until its gate takes it"
    reach.screen.show(Page(kind="resume", items=[body], lines=[f"{key.execution_id}: {kept}"]))
    return Exit.DONE


async def within(seconds: float, condition: Callable[[], Awaitable[bool]]) -> bool:
    """Whether a condition comes true soon."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not await condition():
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(_LOOK_SECONDS)
    return True
