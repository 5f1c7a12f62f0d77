"""`loom dlq`: messages that nobody could use (F2).

Dispatchers take them from the broker's dead-letter queue and keep them in the journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from loom_mq.broker.protocol import Broker, Outgoing
from loom_mq.broker.topology import CONTROL, START
from loom_mq.cli import filters, letters
from loom_mq.cli.asking import DryRun, Yes, ask
from loom_mq.cli.exits import Exit
from loom_mq.cli.options import Limit, reach_of
from loom_mq.cli.reach import Reach, open_broker, open_journal
from loom_mq.cli.screen import Cell, Item, Page
from loom_mq.cli.text import json_text, moment, plain
from loom_mq.cli.views import NOTHING
from loom_mq.clock import MICROS
from loom_mq.errors import InputError, SettingsError
from loom_mq.journal.protocol import DeadLetter, Journal
from loom_mq.kernel.wording import counted, span

_SCAN: Final = 10_000
"""The newest letters, among which the named ones are sought."""
_EXECUTIONS: Final = 3
COLUMNS: Final = ("ID", "QUEUE", "REASON", "DELIVERIES", "SINCE", "EXECUTION")

app: Final = typer.Typer(invoke_without_command=True, no_args_is_help=False)

Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="These letters.")]
OfQueue = Annotated[
    str | None, typer.Option("--queue", help="Only from this queue, as the list names it.")
]
OfReason = Annotated[
    str | None, typer.Option("--reason", metavar="TEXT", help="Only with this in their reason.")
]
OlderThan = Annotated[
    str | None, typer.Option("--older-than", metavar="AGE", help="Only older ones: 12h, 30d.")
]
All = Annotated[bool, typer.Option("--all", help="All of them.")]


class Choice:
    """Which letters a command is about.

    Args:
        ids: these; all that the rest fits when there are none.
        queue: from this queue.
        reason: with this in their reason.
        older: at least so old.
    """

    def __init__(
        self,
        ids: Sequence[str] | None,
        queue: str | None = None,
        reason: str | None = None,
        older: str | None = None,
    ) -> None:
        self.ids = tuple(ids or ())
        self.filtered = queue is not None or reason is not None or older is not None
        self._queue = queue
        self._reason = reason
        self._age = None if older is None else filters.age(older, "--older-than")

    async def of(self, journal: Journal, limit: int = _SCAN) -> list[DeadLetter]:
        """The letters, newest first."""
        now = await journal.now()
        before = now if self._age is None else now - int(self._age.total_seconds() * MICROS)
        plainly = not self.ids and not self.filtered
        found = await journal.dead_letters(limit if plainly else _SCAN)
        return [
            letter
            for letter in found
            if (not self.ids or letter.id in self.ids)
            and (self._queue is None or letter.queue == self._queue)
            and (self._reason is None or self._reason in letter.reason)
            and letter.at <= before
        ][:limit]

    async def acted_on(self, journal: Journal) -> list[DeadLetter]:
        """The letters, none of the named ones missing.

        Raises:
            InputError: one is missing.
        """
        found = await self.of(journal)
        for each in self.ids:
            if all(letter.id != each for letter in found):
                raise InputError(f"there is no dead letter {each!r}; `loom dlq` lists them")
        return found


# ---- looking ------------------------------------------------------------------------------------


@app.callback()
def dlq(
    ctx: typer.Context,
    queue: OfQueue = None,
    reason: OfReason = None,
    older: OlderThan = None,
    limit: Limit = 50,
) -> Exit:
    """List dead letters: messages that nobody could use, newest first."""
    if ctx.invoked_subcommand is not None:
        return Exit.DONE
    return list_letters(ctx, queue, reason, older, limit)


@app.command("list")
def list_letters(
    ctx: typer.Context,
    queue: OfQueue = None,
    reason: OfReason = None,
    older: OlderThan = None,
    limit: Limit = 50,
) -> Exit:
    """List dead letters, newest first."""
    return asyncio.run(_list(reach_of(ctx), Choice(None, queue, reason, older), limit))


async def _list(reach: Reach, choice: Choice, limit: int) -> Exit:
    async with open_journal(reach) as journal:
        found = await choice.of(journal, limit)
        now = await journal.now()
    reach.screen.show(
        Page(
            kind="dead_letters",
            items=[_item(letter, now) for letter in found],
            columns=COLUMNS,
            rows=[_cells(letter, now) for letter in found],
            empty="no dead letters",
        )
    )
    return Exit.DONE


def _item(letter: DeadLetter, now: int) -> Item:
    return {
        "id": letter.id,
        "queue": letter.queue,
        "reason": letter.reason,
        "deliveries": letters.deliveries(letter),
        "at": moment(letter.at),
        "since_seconds": max(0, now - letter.at) / MICROS,
        "executions": [
            {"tenant": key.tenant, "id": key.execution_id} for key in letters.executions(letter)
        ],
        "headers": letter.headers,
        "body": letter.body,
    }


def _cells(letter: DeadLetter, now: int) -> tuple[Cell, ...]:
    about = [key.execution_id for key in letters.executions(letter)]
    more = f", {len(about) - _EXECUTIONS} more" if len(about) > _EXECUTIONS else ""
    return (
        letter.id,
        letter.queue or NOTHING,
        letter.reason or NOTHING,
        letters.deliveries(letter) or NOTHING,
        span((now - letter.at) / MICROS),
        ", ".join(about[:_EXECUTIONS]) + more if about else NOTHING,
    )


@app.command("show")
def show(
    ctx: typer.Context,
    letter_id: Annotated[str, typer.Argument(metavar="ID", help="The letter.")],
) -> Exit:
    """Show a dead letter: where it was, why it is dead, and what is in it."""
    return asyncio.run(_show(reach_of(ctx), letter_id))


async def _show(reach: Reach, letter_id: str) -> Exit:
    async with open_journal(reach) as journal:
        found = await Choice([letter_id]).of(journal)
        now = await journal.now()
    if not found:
        reach.screen.error(
            "unknown-dead-letter",
            f"there is no dead letter {letter_id!r}",
            execution_id=None,
            hint="`loom dlq` lists them",
        )
        return Exit.NOT_FOUND
    [letter] = found
    message = letters.read(letter)
    told = None if message is None else plain(letters.shown(message))
    lines: list[Cell] = [
        f"{letter.id}  from queue {letter.queue or 'unknown'}",
        f"dead for {span((now - letter.at) / MICROS)}: {letter.reason or 'nobody knows why'}",
        *(f"  {name}: {value}" for name, value in sorted(letter.headers.items())),
    ]
    if message is None:
        lines.append(f"{counted(len(letter.body), 'byte')} that are no message of loom-mq:")
        lines.append(repr(letter.body[:1000]))
    else:
        lines.append(json_text(told, indent=2))
        lines.append(f"Next: {reach.copyable(f'loom dlq requeue {letter.id}')}")
    reach.screen.show(
        Page(kind="dead_letter", items=[{**_item(letter, now), "message": told}], lines=lines)
    )
    return Exit.DONE


# ---- acting -------------------------------------------------------------------------------------


@app.command("requeue")
def requeue(
    ctx: typer.Context,
    ids: Ids = None,
    queue: OfQueue = None,
    reason: OfReason = None,
    older: OlderThan = None,
    everything: All = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> Exit:
    """Send dead letters to their queue once more; those that arrive are listed no longer.

    Harmless for starts and packages: an execution is started once and driven by one.
    Needs --broker.
    """
    reach = reach_of(ctx)
    choice = _chosen(ids, queue, reason, older, everything)
    if reach.embedded:
        raise SettingsError(
            "this journal has no broker to send anything to: what waits is sent again by itself, "
            "and a start that was refused is made with `loom start`"
        )
    reach.broker_address()
    return asyncio.run(_requeue(reach, choice, dry_run=dry_run, yes=yes))


async def _requeue(reach: Reach, choice: Choice, *, dry_run: bool, yes: bool) -> Exit:
    outcomes: list[tuple[DeadLetter, str]] = []
    async with open_journal(reach) as journal:
        found = await choice.acted_on(journal)
        if found and not dry_run:
            if not choice.ids:
                ask(reach, f"{counted(len(found), 'dead letter')} will be sent again.", yes=yes)
            async with open_broker(reach) as broker:
                for letter in found:
                    outcomes.append((letter, await _send(journal, broker, letter)))
        else:
            outcomes = [(letter, _refusal(letter) or "would be sent") for letter in found]
    return _tell(reach, "dlq-requeue", outcomes, done=_SENT, dry_run=dry_run)


_SENT: Final = "sent"
_DROPPED: Final = "dropped"


def _refusal(letter: DeadLetter) -> str:
    known = {START.name, CONTROL.name}
    if letter.queue in known or letter.queue.startswith("loom.work."):
        return ""
    return f"nobody would take it from queue {letter.queue!r}; drop it"


async def _send(journal: Journal, broker: Broker, letter: DeadLetter) -> str:
    """Publish first, then drop: what is sent twice does nothing the second time."""
    refused = _refusal(letter)
    if refused:
        return refused
    headers = dict(letter.headers)
    content_type = headers.pop(letters.CONTENT_TYPE, "")
    again = {name: value for name, value in headers.items() if not name.startswith("x-")}
    [error] = await broker.publish(
        [Outgoing(queue=letter.queue, body=letter.body, content_type=content_type, headers=again)]
    )
    if error is not None:
        return f"not sent: {error.message}"
    await journal.drop_dead_letters([letter.id])
    return _SENT


@app.command("drop")
def drop(
    ctx: typer.Context,
    ids: Ids = None,
    queue: OfQueue = None,
    reason: OfReason = None,
    older: OlderThan = None,
    everything: All = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> Exit:
    """Throw dead letters away."""
    choice = _chosen(ids, queue, reason, older, everything)
    return asyncio.run(_drop(reach_of(ctx), choice, dry_run=dry_run, yes=yes))


app.command("discard", hidden=True)(drop)


async def _drop(reach: Reach, choice: Choice, *, dry_run: bool, yes: bool) -> Exit:
    async with open_journal(reach) as journal:
        found = await choice.acted_on(journal)
        if not found or dry_run:
            outcomes = [(letter, "would be dropped") for letter in found]
        else:
            ask(reach, f"{counted(len(found), 'dead letter')} will be gone for good.", yes=yes)
            gone = await journal.drop_dead_letters([letter.id for letter in found])
            outcomes = [
                (letter, _DROPPED if went else "gone already")
                for letter, went in zip(found, gone, strict=True)
            ]
    return _tell(reach, "dlq-drop", outcomes, done=_DROPPED, dry_run=dry_run)


def _chosen(
    ids: Sequence[str] | None,
    queue: str | None,
    reason: str | None,
    older: str | None,
    everything: bool,
) -> Choice:
    choice = Choice(ids, queue, reason, older)
    if sum((bool(choice.ids), choice.filtered, everything)) != 1:
        raise InputError(
            "say which letters: their IDs, or --queue, --reason and --older-than, or --all"
        )
    return choice


def _tell(
    reach: Reach,
    kind: str,
    outcomes: Sequence[tuple[DeadLetter, str]],
    *,
    done: str,
    dry_run: bool,
) -> Exit:
    number = sum(outcome == done for _letter, outcome in outcomes)
    reach.screen.show(
        Page(
            kind=kind,
            items=[
                {
                    "id": letter.id,
                    "queue": letter.queue,
                    "outcome": outcome,
                    "done": outcome == done,
                    "dry_run": dry_run,
                }
                for letter, outcome in outcomes
            ],
            columns=("ID", "QUEUE", "OUTCOME"),
            rows=[(letter.id, letter.queue or NOTHING, outcome) for letter, outcome in outcomes],
            lines=[]
            if dry_run
            else [f"{done} {number} of {counted(len(outcomes), 'dead letter')}"],
            empty="no such dead letters",
        )
    )
    return Exit.DONE if dry_run or number == len(outcomes) else Exit.REFUSED
