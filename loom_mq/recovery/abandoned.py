"""One pass over abandoned executions (F8; ADR 0004, amended; ADR 0105 D5)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec
import structlog

from loom_mq.errors import ConfigurationError
from loom_mq.journal.protocol import Journal, Runnable
from loom_mq.model.execution import ExecutionKey
from loom_mq.recovery.iteration import NAMED, Left, told
from loom_mq.recovery.predicates import Predicate
from loom_mq.recovery.sources import AbandonedSource, Batch, Rule

Send: TypeAlias = Callable[[Runnable], Awaitable[bool]]
"""Sends a package for an execution that was taken; whether it is known to have arrived."""
OnExhausted: TypeAlias = Callable[[ExecutionKey, int], None]

_log = structlog.get_logger(__name__)


class RecoverySummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a pass did.

    Attributes:
        looked_at: runnable executions that were looked at.
        claimed: those that the predicate called abandoned.
        recovered: taken from their holders, and a package for each has gone out.
        unconfirmed: taken, and nobody knows of their package; their hint sends another.
        exhausted: left running, because they were recovered too often without progress.
        moved: settled or changed hands before they could be taken; left alone.
        failed: left for the next pass, because something raised.
        failures: the first hundred of those.
    """

    looked_at: int = 0
    claimed: int = 0
    recovered: int = 0
    unconfirmed: int = 0
    exhausted: int = 0
    moved: int = 0
    failed: int = 0
    failures: tuple[Left, ...] = ()


async def recover_abandoned(
    journal: Journal,
    send: Send,
    source: AbandonedSource,
    is_abandoned: Predicate,
    *,
    max_recoveries: int | None = None,
    dry_run: bool = False,
    on_exhausted: OnExhausted | None = None,
    resend_after: float = 5.0,
) -> RecoverySummary:
    """Have abandoned executions driven again (F8).

    Only running and pending ones are looked at. Of one that the predicate calls abandoned,
    status, owner and fence are looked at again; if they are the same, it is taken from its
    holder by compare-and-set and sent out. Whoever claims it moves the fence, so a holder
    that was alive after all can write until then and nothing afterwards. One that raises
    stays for the next pass and stops no other. A pass that is cut off at any moment has
    stranded nothing: what was taken has a hint, by which a dispatcher sends it.

    Args:
        journal: where they are.
        send: sends a package for one that was taken.
        source: `Search`, or for the lease `LeaseSweep`.
        is_abandoned: whether an execution is abandoned. There is no default: one that says
            yes to all would take work from living holders, and one that says no would be a
            pass that does nothing and looks as if it did.
        max_recoveries: those with as many recoveries since their last progress (a completed
            step, a park, a resume) are left running and reported. It is looked at once the
            predicate has claimed one, and before anything is taken. None for no bound.
        dry_run: count what is claimed and exhausted, and take nothing.
        on_exhausted: told of each that was left because of `max_recoveries`, with its
            recoveries.
        resend_after: seconds after which a dispatcher sends what was taken and not claimed.

    Raises:
        ConfigurationError: `max_recoveries` is less than 1, or the source cannot do what is
            asked.
        JournalUnreachableError: the journal is away.
        JournalError: executions cannot be listed.
    """
    if max_recoveries is not None and max_recoveries < 1:
        raise ConfigurationError(
            f"max_recoveries must be at least 1, not {max_recoveries}: with 0 a pass would leave "
            "every execution and look as if it had run"
        )
    rule = Rule(
        is_abandoned=is_abandoned,
        max_recoveries=max_recoveries,
        dry_run=dry_run,
        resend_after=resend_after,
    )
    summary = RecoverySummary()
    async for batch in source.batches(journal, rule):
        for key, recoveries in batch.exhausted:
            _report(on_exhausted, key, recoveries)
        fates = await asyncio.gather(*(_sent(send, each) for each in batch.taken))
        summary = _counted(summary, batch, fates)
    return summary


async def _sent(send: Send, runnable: Runnable) -> bool | Left:
    try:
        return await send(runnable)
    except Exception as error:
        return Left(runnable.row.key, told(error))


def _report(on_exhausted: OnExhausted | None, key: ExecutionKey, recoveries: int) -> None:
    if on_exhausted is None:
        return
    try:
        on_exhausted(key, recoveries)
    except Exception:  # the listener's fault; the others are to be recovered all the same
        _log.exception("recovery.listener_failed", execution_id=key.execution_id)


def _counted(total: RecoverySummary, batch: Batch, fates: list[bool | Left]) -> RecoverySummary:
    left = [*batch.left, *(fate for fate in fates if isinstance(fate, Left))]
    return RecoverySummary(
        looked_at=total.looked_at + batch.looked_at,
        claimed=total.claimed + batch.claimed,
        recovered=total.recovered + sum(fate is True for fate in fates),
        unconfirmed=total.unconfirmed + sum(fate is False for fate in fates),
        exhausted=total.exhausted + len(batch.exhausted),
        moved=total.moved + batch.moved,
        failed=total.failed + len(left),
        failures=(*total.failures, *left)[:NAMED],
    )
