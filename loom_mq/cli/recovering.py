"""`loom census`, `recover` and `reconcile-timers`: what dispatchers do, and more, by hand.

Over the broker a package goes out for each execution at once. Without one they are left to
the sweep of a dispatcher, which finds them within a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Final

import typer
from msgspec.structs import asdict

from loom_mq.cli import filters
from loom_mq.cli.acting import note_if_alone
from loom_mq.cli.asking import DryRun, Yes, ask
from loom_mq.cli.exits import Exit
from loom_mq.cli.options import reach_of
from loom_mq.cli.reach import Reach, open_broker, open_journal
from loom_mq.cli.screen import Cell, Item, Page
from loom_mq.engine.outbox import Outbox
from loom_mq.engine.packages import PackageSender
from loom_mq.errors import InputError
from loom_mq.ids import RandomIds
from loom_mq.journal.protocol import Journal, Runnable
from loom_mq.kernel.explain import MAX_RECOVERIES
from loom_mq.kernel.wording import counted
from loom_mq.model.execution import ExecutionKey
from loom_mq.model.messages import Cause
from loom_mq.observe.metrics import Metrics
from loom_mq.recovery.abandoned import RecoverySummary, Send, recover_abandoned
from loom_mq.recovery.again import send_again
from loom_mq.recovery.census import Census, orphan_census
from loom_mq.recovery.iteration import Left
from loom_mq.recovery.predicates import HolderGone, Predicate, all_of, older_than
from loom_mq.recovery.sources import Search
from loom_mq.recovery.timers import ReconcileSummary, reconcile_timers

_RESEND_AFTER: Final = 5.0
"""Seconds for a package over the broker to be claimed."""


# ---- loom census ------------------------------------------------------------------------------


def census(
    ctx: typer.Context,
    flow: filters.OfFlow = None,
    ids: Annotated[bool, typer.Option("--ids", help="One line per orphan.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with 7 if there are any.")] = False,
    max_recoveries: Annotated[
        int, typer.Option("--max-recoveries", min=1, help="What the dispatchers use.")
    ] = MAX_RECOVERIES,
) -> Exit:
    """Count runnable executions by flow, and those that nobody drives.

    held: a living worker drives it. waiting: a package is on its way or will be. lapsed:
    its worker is gone, the next sweep takes it. given-up: too many recoveries without
    progress. forgotten: no package is due. The last three are orphans.
    """
    return asyncio.run(_census(reach_of(ctx), flow, max_recoveries, ids=ids, check=check))


async def _census(
    reach: Reach, flow: str | None, max_recoveries: int, *, ids: bool, check: bool
) -> Exit:
    async with open_journal(reach) as journal:
        found = await orphan_census(
            journal, tenant=reach.tenant, flow=flow, max_recoveries=max_recoveries
        )
    _show_census(reach, found, ids=ids)
    return Exit.FOUND if check and found.orphaned else Exit.DONE


def _show_census(reach: Reach, found: Census, *, ids: bool) -> None:
    orphans: list[Item] = [
        {
            "id": each.row.execution_id,
            "flow": each.row.flow,
            "status": each.row.status.value,
            "keeping": each.keeping.value,
            "owner": each.row.owner,
            "recoveries": each.row.recoveries,
        }
        for each in found.orphans
    ]
    rows: list[tuple[Cell, ...]]
    columns: tuple[str, ...]
    kind = "orphans" if ids else "census"
    if ids:
        items = orphans
        columns = ("ID", "FLOW", "STATUS", "KEEPING", "RECOVERIES", "OWNER")
        rows = [
            (
                each.row.execution_id,
                each.row.flow,
                each.row.status.value,
                each.keeping.value,
                str(each.row.recoveries),
                each.row.owner or "-",
            )
            for each in found.orphans
        ]
    else:
        items = [
            {"flow": flow, **asdict(each), "orphaned": each.orphaned}
            for flow, each in found.flows.items()
        ]
        columns = ("FLOW", "HELD", "WAITING", "LAPSED", "GIVEN-UP", "FORGOTTEN")
        rows = [
            (flow, *(str(number) for number in asdict(each).values()))
            for flow, each in found.flows.items()
        ]
    empty = f"nobody's: none of {counted(found.looked_at, 'runnable execution')}"
    reach.screen.show(Page(kind=kind, items=items, columns=columns, rows=rows, empty=empty))


# ---- loom recover -----------------------------------------------------------------------------


def recover(
    ctx: typer.Context,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="With --again: these.")
    ] = None,
    again: Annotated[
        bool,
        typer.Option("--again", help="Send out what was given up; its count begins anew."),
    ] = False,
    owner_gone: Annotated[
        bool, typer.Option("--owner-gone", help="Those whose worker is dead or overdue.")
    ] = False,
    older: Annotated[
        str | None,
        typer.Option(
            "--older-than", metavar="AGE", help="Those that wrote nothing for so long: 12h, 30d."
        ),
    ] = None,
    flow: filters.OfFlow = None,
    max_recoveries: Annotated[
        int | None,
        typer.Option(
            "--max-recoveries",
            metavar="N",
            help="Leave and list those that were recovered so often without progress.",
        ),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> Exit:
    """Have abandoned executions driven again.

    Say what abandoned means: --owner-gone, --older-than, or both. Only running and
    pending executions are looked at. With --older-than alone the worker may be alive: it
    loses the execution, and the step that it is in runs a second time.
    """
    reach = reach_of(ctx)
    if again or ids:
        if not (again and ids) or owner_gone or older or flow or max_recoveries or dry_run:
            raise InputError(
                "say `loom recover ID --again` for executions that were given up, or "
                "--owner-gone or --older-than, without IDs, for all that are abandoned"
            )
        return asyncio.run(_again(reach, [reach.key(each) for each in ids]))
    if not owner_gone and older is None:
        raise InputError("say which are abandoned: --owner-gone, --older-than AGE, or both")
    task = _Recovery(reach, owner_gone, older, flow, max_recoveries)
    return asyncio.run(task.run(dry_run=dry_run, yes=yes))


class _Recovery:
    """One run of `loom recover`."""

    def __init__(
        self,
        reach: Reach,
        owner_gone: bool,
        older: str | None,
        flow: str | None,
        max_recoveries: int | None,
    ) -> None:
        self._reach = reach
        self._owner_gone = owner_gone
        self._age = None if older is None else filters.age(older, "--older-than")
        self._source = Search(tenant=reach.tenant, flow=flow)
        self._max_recoveries = max_recoveries
        self._exhausted: dict[ExecutionKey, int] = {}

    async def run(self, *, dry_run: bool, yes: bool) -> Exit:
        reach = self._reach
        async with open_journal(reach) as journal:
            abandoned = await self._predicate(journal)
            summary = await self._pass(journal, _nobody, abandoned, dry_run=True)
            claimed = summary.claimed - summary.exhausted
            if claimed and not dry_run:
                if not self._owner_gone:
                    what = f"{counted(claimed, 'execution')} will be taken from whoever drives them"
                    ask(reach, f"{what}, alive or not.", yes=yes)
                async with _sender(reach) as send:
                    summary = await self._pass(journal, send, abandoned, dry_run=False)
                await note_if_alone(reach, journal)
        self._show(summary, dry_run=dry_run)
        return Exit.REFUSED if summary.failed else Exit.DONE

    async def _predicate(self, journal: Journal) -> Predicate:
        chosen: list[Predicate] = []
        if self._age is not None:
            chosen.append(older_than(self._age, await journal.now()))
        if self._owner_gone:
            chosen.append(HolderGone(journal))
        return all_of(*chosen)

    async def _pass(
        self, journal: Journal, send: Send, abandoned: Predicate, *, dry_run: bool
    ) -> RecoverySummary:
        self._exhausted.clear()
        return await recover_abandoned(
            journal,
            send,
            self._source,
            abandoned,
            max_recoveries=self._max_recoveries,
            dry_run=dry_run,
            on_exhausted=self._exhausted.__setitem__,
            resend_after=0.0 if self._reach.broker is None else _RESEND_AFTER,
        )

    def _show(self, summary: RecoverySummary, *, dry_run: bool) -> None:
        item: Item = {
            **_plain(summary),
            "dry_run": dry_run,
            "given_up": [
                {"id": key.execution_id, "recoveries": number}
                for key, number in self._exhausted.items()
            ],
        }
        if dry_run:
            number = summary.claimed - summary.exhausted
            done = f"would recover {counted(number, 'execution')}"
        else:
            done = f"recovered {counted(summary.recovered + summary.unconfirmed, 'execution')}"
        lines = [f"{done} of {summary.looked_at} that are running or pending"]
        if summary.moved:
            lines.append(f"{counted(summary.moved, 'execution')} had moved on meanwhile")
        rows: list[tuple[Cell, ...]] = [
            (key.execution_id, str(number)) for key, number in self._exhausted.items()
        ]
        if rows:
            lines.append("The above are left running: mend the cause, then loom recover ID --again")
        page = Page(
            kind="recover",
            items=[item],
            columns=("GIVEN-UP", "RECOVERIES"),
            rows=rows,
            lines=[*lines, *_left(summary.failures, summary.failed)],
        )
        self._reach.screen.show(page)


async def _again(reach: Reach, keys: list[ExecutionKey]) -> Exit:
    done: list[ExecutionKey] = []
    async with open_journal(reach) as journal, _sender(reach) as send:
        for key in keys:
            row = await send_again(journal, key, ids=RandomIds())
            await send(Runnable(row))
            done.append(key)
            reach.screen.line(f"{key.execution_id}: sent out again, its count begins anew")
        await note_if_alone(reach, journal)
    if reach.screen.json:
        items = [{"id": key.execution_id, "again": True} for key in done]
        reach.screen.show(Page(kind="recover-again", items=items))
    return Exit.DONE


@asynccontextmanager
async def _sender(reach: Reach) -> AsyncIterator[Send]:
    """What sends packages: over the broker where there is one."""
    if reach.broker is None:
        yield _nobody
        return
    async with open_broker(reach) as broker:
        outbox = Outbox(broker, Metrics())
        packages = PackageSender(broker, outbox)

        async def send(runnable: Runnable) -> bool:
            return await packages.send(runnable.row, Cause.RECOVER, runnable.start)

        try:
            yield send
        finally:
            outbox.abort()


async def _nobody(_runnable: Runnable) -> bool:
    """No package: its hint is due, and a dispatcher's sweep sends one."""
    return True


# ---- loom reconcile-timers --------------------------------------------------------------------


def reconcile(ctx: typer.Context, flow: filters.OfFlow = None) -> Exit:
    """Arm again the timers of parked executions that have lost theirs.

    Harmless at any time: a timer that is there stays, and one that fires twice wakes
    nobody twice.
    """
    return asyncio.run(_reconcile(reach_of(ctx), flow))


async def _reconcile(reach: Reach, flow: str | None) -> Exit:
    async with open_journal(reach) as journal:
        summary = await reconcile_timers(journal, tenant=reach.tenant, flow=flow)
    item: Item = {**_plain(summary), "rearmed": [key.execution_id for key in summary.rearmed]}
    lines = [
        f"armed {counted(summary.armed, 'lost timer')} "
        f"of {counted(summary.timed, 'execution')} with a time to wake at",
        *_left(summary.failures, summary.failed),
    ]
    rows: list[tuple[Cell, ...]] = [(key.execution_id,) for key in summary.rearmed]
    reach.screen.show(
        Page(kind="reconcile-timers", items=[item], columns=("ARMED",), rows=rows, lines=lines)
    )
    return Exit.REFUSED if summary.failed else Exit.DONE


# ---- both -------------------------------------------------------------------------------------


def _plain(summary: RecoverySummary | ReconcileSummary) -> Item:
    failures = [{"id": left.key.execution_id, "why": left.why} for left in summary.failures]
    return {**asdict(summary), "failures": failures}


def _left(failures: tuple[Left, ...], failed: int) -> list[str]:
    named = [f"{left.key.execution_id}: left as it was: {left.why}" for left in failures]
    more = failed - len(failures)
    return [*named, *([f"and {more} more"] if more > 0 else [])]
