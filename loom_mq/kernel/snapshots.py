"""Stored folds: written, read, and read when an older fold wrote them (J7). Pure.

A snapshot may stand for the beginning of its log: what is read from it and folded on
over the tail equals the fold of the whole log, from every sequence.
"""

from __future__ import annotations

from typing import Final

import msgspec

from loom_mq.kernel.fold import ExecutionState, FrameStatus
from loom_mq.model.execution import Status
from loom_mq.model.snapshots import FOLD_VERSION, Snapshot

STEP_FAILURE_IS_NO_END: Final = 2
"""The first fold in which a step's failure leaves the execution's status alone (K1)."""

SHARE: Final = 4
"""At least one in so many of a log's events must be new for another snapshot."""

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(ExecutionState).decode


def encode_state(state: ExecutionState) -> Snapshot:
    """The snapshot of a folded log (J7).

    Args:
        state: the fold of everything up to `state.last_seq`. Take it only of what is
            durable: a snapshot must not know more than its log.
    """
    return Snapshot(state.last_seq, FOLD_VERSION, _encode(state))


def decode_snapshot(snapshot: Snapshot) -> ExecutionState | None:
    """The state that a snapshot holds, as this release's fold would have it (J7).

    What an older fold wrote is normalised.

    Returns:
        A state of the caller's own to fold the tail onto; None when the snapshot is of no
        use here: a newer fold wrote it, or its content is damaged. The log from its
        beginning says the same. A log that was cut behind its snapshot does not: without
        event 0 the caller must leave the execution to a newer release.
    """
    if snapshot.fold > FOLD_VERSION:
        return None
    try:
        state = _decode(snapshot.state)
    except msgspec.MsgspecError:
        return None
    if state.last_seq != snapshot.seq:
        return None
    return normalise(state) if snapshot.fold < STEP_FAILURE_IS_NO_END else state


def normalise(state: ExecutionState) -> ExecutionState:
    """Mend a state whose status an older fold moved when a step failed (ADR 0105 D4).

    For a state that was not folded here: an old snapshot, or one that was handed in from
    outside. ``failed`` without a recorded error and with a failed step means that a step
    failed, no more: the execution is suspended when it is parked, else running. That a
    parked one reads failed shows that the failure came after the park, so it gains the
    mark of K8. If an end was recorded all the same, the failure came after it, and the
    end stands.

    Returns:
        `state` itself when there is nothing to mend, else a mended copy.
    """
    if state.status is not Status.FAILED or state.failure is not None:
        return state
    if not any(frame.status is FrameStatus.FAILED for frame in state.frames.values()):
        return state
    if state.ended_at is not None:
        end = Status.CANCELLED if state.result is None else Status.COMPLETED
        return msgspec.structs.replace(state, status=end)
    if state.parked_on:
        return msgspec.structs.replace(state, status=Status.SUSPENDED, failed_while_parked=True)
    return msgspec.structs.replace(state, status=Status.RUNNING)


def due(seq: int, last_snapshot_seq: int, every: int) -> bool:
    """Whether another snapshot is worth its cost (J7).

    A snapshot costs as much as its log is long, so they are taken ever more seldom: at
    least `every` events and at least a quarter of the log must be new. All snapshots of a
    log together then cost at most a fixed number of folded events per event, however long
    it grows, and reading from the newest one leaves at most a third more than it covers,
    or `every` events. A log of fewer than `every` events never has one.

    Args:
        seq: newest sequence of the log, -1 for none.
        last_snapshot_seq: up to where the newest snapshot reaches, -1 for none.
        every: events, at least 1; ask with a smaller number at a park, where a re-run is
            sure to come.
    """
    new = seq - last_snapshot_seq
    return new >= every and new * SHARE > seq
