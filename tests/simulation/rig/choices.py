"""Everything that a run leaves to chance, drawn from one place and kept on a tape.

A draw is an integer, and 0 always means what a healthy world would do: no fault, the least
delay, first come, first served. So a tape can be shortened by writing zeros into it, and what is
drawn past its end is 0.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

_FINE: Final = 1000
"""Into how many parts a delay is cut."""


class Choices(Protocol):
    """One stream of draws."""

    def pick(self, kind: str, n: int) -> int:
        """One of 0 to n - 1."""

    def chance(self, kind: str, p: float) -> bool:
        """Whether something unusual happens, with probability `p`."""

    def delay(self, kind: str, spread: float) -> float:
        """Seconds from 0 to `spread`, short ones more likely."""


class Stream:
    """Draws of one concern; see `Choices`.

    Args:
        luck: where new draws come from; None when the tape is all there is.
        recorded: draws to be repeated first.
    """

    def __init__(self, luck: random.Random | None, recorded: Sequence[int] = ()) -> None:
        self._luck = luck
        self._recorded = recorded
        self.drawn: list[int] = []
        self.kinds: list[str] = []

    def pick(self, kind: str, n: int) -> int:
        """One of 0 to n - 1."""
        at = len(self.drawn)
        if self._luck is None:
            value = self._recorded[at] % n if at < len(self._recorded) and n > 0 else 0
        else:
            value = int(self._luck.random() * n)
        self.drawn.append(value)
        self.kinds.append(kind)
        return value

    def chance(self, kind: str, p: float) -> bool:
        """Whether something unusual happens, with probability `p`."""
        if p <= 0.0:
            return False
        at = len(self.drawn)
        if self._luck is None:
            value = 1 if at < len(self._recorded) and self._recorded[at] else 0
        else:
            value = 1 if self._luck.random() < p else 0
        self.drawn.append(value)
        self.kinds.append(kind)
        return value == 1

    def delay(self, kind: str, spread: float) -> float:
        """Seconds from 0 to `spread`, short ones more likely."""
        if spread <= 0.0:
            return 0.0
        share = self.pick(kind, _FINE) / _FINE
        return spread * share * share


class Tape:
    """The streams of a run, independent of each other: one draw more in one of them changes
    nothing in the others.

    Args:
        seed: of new draws; None to repeat `recorded` and draw zeros after it.
        recorded: draws of an earlier run, by stream.
    """

    def __init__(
        self, seed: int | None, recorded: Mapping[str, Sequence[int]] | None = None
    ) -> None:
        self._seed = seed
        self._recorded = recorded or {}
        self._streams: dict[str, Stream] = {}

    def stream(self, name: str) -> Stream:
        """The stream of one concern."""
        stream = self._streams.get(name)
        if stream is None:
            luck = None if self._seed is None else random.Random(f"{self._seed}/{name}")
            stream = self._streams[name] = Stream(luck, self._recorded.get(name, ()))
        return stream

    def draws(self) -> dict[str, list[int]]:
        """What was drawn so far, by stream."""
        return {name: list(stream.drawn) for name, stream in self._streams.items()}
