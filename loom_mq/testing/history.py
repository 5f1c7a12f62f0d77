"""The log of an execution, for assertions and for eyes."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

import msgspec

from loom_mq.codec.values import to_display
from loom_mq.kernel.fold import decode_payload
from loom_mq.model.events import Envelope
from loom_mq.model.failures import Failure
from loom_mq.testing.skipping import moment_of

_PLACES: Final = ("step_id", "op_id", "wait_id")
_NAMES: Final = ("name", "gate", "topic", "flow")
_VALUES: Final = ("result", "value", "answer", "input")


class Happening(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a history.

    Attributes:
        seq: its number in the log, from 0.
        at: when, by the environment's clock, in UTC.
        kind: such as ``STEP_COMPLETED``; see `model.events.EventKind`.
        name: of the step, gate, decision, topic or flow; empty when it has none.
        place: where in the flow's control flow it stands; empty when it has none.
        value: result, answer, input or decision, in terms of JSON.
        error: first line of the failure, empty when it is none.
    """

    seq: int
    at: datetime
    kind: str
    name: str = ""
    place: str = ""
    value: object = None
    error: str = ""

    def __str__(self) -> str:
        told = f"{self.seq:>3} {self.at.isoformat(timespec='milliseconds')} {self.kind}"
        told += f" {self.name}" if self.name else ""
        told += f" {self.value!r}" if self.value is not None else ""
        return told + (f": {self.error}" if self.error else "")


def happenings(log: Iterable[Envelope]) -> list[Happening]:
    """A whole log, readable."""
    names: dict[str, str] = {}
    told = []
    for envelope in log:
        event = decode_payload(envelope)
        place = _text(event, _PLACES)
        name = _text(event, _NAMES) or _waited_for(event) or names.get(place, "")
        if place:
            names.setdefault(place, name)
        failure = getattr(event, "failure", None)
        told.append(
            Happening(
                seq=envelope.seq,
                at=moment_of(envelope.at),
                kind=envelope.kind,
                name=name,
                place=place,
                value=_value(event),
                error=failure.headline if isinstance(failure, Failure) else "",
            )
        )
    return told


def _text(event: msgspec.Struct | None, fields: Iterable[str]) -> str:
    found = (getattr(event, field, None) for field in fields)
    return next((value for value in found if isinstance(value, str)), "")


def _waited_for(event: msgspec.Struct | None) -> str:
    return ", ".join(wait.name for wait in getattr(event, "waits", ()) if wait.name)


def _value(event: msgspec.Struct | None) -> object:
    for field in _VALUES:
        data = getattr(event, field, None)
        if isinstance(data, bytes):
            return to_display(data)
    return None
