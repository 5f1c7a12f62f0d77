"""Whether an execution ended the same although its worker died (K2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from loom_mq.kernel.fold import ExecutionState, Frame, FrameStatus, decode_payload
from loom_mq.model.events import Envelope, EventKind, StepStarted
from loom_mq.model.execution import ExecutionRow
from loom_mq.testing.doom import CrashPoint

_CUT: Final = (FrameStatus.RUNNING, FrameStatus.FAILED, FrameStatus.CANCELLED)
"""Where a step stands that may be started once more: its end, or that the flow has met
its failure, is not on the log.
"""
_ENDS: Final = frozenset(
    {EventKind.EXECUTION_COMPLETED, EventKind.EXECUTION_FAILED, EventKind.EXECUTION_CANCELLED}
)


class CrashDifference(AssertionError):
    """An execution did not end as it does when no worker dies.

    Attributes:
        point: where its worker died.
        what: what differs.
        expected: as it is without a crash.
        found: as it was now.
    """

    def __init__(self, point: CrashPoint, what: str, expected: object, found: object) -> None:
        super().__init__(
            f"after a crash at {point}, {what} differs:\n"
            f"  without a crash: {_shown(expected)}\n"
            f"  with it:         {_shown(found)}"
        )
        self.point = point
        self.what = what
        self.expected = expected
        self.found = found


def _shown(value: object) -> str:
    return f"{type(value).__name__}: {value}" if isinstance(value, Exception) else repr(value)


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """One run, at its end.

    Attributes:
        before: the folds of what was durable when the worker died, by execution.
        states: the folds of all executions at the end.
        completed: how often the effect of each step ran to its end, by name.
        effects: what the user's own ledger says.
    """

    row: ExecutionRow
    log: Sequence[Envelope]
    state: ExecutionState
    result: object
    before: dict[str, ExecutionState]
    states: dict[str, ExecutionState]
    completed: Counter[str]
    effects: object


def compare(
    point: CrashPoint, baseline: Ended, ended: Ended, equal: Callable[[Any, Any], bool]
) -> None:
    """Compare a run with a crash to the one without.

    Raises:
        CrashDifference: they differ.
    """

    def same(what: str, expected: object, found: object) -> None:
        if expected != found:
            raise CrashDifference(point, what, expected, found)

    same("the end", _end(baseline), _end(ended))
    if not equal(baseline.result, ended.result):
        raise CrashDifference(point, "the result", baseline.result, ended.result)
    expected, found = _places(baseline), _places(ended)
    for place in sorted(expected.keys() | found.keys()):
        same(f"what the log holds at place {place}", expected.get(place), found.get(place))
    same("the order of the log", [], _disorder(ended.log))
    _compare_starts(point, baseline, ended)
    _compare_calls(point, ended)
    same("what the effects left behind", baseline.effects, ended.effects)


def _end(ended: Ended) -> str:
    failure = ended.state.failure
    told = ended.state.status.value
    return told if failure is None else f"{told}: {failure.type}: {failure.message}"


def _places(ended: Ended) -> dict[str, str]:
    return {place: f"{kind} {name!r}" for place, (kind, name) in ended.state.ops.items()}


def _disorder(log: Sequence[Envelope]) -> list[str]:
    """What no log may hold."""
    wrong = [f"event {at} has sequence {e.seq}" for at, e in enumerate(log) if e.seq != at]
    wrong += [f"a start at {e.seq}" for e in log[1:] if e.kind == EventKind.EXECUTION_STARTED]
    return wrong + [f"an end at {e.seq}" for e in log[:-1] if e.kind in _ENDS]


def _starts(log: Sequence[Envelope]) -> Counter[str]:
    """How often the effect at each place was about to begin; durable before it does."""
    events = map(decode_payload, log)
    return Counter(event.step_id for event in events if isinstance(event, StepStarted))


def _compare_starts(point: CrashPoint, baseline: Ended, ended: Ended) -> None:
    usual, found = _starts(baseline.log), _starts(ended.log)
    before = ended.before.get(ended.row.execution_id, ExecutionState()).frames
    for place, number in sorted(found.items()):
        frame = before.get(place)
        more = frame is not None and frame.status in _CUT
        most = max(usual[place], 0 if frame is None else frame.attempts) + more
        if number > most:
            name = ended.state.frames[place].name
            raise CrashDifference(
                point, f"how often step {name!r} was started", f"at most {most}", number
            )
    for execution, state in ended.before.items():
        for place, frame in state.frames.items():
            number = ended.states[execution].frames[place].attempts
            if frame.status is FrameStatus.COMPLETED and number != frame.attempts:
                raise CrashDifference(
                    point,
                    f"how often step {frame.name!r}, which was completed, was started",
                    frame.attempts,
                    number,
                )


def _compare_calls(point: CrashPoint, ended: Ended) -> None:
    """An effect may have run to its end once for each result on a log, and once more for
    each step that was interrupted.
    """
    kept = Counter(
        frame.name for frame in _frames(ended.states) if frame.status is FrameStatus.COMPLETED
    )
    cut = Counter(frame.name for frame in _frames(ended.before) if frame.status in _CUT)
    for name, number in sorted(ended.completed.items()):
        most = kept[name] + cut[name]
        if number > most:
            raise CrashDifference(
                point, f"how often step {name!r} ran to its end", f"at most {most}", number
            )


def _frames(states: dict[str, ExecutionState]) -> Iterator[Frame]:
    for state in states.values():
        yield from state.frames.values()
