"""`loom cancel`: one execution, or all that some filters find (K13)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
import typer

from loom_mq.cli import choosing, filters
from loom_mq.cli.acting import note_if_alone
from loom_mq.cli.answering import FOLLOW_SECONDS, check_delivered, within
from loom_mq.cli.asking import DryRun, Yes, ask
from loom_mq.cli.choosing import Narrow, choose
from loom_mq.cli.exits import Exit
from loom_mq.cli.options import reach_of
from loom_mq.cli.reach import Reach, open_client, open_journal
from loom_mq.cli.reading import existing
from loom_mq.cli.screen import Item, Page
from loom_mq.cli.survey import PAGE, UNENDED, Survey
from loom_mq.engine.control import MAX_REASON_BYTES
from loom_mq.errors import InputError
from loom_mq.journal.protocol import Journal, ListQuery
from loom_mq.kernel.explain import ReasonCode
from loom_mq.kernel.wording import counted
from loom_mq.model.execution import (
    CANCEL_ID,
    ExecutionKey,
    ExecutionRow,
    InboxItem,
    InboxKind,
    Status,
)

_BATCH: Final = 100
_SAMPLE: Final = 3


def cancel(
    ctx: typer.Context,
    execution_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="The execution; none with filters.")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why, for people.")] = "",
    status: filters.OfStatus = None,
    flow: filters.OfFlow = None,
    version: filters.OfVersion = None,
    queue: filters.OfQueue = None,
    label: filters.OfLabel = None,
    since: choosing.Since = None,
    until: choosing.Until = None,
    prefix: choosing.OfPrefix = None,
    stuck: Annotated[
        ReasonCode | None,
        typer.Option("--stuck", metavar="REASON", help="Only where this is why; see `loom stuck`."),
    ] = None,
    rate: Annotated[
        int | None, typer.Option("--rate", min=1, metavar="N", help="So many a second at most.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> Exit:
    """Cancel an execution, or without ID all unended ones that the filters find.

    With filters it says how many there are and asks; they are told through the journal.
    """
    reach = reach_of(ctx)
    query = filters.query(
        reach.tenant, 0, status=status, flow=flow, version=version, queue=queue, label=label
    )
    narrow = Narrow(since=since, until=until, prefix=prefix, reason=stuck)
    narrow.check()
    filtered = narrow.asks or query != ListQuery(tenant=reach.tenant)
    if execution_id is None:
        if not filtered:
            raise InputError("say which: an ID, or filters such as --flow and --status")
        task = _Bulk(reach, query, narrow, reason, rate)
        return asyncio.run(task.run(dry_run=dry_run, yes=yes))
    if filtered or dry_run or rate:
        raise InputError("filters, --rate and --dry-run go with no ID")
    key = reach.key(execution_id)
    if reach.broker is not None:
        return asyncio.run(_cancel_by_broker(reach, key, reason))
    return asyncio.run(_cancel_in_journal(reach, _item(key, reason)))


def _item(key: ExecutionKey, reason: str) -> InboxItem:
    return InboxItem(
        tenant=key.tenant,
        execution_id=key.execution_id,
        item_id=CANCEL_ID,
        kind=InboxKind.CANCEL,
        payload=reason.encode(errors="replace")[:MAX_REASON_BYTES],
    )


# ---- one ----------------------------------------------------------------------------------------


async def _cancel_by_broker(reach: Reach, key: ExecutionKey, reason: str) -> Exit:
    async with open_client(reach) as client:
        handle = client.handle(key.execution_id)
        before = (await handle.state(timeout=reach.patience)).status
        await handle.cancel(reason, timeout=reach.patience)

        async def ended() -> bool:
            return (await handle.state(timeout=reach.patience)).status.terminal

        await within(FOLLOW_SECONDS, ended)
        after = (await handle.state(timeout=reach.patience)).status
    return _tell_cancelled(reach, key, before, after)


async def _cancel_in_journal(reach: Reach, item: InboxItem) -> Exit:
    async with open_journal(reach) as journal:
        [verdict] = await journal.deliver([item], resend_after=0.0)
        check_delivered(verdict, item)
        before = after = (await existing(journal, item.key)).status
        if verdict.row is not None:
            before = verdict.row.status
        if not await note_if_alone(reach, journal):

            async def ended() -> bool:
                return (await existing(journal, item.key)).status.terminal

            await within(FOLLOW_SECONDS, ended)
            after = (await existing(journal, item.key)).status
    return _tell_cancelled(reach, item.key, before, after)


def _tell_cancelled(reach: Reach, key: ExecutionKey, before: Status, after: Status) -> Exit:
    body: Item = {"id": key.execution_id, "before": before.value, "after": after.value}
    line = f"{key.execution_id}: {before.value} → {after.value}"
    if not after.terminal:
        line = f"{key.execution_id}: asked to stop; it is still {after.value}"
    reach.screen.show(Page(kind="cancel", items=[body], lines=[line]))
    return Exit.DONE


# ---- many ---------------------------------------------------------------------------------------


class _Bulk:
    """All that some filters find."""

    def __init__(
        self, reach: Reach, query: ListQuery, narrow: Narrow, reason: str, rate: int | None
    ) -> None:
        self._reach = reach
        self._query = query
        self._narrow = narrow
        self._reason = reason
        self._rate = rate

    async def run(self, *, dry_run: bool, yes: bool) -> Exit:
        async with open_journal(self._reach) as journal:
            rows = await self._find(journal)
            outcomes = [(row, "would be told to stop") for row in rows]
            if rows and not dry_run:
                sample = ", ".join(row.execution_id for row in rows[:_SAMPLE])
                more = ", …" if len(rows) > _SAMPLE else ""
                what = f"{counted(len(rows), 'execution')} ({sample}{more}) will be cancelled."
                ask(self._reach, what, yes=yes)
                outcomes = await self._tell(journal, rows)
                await note_if_alone(self._reach, journal)
        return self._show(outcomes, dry_run=dry_run)

    async def _find(self, journal: Journal) -> list[ExecutionRow]:
        query = msgspec.structs.replace(self._query, limit=PAGE)
        statuses = UNENDED if query.status is None else (query.status,)
        found: dict[ExecutionKey, ExecutionRow] = {}
        for status in statuses:
            pages = choose(
                journal,
                msgspec.structs.replace(query, status=status),
                self._narrow,
                Survey(self._reach, journal, limit=PAGE),
            )
            async for rows in pages:
                found.update((row.key, row) for row in rows if not row.status.terminal)
        return list(found.values())

    async def _tell(
        self, journal: Journal, rows: Sequence[ExecutionRow]
    ) -> list[tuple[ExecutionRow, str]]:
        outcomes: list[tuple[ExecutionRow, str]] = []
        size = _BATCH if self._rate is None else min(_BATCH, self._rate)
        for start in range(0, len(rows), size):
            if start and self._rate is not None:
                await asyncio.sleep(size / self._rate)
            batch = rows[start : start + size]
            items = [_item(row.key, self._reason) for row in batch]
            verdicts = await journal.deliver(items, resend_after=0.0)
            for row, verdict in zip(batch, verdicts, strict=True):
                error = verdict.error
                outcomes.append((row, _TOLD if error is None else error.message))
        return outcomes

    def _show(self, outcomes: Sequence[tuple[ExecutionRow, str]], *, dry_run: bool) -> Exit:
        told = sum(outcome == _TOLD for _row, outcome in outcomes)
        self._reach.screen.show(
            Page(
                kind="cancel-many",
                items=[
                    {
                        "id": row.execution_id,
                        "flow": row.flow,
                        "before": row.status.value,
                        "outcome": outcome,
                        "done": outcome == _TOLD,
                        "dry_run": dry_run,
                    }
                    for row, outcome in outcomes
                ],
                columns=("ID", "FLOW", "BEFORE", "OUTCOME"),
                rows=[
                    (row.execution_id, row.flow, row.status.value, outcome)
                    for row, outcome in outcomes
                ],
                lines=[] if dry_run else [f"told {told} of {counted(len(outcomes), 'execution')}"],
                empty="no such executions that have not ended",
            )
        )
        return Exit.DONE if dry_run or told == len(outcomes) else Exit.REFUSED


_TOLD: Final = "told to stop"
