"""Which executions a command is about: the filters of `loom list` and its relatives."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import typer

from loom_mq.cli.inputs import parse_labels
from loom_mq.errors import InputError
from loom_mq.journal.protocol import ListQuery
from loom_mq.model.execution import Status

OfStatus = Annotated[Status | None, typer.Option("--status", help="Only this status.")]
OfFlow = Annotated[str | None, typer.Option("--flow", help="Only this flow.")]
OfVersion = Annotated[str | None, typer.Option("--version", help="Only this version of flows.")]
OfQueue = Annotated[str | None, typer.Option("--queue", help="Only this queue.")]
OfLabel = Annotated[
    list[str] | None,
    typer.Option(
        "--label", "--where", metavar="NAME=VALUE", help="Only with this label; repeatable."
    ),
]
EndedBefore = Annotated[
    str | None,
    typer.Option(
        "--ended-before",
        metavar="TIME",
        help="Only what ended before a time (2030-01-31, 2030-01-31T12:00Z) or so long ago (30d).",
    ),
]
InDoubt = Annotated[
    bool, typer.Option("--in-doubt", help="Only what waits for a verdict on a step.")
]
Troubled = Annotated[
    bool, typer.Option("--troubled", help="Only what its flow's code does not fit.")
]

QueryAt = Callable[[int], ListQuery]
"""The query at a journal time, from which ages count."""

_AGE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|w)\Z", re.IGNORECASE)
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def query(
    tenant: str,
    now: int,
    *,
    status: Status | None = None,
    flow: str | None = None,
    version: str | None = None,
    queue: str | None = None,
    label: Sequence[str] | None = None,
    ended_before: str | None = None,
    in_doubt: bool = False,
    troubled: bool = False,
) -> ListQuery:
    """What the options say; see their help.

    Args:
        tenant: whose executions.
        now: journal time, from which ages count.
        status: one status.
        flow: one flow.
        version: one version.
        queue: one queue.
        label: ``NAME=VALUE``, all of which must be there.
        ended_before: a time or an age.
        in_doubt: see `ListQuery`.
        troubled: see `ListQuery`.

    Raises:
        InputError: a label or a time cannot be read.
    """
    return ListQuery(
        tenant=tenant,
        status=status,
        flow=flow,
        version=version,
        queue=queue,
        labels=parse_labels(label or ()),
        ended_before=(
            None if ended_before is None else moment_before(ended_before, now, "--ended-before")
        ),
        in_doubt=in_doubt,
        troubled=troubled,
    )


def moment_before(text: str, now: int, option: str) -> int:
    """A time in the past, as a date or as an age, in journal time.

    Args:
        text: as it was typed.
        now: journal time.
        option: where it was typed.

    Raises:
        InputError: it is neither.
    """
    if _AGE.match(text.strip()):
        return now - age(text, option) // timedelta(microseconds=1)
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InputError(
            f"{option} {text!r} is neither a time such as 2030-01-31 or "
            "2030-01-31T12:00Z nor an age such as 30d"
        ) from None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return (at - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)


def age(text: str, option: str) -> timedelta:
    """A long duration: ``30d``, ``2w``, ``12h``, ``90m`` or ``10s``.

    Raises:
        InputError: it is none.
    """
    match = _AGE.match(text.strip())
    try:
        if match is not None:
            return timedelta(**{_UNITS[match[2].lower()]: float(match[1])})
    except OverflowError:
        pass
    raise InputError(f"{option} {text!r} is no age such as 12h, 30d or 2w")
