"""What every command takes: the execution's id, and the options that hold for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import typer

from loom_mq.cli.reach import Reach

ExecutionId = Annotated[str, typer.Argument(metavar="ID", help="The execution.")]
As = Annotated[str, typer.Option("--as", metavar="NAME", help="Who says so, for its log.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=100_000, help="How many at most.")]

VALUED: Final = frozenset(
    {"--journal", "--broker", "--tenant", "--timeout", "--columns", "--watch"}
)
LOOKING: Final = frozenset(
    {
        *("list", "ls", "show", "why", "history", "stuck", "census", "introspect", "profile"),
        *("queues", "workers", "timers", "flows", "dlq", "doctor", "schedules"),
    }
)
"""Commands that can be looked at again and again."""
ACTING: Final = frozenset({"reconcile", "requeue", "drop", "discard"})
"""What some of them have beside looking."""
SCHEDULING: Final = frozenset(
    {"create", "update", "pause", "resume", "trigger", "backfill", "delete"}
)
"""What `loom schedules` has beside looking."""
FLAGS: Final = frozenset({"--json", "--no-color"})


def reach_of(ctx: typer.Context) -> Reach:
    """What was said before the command's name."""
    reach = ctx.obj
    assert isinstance(reach, Reach)  # the root's callback has put it there
    return reach


def hoisted(arguments: Sequence[str]) -> list[str]:
    """The options that hold for every command, moved before the command's name.

    People write them where they come to mind, and the parser takes them in front only.
    What stands after a bare ``--`` is left where it is.
    """
    front: list[str] = []
    rest: list[str] = []
    waiting = iter(arguments)
    for argument in waiting:
        if argument == "--":
            return [*front, *rest, argument, *waiting]
        if argument in FLAGS or (argument.partition("=")[0] in VALUED and "=" in argument):
            front.append(argument)
        elif argument in VALUED:
            front += [argument, *(value for value in (next(waiting, None),) if value is not None)]
        else:
            rest.append(argument)
    return [*front, *rest]


def watch_of(ordered: Sequence[str]) -> str | None:
    """The pause of ``--watch`` on a command line that was put in order; None without it."""
    for place, argument in enumerate(ordered):
        if argument == "--":
            return None
        name, equals, value = argument.partition("=")
        if name == "--watch":
            return value if equals else next(iter(ordered[place + 1 : place + 2]), None)
    return None
