"""Remembers the last things that were seen of a run, and a digest of all of them."""

from __future__ import annotations

import zlib
from collections import deque
from typing import Any, Final

from loom_mq.clock import MICROS
from loom_mq.journal.protocol import Append, Claim
from tests.simulation.rig.observer import Acked, Applied, Effect, Happened, Observer, Told

KEPT: Final = 40
"""Lines that a report shows."""
_DULL: Final = frozenset(
    {"get", "watch", "find", "workers", "flows", "next_timer", "now", "read", "exhausted", "renew"}
)
_DULL_WHEN_EMPTY: Final = frozenset(
    {"take_abandoned", "take_unsent", "due_timers", "due_schedules", "inbox"}
)


class Witness(Observer):
    """See the module's docstring.

    Args:
        inner: sees everything too.
        start: journal time at which the run began.
        about: an execution whose lines alone are kept; all of them where empty.
    """

    def __init__(self, inner: Observer, start: int, about: str = "") -> None:
        self.digest = 0
        self.lines: deque[str] = deque(maxlen=KEPT if not about else 400)
        self._inner = inner
        self._start = start
        self._about = about

    def before(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call is about to be carried out."""
        return self._inner.before(method, args, kwargs)

    def applied(self, applied: Applied) -> None:
        """A call was carried out."""
        method = applied.method
        self._hash(applied.by, method, applied.at)
        if method not in _DULL and (applied.answer or method not in _DULL_WHEN_EMPTY):
            self._keep(applied.at, f"{applied.by} {method} {_shown(applied)}")
        self._inner.applied(applied)

    def began(self, effect: Effect) -> None:
        """An effect begins."""
        self._hash(effect.by, effect.place, effect.at)
        self._keep(
            effect.at,
            f"{effect.by} runs {effect.step} at {effect.place} of {effect.execution_id}, "
            f"attempt {effect.attempt}",
        )
        self._inner.began(effect)

    def ended(self, effect: Effect, outcome: str) -> None:
        """An effect has ended."""
        self._inner.ended(effect, outcome)

    def told(self, told: Told) -> None:
        """A client was told something."""
        self._hash(told.execution_id, told.what, told.at)
        if told.what != "saw":
            self._keep(
                told.at, f"client of {told.execution_id} hears {told.what} {told.value!r:.60}"
            )
        self._inner.told(told)

    def acked(self, acked: Acked) -> None:
        """A delivery was settled."""
        self._hash(acked.by, acked.how, acked.at)
        self._inner.acked(acked)

    def happened(self, happened: Happened) -> None:
        """Something befell somebody."""
        self._hash(happened.who, happened.what, happened.at)
        self._keep(happened.at, f"{happened.who}: {happened.what}")
        self._inner.happened(happened)

    def _hash(self, who: str, what: str, at: int) -> None:
        self.digest = zlib.crc32(f"{who}{what}{at}".encode(), self.digest)

    def _keep(self, at: int, line: str) -> None:
        if self._about in line:
            self.lines.append(f"{(at - self._start) / MICROS:9.3f}  {line}")


def _shown(applied: Applied) -> str:
    answer = applied.answer
    if isinstance(answer, Exception):
        return f"-> {answer!r:.80}"
    if not applied.args or not isinstance(applied.args[0], list | tuple):
        return ""
    parts = []
    for index, each in enumerate(applied.args[0]):
        verdict = answer[index] if isinstance(answer, list) and index < len(answer) else None
        error = getattr(verdict, "error", None)
        refused = f" refused {type(error).__name__}" if error is not None else ""
        if isinstance(each, Append):
            kinds = ",".join(f"{event.seq}:{event.kind}" for event in each.events)
            parts.append(f"{each.key.execution_id} f{each.fence} {kinds}{refused}")
        elif isinstance(each, Claim):
            parts.append(f"{each.key.execution_id} f{each.expected_fence}+1{refused}")
        elif hasattr(each, "key"):
            parts.append(f"{each.key.execution_id}{refused}")
        else:
            parts.append(f"{each!r:.60}")
    return "; ".join(parts)[:300]
