"""`loom fork`: a new execution that goes on from where an old one was (J8)."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from loom_mq.cli.acting import note_if_alone
from loom_mq.cli.exits import Exit
from loom_mq.cli.inputs import parse_labels
from loom_mq.cli.options import ExecutionId, reach_of
from loom_mq.cli.reach import Reach, open_journal
from loom_mq.cli.reading import existing
from loom_mq.cli.screen import Item, Page
from loom_mq.errors import InputError
from loom_mq.lifecycle.fork import fork as branch_off


def fork(
    ctx: typer.Context,
    execution_id: ExecutionId,
    new_id: Annotated[str, typer.Argument(metavar="NEW_ID", help="Id of the new one.")],
    at: Annotated[
        int | None,
        typer.Option("--at", min=0, metavar="SEQ", help="Keep up to this event."),
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(
            "--step",
            metavar="PLACE_OR_NAME",
            help="Keep it up to where this step, gate or decision began.",
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="NAME=VALUE", help="Not the old one's labels; repeatable."),
    ] = None,
) -> Exit:
    """Start a new execution that has been through the beginning of another one.

    Without --at and --step it keeps all but the end. It goes on with today's code: what
    had completed is not run again, what comes after is. The old one stays as it is.
    """
    if at is not None and step is not None:
        raise InputError("say --at or --step, not both")
    labels = None if label is None else parse_labels(label)
    return asyncio.run(_fork(reach_of(ctx), execution_id, new_id, at, step, labels))


async def _fork(
    reach: Reach,
    execution_id: str,
    new_id: str,
    at: int | None,
    step: str | None,
    labels: dict[str, str] | None,
) -> Exit:
    async with open_journal(reach) as journal:
        key = await branch_off(
            journal, reach.key(execution_id), new_id, at=at, step=step, labels=labels
        )
        row = await existing(journal, key)
        await note_if_alone(reach, journal)
    # the engine may have gone on with it already, so no event number is told
    item: Item = {"id": new_id, "from": execution_id, "status": row.status.value}
    line = f"{new_id}: goes on from {execution_id}"
    reach.screen.show(Page(kind="fork", items=[item], lines=[line]))
    return Exit.DONE
