"""New executions from what an old one has been through (J8)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from loom_mq.codec.plain import ERASED
from loom_mq.errors import InputError
from loom_mq.ids import MAX_QUEUE_BYTES, Ids, RandomIds, check_id
from loom_mq.journal.protocol import Journal
from loom_mq.kernel.fold import TOLD, ExecutionState, decode_payload, fold
from loom_mq.kernel.snapshots import encode_state, normalise
from loom_mq.lifecycle.planting import plant, planted, renamed
from loom_mq.lifecycle.reading import ArchivedExecution, fetch
from loom_mq.model import events as ev
from loom_mq.model.events import Envelope, EventKind
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey, ExecutionRow, Status

_encode = msgspec.msgpack.Encoder().encode

_ENDS = (EventKind.EXECUTION_COMPLETED, EventKind.EXECUTION_FAILED, EventKind.EXECUTION_CANCELLED)


async def fork(
    journal: Journal,
    key: ExecutionKey,
    new_id: str,
    *,
    at: int | None = None,
    step: str | None = None,
    labels: Mapping[str, str] | None = None,
    ids: Ids | None = None,
) -> ExecutionKey:
    """A new execution that has been through the beginning of another one's log (J8).

    It has the same input, results and answers up to there, at the same times, and goes on
    by itself from there, with today's code, like an execution whose worker died: a step
    that had begun and not ended runs again, and one that must not run twice waits for a
    verdict. A prefix that ends in a park is parked, with its timers armed. The one that
    it came from is only read and may still be going on. An end is never part of a prefix.

    Args:
        journal: where it is.
        key: which execution.
        new_id: the id of the new one, in the same tenant.
        at: sequence of the last event of the prefix; None for the newest one.
        step: end the prefix right before this began: the place, or the name, of a step, a
            gate, a decision or an emitted value; of a name the first counts. At most one
            of `at` and `step`.
        labels: of the new execution; None for those of the old one.
        ids: makes its envelope ids.

    Returns:
        The key of the new execution.

    Raises:
        UnknownExecutionError: there is no such execution.
        ExecutionAlreadyExistsError: `new_id` is taken.
        InvalidIdError: `new_id` is no lawful id.
        InputError: the prefix has no event, or none such; the log was cut or erased; it
            has not begun; both of `at` and `step`.
        ArchiveError: the log has a gap.
    """
    if at is not None and step is not None:
        raise InputError("a fork ends either at an event or before a step, not both")
    new = ExecutionKey(key.tenant, check_id(new_id, "execution id"))
    source = await fetch(journal, key)
    events = _prefix(source, at, step)
    if labels is not None:
        events = (_relabelled(events[0], dict(labels)), *events[1:])
    events = renamed(events, ids or RandomIds())
    state = _folded(source, events)
    now = await journal.now()
    row = replace(
        source.row,
        execution_id=new.execution_id,
        labels=state.labels,
        created_at=now,
        fence=max(event.fence for event in events),
        attempt=0,
    )
    await plant(journal, planted(row, state, now, events=events))
    return new


def _prefix(source: ArchivedExecution, at: int | None, step: str | None) -> tuple[Envelope, ...]:
    """The events that a fork begins with."""
    name, events = source.row.execution_id, source.events
    if not source.whole:
        raise _refused(
            source,
            "its log was cut behind a snapshot, so it cannot be forked; plant an archive that was "
            "made before, and fork that",
        )
    last = source.row.last_seq if at is None else at
    if last < 0:
        raise _refused(source, f"{last} is no event's sequence, so nothing is left to fork")
    if last > source.row.last_seq:
        raise _refused(
            source, f"it has no event {last} to fork at; its last one is {source.row.last_seq}"
        )
    if step is not None:
        last = _before(source, step)
    events = events[: last + 1]
    if events[-1].kind in _ENDS:
        events = events[:-1]
    if not events:
        raise _refused(source, f"nothing is left of {name!r} to fork without its end")
    return events


def _before(source: ArchivedExecution, step: str) -> int:
    """The sequence before the one at which a step or another place began."""
    named: int | None = None
    for event in source.events:
        for place, name in _begun(event):
            if step == place:
                return event.seq - 1
            if named is None and step == name:
                named = event.seq - 1
    if named is None:
        raise _refused(source, f"no step or place {step!r} began in its log")
    return named


def _begun(event: Envelope) -> list[tuple[str, str]]:
    """Place and name of everything that begins with an event."""
    try:
        payload = decode_payload(event)
    except msgspec.MsgspecError:
        return []  # if it is in the prefix, the fold refuses it
    match payload:
        case ev.StepStarted(step_id=place, name=name):
            return [(place, name)]
        case ev.DecisionRecorded(op_id=place, name=name):
            return [(place, name)]
        case ev.CustomEmitted(op_id=place, topic=name):
            return [(place, name)]
        case ev.AnswerTaken(wait_id=place, gate=name):
            return [(place, name)]
        case ev.ExecutionSuspended(waits=waits):
            return [(wait.id, wait.name) for wait in waits if wait.kind in TOLD]
    return []


def _relabelled(event: Envelope, labels: dict[str, str]) -> Envelope:
    """The first event with other labels: the index row must say the same (J6)."""
    for name, value in labels.items():
        check_id(name, "label name")
        check_id(value, f"label {name!r}")
    payload = decode_payload(event)
    if not isinstance(payload, ev.ExecutionStarted):
        raise InputError(f"a log begins with {EventKind.EXECUTION_STARTED}, not {event.kind}")
    return Envelope(
        event.id,
        event.seq,
        event.kind,
        event.at,
        event.fence,
        event.kernel,
        event.schema,
        _encode(replace(payload, labels=labels)),
    )


def _folded(source: ArchivedExecution, events: tuple[Envelope, ...]) -> ExecutionState:
    try:
        state = fold(events)
    except msgspec.MsgspecError as error:
        raise _refused(source, f"its log is damaged: {error}") from error
    if state.input == ERASED:
        raise _refused(source, "its data was erased, so it cannot go on from anywhere")
    return state


def _refused(source: ArchivedExecution, what: str) -> InputError:
    name = source.row.execution_id
    return InputError(f"execution {name!r}: {what}", execution_id=name)


async def restore_state(
    journal: Journal,
    new_id: str,
    state: ExecutionState,
    *,
    queue: str,
    labels: Mapping[str, str] | None = None,
    tenant: str = DEFAULT_TENANT,
) -> ExecutionKey:
    """A new execution that goes on from a folded state, without the log behind it (J7).

    A state that an older fold made is normalised first: a step's failure is not the
    execution's. It goes on like a fork.

    Args:
        journal: where to.
        new_id: its id.
        state: the fold; copied, never changed.
        queue: where its workers listen.
        labels: of the new execution; None for those of the state.
        tenant: whose it is.

    Returns:
        The key of the new execution.

    Raises:
        InputError: the state has no event, or has ended.
        InvalidIdError: an id, the queue or a label is not lawful.
        ExecutionAlreadyExistsError: `new_id` is taken.
    """
    key = ExecutionKey(check_id(tenant, "tenant"), check_id(new_id, "execution id"))
    check_id(queue, "queue name", MAX_QUEUE_BYTES)
    state = normalise(state)
    if state.status is Status.PENDING or state.last_seq < 0:
        raise InputError(f"execution {new_id!r}: the state has no event, so start it instead")
    if state.status.terminal:
        raise InputError(
            f"execution {new_id!r}: the state is {state.status.value}, so nothing would go on; "
            "to keep an ended execution, plant its archive",
            execution_id=new_id,
        )
    if state.input == ERASED:
        raise InputError(f"execution {new_id!r}: the state's data was erased")
    state = replace(state, labels=dict(state.labels if labels is None else labels))
    for name, value in state.labels.items():
        check_id(name, "label name")
        check_id(value, f"label {name!r}")
    now = await journal.now()
    await plant(
        journal,
        planted(_row(key, state, queue, now), state, now, snapshot=encode_state(state)),
    )
    return key


def _row(key: ExecutionKey, state: ExecutionState, queue: str, now: int) -> ExecutionRow:
    digest = hashlib.blake2b(state.flow.encode() + b"\x00" + state.input, digest_size=16).digest()
    return ExecutionRow(
        tenant=key.tenant,
        execution_id=key.execution_id,
        flow=state.flow,
        version=state.version,
        queue=queue,
        status=state.status,
        last_seq=state.last_seq,
        wake_at=state.wake_at,
        gates=state.gates,
        error=None,
        recoveries=state.recoveries,
        parent=state.parent,
        features=state.features,
        labels=state.labels,
        created_at=now,
        updated_at=state.updated_at,
        started_at=state.started_at,
        ended_at=None,
        fence=0,
        owner=None,
        attempt=0,
        deadline=None,
        hint_at=None,
        hints=0,
        inbox=0,
        input_digest=digest,
    )
