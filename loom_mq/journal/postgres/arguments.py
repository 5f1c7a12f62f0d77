"""Batches as the functions of the journal take them: one array per column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from loom_mq.codec.failures import safe_text
from loom_mq.journal.packing import pack_events
from loom_mq.journal.postgres.rows import pack_pairs, pack_texts, pack_waiter
from loom_mq.journal.postgres.store import ERROR_LIMIT, micros
from loom_mq.journal.requests import Admission, Append
from loom_mq.model.policies import StartPolicy

NEVER: Final = -1
"""A fence, and a sequence, that no execution has."""
_MAKE_WAY: Final = (StartPolicy.AFTER_CLOSE, StartPolicy.AFTER_FAILURE)
"""The policies under which what has ended may make way for a start (K16)."""


def admit_arguments(batch: Sequence[Admission]) -> tuple[list[object], ...]:
    """The arguments of ``admit_v2``."""
    return (
        [each.key.tenant for each in batch],
        [each.key.execution_id for each in batch],
        [each.flow for each in batch],
        [each.version for each in batch],
        [each.queue for each in batch],
        [each.start for each in batch],
        [each.input_digest for each in batch],
        [each.parent for each in batch],
        [pack_texts(each.features) for each in batch],
        [pack_pairs(each.labels) for each in batch],
        [pack_waiter(each.waiter) for each in batch],
        [micros(each.resend_after) for each in batch],
        [each.retire_as if each.policy in _MAKE_WAY else None for each in batch],
        [each.policy is StartPolicy.AFTER_CLOSE for each in batch],
    )


def append_arguments(batch: Sequence[Append]) -> tuple[list[object], ...]:
    """The arguments of ``append_v2``: 19 columns by execution, and two short lists."""
    timers = [(item, due) for item, each in enumerate(batch, start=1) for due in each.timers]
    taken = [
        (item, item_id) for item, each in enumerate(batch, start=1) for item_id in each.consume
    ]
    return (
        [each.key.tenant for each in batch],
        [each.key.execution_id for each in batch],
        [_expected(each) for each in batch],
        [each.fence for each in batch],
        [each.events[0].seq for each in batch],
        [each.events[-1].seq for each in batch],
        [each.events[0].at for each in batch],
        [each.events[-1].at for each in batch],
        [each.events[0].id for each in batch],
        [pack_events(each.events) for each in batch],
        [each.index.status for each in batch],
        [each.index.wake_at for each in batch],
        [pack_texts(each.index.gates) for each in batch],
        [shown(each.index.error) for each in batch],
        [each.index.recoveries for each in batch],
        [None if each.claim is None else each.claim.owner for each in batch],
        [
            None
            if each.claim is None or each.claim.deadline is None
            else micros(each.claim.deadline)
            for each in batch
        ],
        [each.release for each in batch],
        [pack_texts(each.index.in_doubt) for each in batch],
        [item for item, _due in timers],
        [due for _item, due in timers],
        [item for item, _item_id in taken],
        [item_id for _item, item_id in taken],
    )


def _expected(append: Append) -> int:
    """The fence that must stand: the one held, or the one that a claim supersedes (J2)."""
    if append.claim is None:
        return append.fence
    if append.fence != append.claim.expected_fence + 1:
        return NEVER
    return append.claim.expected_fence


def shown(error: str | None) -> str | None:
    """A line for people, as a column can hold it."""
    return None if error is None else safe_text(error, ERROR_LIMIT)
