"""`loom history`: the log of an execution, event by event."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
import typer

from loom_mq.cli.exits import Exit
from loom_mq.cli.options import ExecutionId, reach_of
from loom_mq.cli.reach import Reach, open_journal
from loom_mq.cli.reading import existing, pages
from loom_mq.cli.screen import Cell, Item, Page
from loom_mq.cli.text import clock_time, moment
from loom_mq.cli.views import NOTHING
from loom_mq.clock import MICROS
from loom_mq.codec.values import to_display
from loom_mq.errors import InputError
from loom_mq.kernel.fold import decode_payload
from loom_mq.model import events as ev
from loom_mq.model.events import Envelope, EventKind

COLUMNS: Final = ("SEQ", "AT", "Δ", "KIND", "STEP/GATE", "FENCE", "WORKER", "DETAIL")
_DETAIL: Final = 120


def history(
    ctx: typer.Context,
    execution_id: ExecutionId,
    kind: Annotated[
        list[str] | None, typer.Option("--kind", help="Only events of this kind; repeatable.")
    ] = None,
    tail: Annotated[int | None, typer.Option("--tail", min=1, help="Only the newest.")] = None,
    payloads: Annotated[bool, typer.Option("--payloads", help="Show values, too.")] = False,
) -> Exit:
    """Show the log of an execution, event by event."""
    kinds = {each.upper() for each in kind or ()}
    unknown = sorted(kinds - set(EventKind))
    if unknown:
        raise InputError(f"there is no event kind {unknown[0]!r}; one is {', '.join(EventKind)}")
    return asyncio.run(_history(reach_of(ctx), execution_id, kinds, tail, payloads=payloads))


async def _history(
    reach: Reach, execution_id: str, kinds: set[str], tail: int | None, *, payloads: bool
) -> Exit:
    key = reach.key(execution_id)
    lines = []
    async with open_journal(reach) as journal:
        row = await existing(journal, key)
        holder = {} if row.owner is None else {row.fence: row.owner}
        writer = History(payloads=payloads, owners=holder)
        async for page in pages(journal, key):
            lines += [(each.kind, *writer.line(each)) for each in page]
    chosen = [(item, cells) for kind, item, cells in lines if not kinds or kind in kinds]
    if tail is not None:
        chosen = chosen[-tail:]
    reach.screen.show(
        Page(
            kind="events",
            items=[item for item, _cells in chosen],
            columns=COLUMNS,
            rows=[cells for _item, cells in chosen],
            empty="no events yet" if not lines else "no such events",
        )
    )
    return Exit.DONE


# ---- one line ----------------------------------------------------------------------------------


class History:
    """Turns the events of one log, in their order, into lines.

    Args:
        payloads: show values as well.
        owners: who holds which fence, as far as it is known. The log itself names only
            those who took over from a dead one.
    """

    def __init__(self, *, payloads: bool, owners: Mapping[int, str] | None = None) -> None:
        self._payloads = payloads
        self._owners = dict(owners or {})
        self._steps: dict[str, str] = {}
        self._before: int | None = None

    def line(self, envelope: Envelope) -> tuple[Item, tuple[Cell, ...]]:
        """One event, for programs and for people."""
        event = decode_payload(envelope)
        if isinstance(event, ev.StepStarted):
            self._steps[event.step_id] = event.name
        if isinstance(event, ev.ExecutionRecovered):
            self._owners[envelope.fence] = event.owner
        worker = self._owners.get(envelope.fence)
        place, name = _place(event)
        name = name or self._steps.get(place, "")
        detail = _detail(event)
        value = _value(event) if self._payloads else None
        after = 0 if self._before is None else envelope.at - self._before
        self._before = envelope.at
        item: Item = {
            "seq": envelope.seq,
            "at": moment(envelope.at),
            "after_seconds": after / MICROS,
            "kind": envelope.kind,
            "place": place or None,
            "name": name or None,
            "fence": envelope.fence,
            "worker": worker,
            "detail": detail or None,
            "payload": value,
        }
        shown = detail if value is None else f"{detail} {value!r}".strip()
        cells: tuple[Cell, ...] = (
            str(envelope.seq),
            clock_time(envelope.at),
            f"+{after / MICROS:.3f}",
            envelope.kind,
            name or place or NOTHING,
            str(envelope.fence),
            worker or NOTHING,
            shown if self._payloads else _short(shown),
        )
        return item, cells


def _short(text: str) -> str:
    return text if len(text) <= _DETAIL else text[: _DETAIL - 1] + "…"


def _place(event: msgspec.Struct | None) -> tuple[str, str]:
    match event:
        case ev.StepStarted(step_id=place, name=name) | ev.EffectInDoubt(step_id=place, name=name):
            return place, name
        case (
            ev.StepCompleted(step_id=place)
            | ev.StepFailed(step_id=place)
            | ev.StepCancelled(step_id=place)
            | ev.StepRetrying(step_id=place)
            | ev.StepTold(step_id=place)
            | ev.VerdictTaken(step_id=place)
        ):
            return place, ""
        case ev.DecisionRecorded(op_id=place, name=name):
            return place, name
        case ev.CustomEmitted(op_id=place, topic=name):
            return place, name
        case ev.AnswerTaken(wait_id=place, gate=name):
            return place, name
        case ev.ExecutionSuspended(waits=waits):
            return "", ", ".join(wait.name for wait in waits if wait.name)
    return "", ""


def _detail(event: msgspec.Struct | None) -> str:
    match event:
        case ev.ExecutionStarted(flow=flow, version=version):
            return f"{flow} version {version}"
        case ev.ExecutionRecovered(owner=owner, attempt=attempt):
            return f"attempt {attempt} on {owner}"
        case ev.ExecutionSuspended(waits=waits):
            return "; ".join(
                wait.kind.value + ("" if wait.due is None else f" until {moment(wait.due)}")
                for wait in waits
            )
        case ev.StepStarted(attempt=attempt):
            return "" if attempt == 1 else f"attempt {attempt}"
        case ev.StepFailed(failure=failure) | ev.ExecutionFailed(failure=failure):
            return failure.headline
        case ev.StepRetrying(failure=failure, due=due):
            return f"again at {clock_time(due)}: {failure.headline}"
        case ev.ExecutionCancelled(reason=reason):
            return reason
        case ev.CancelRequested(reason=reason, actor=actor):
            return _said(reason, actor)
        case ev.AnswerTaken(actor=actor):
            return _said("", actor)
        case ev.EffectInDoubt(attempt=attempt):
            return f"attempt {attempt}: began, and nobody knows how it ended"
        case ev.VerdictTaken(verdict=verdict, message=message, actor=actor):
            return _said(f"{verdict.value}: {message}" if message else verdict.value, actor)
    return ""


def _said(what: str, actor: str) -> str:
    return f"{what} (by {actor})".strip() if actor else what


def _value(event: msgspec.Struct | None) -> object:
    match event:
        case ev.ExecutionStarted(input=data):
            return to_display(data)
        case ev.StepCompleted(result=data) | ev.ExecutionCompleted(result=data):
            return to_display(data)
        case ev.DecisionRecorded(value=data) | ev.CustomEmitted(value=data):
            return to_display(data)
        case ev.AnswerTaken(answer=data):
            return to_display(data)
    return None
