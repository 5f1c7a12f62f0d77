"""What a journal must answer, by what is known of an execution (J2, J4, J5, F7). Pure.

The specification once more, from the shadow's point of view: it shares nothing with
`loom_mq.journal.verdicts` but the names of the refusals.
"""

from __future__ import annotations

import enum

from loom_mq.errors import (
    DuplicateEnvelopeIdError,
    DuplicateSequenceError,
    ExecutionAlreadyExistsError,
    ExecutionEndedError,
    HeldByLiveOwnerError,
    LoomError,
    StaleFenceError,
    StartFencedOutError,
    UnknownExecutionError,
)
from loom_mq.journal.protocol import Append, Claim
from loom_mq.model.execution import InboxItem
from tests.simulation.rig.known import Known


class Yes(enum.Enum):
    """A request that is granted."""

    NEW = enum.auto()
    AGAIN = enum.auto()
    """It was carried out before, and its answer was lost (J4)."""


Answer = Yes | type[LoomError]


def to_append(known: Known | None, append: Append, holder: str) -> Answer:
    """The answer to an append.

    Args:
        known: its execution; None when there is none.
        append: what is asked.
        holder: who is to be left alone; empty for nobody.
    """
    if known is None:
        return UnknownExecutionError
    first, claim = append.events[0], append.claim
    if all(known.places.get(event.id) == event.seq for event in append.events):
        return Yes.AGAIN
    if first.seq == 0 and known.log:
        return ExecutionAlreadyExistsError
    expected = append.fence if claim is None else claim.expected_fence
    if claim is not None and not known.log and known.fence > expected:
        return StartFencedOutError
    if expected != known.fence or append.fence != expected + (claim is not None):
        return StaleFenceError
    if claim is not None and holder not in ("", claim.owner):
        return HeldByLiveOwnerError
    if first.seq != len(known.log):
        return DuplicateSequenceError
    return DuplicateEnvelopeIdError if first.id in known.openers else Yes.NEW


def to_claim(known: Known | None, claim: Claim, holder: str) -> Answer:
    """The answer to a take-over; see `to_append`."""
    if known is None:
        return UnknownExecutionError
    if known.ended:
        return ExecutionEndedError
    if known.owner == claim.owner and known.fence == claim.expected_fence + 1:
        return Yes.AGAIN
    if known.fence != claim.expected_fence:
        return StaleFenceError
    if holder not in ("", claim.owner) and not claim.preempt:
        return HeldByLiveOwnerError
    return Yes.NEW


def to_delivery(known: Known | None, item: InboxItem) -> Answer:
    """The answer to an item for an inbox."""
    if known is None:
        return UnknownExecutionError
    if known.ended:
        return ExecutionEndedError
    return Yes.AGAIN if item.item_id in known.mail or item.item_id in known.taken else Yes.NEW
