"""Plain numbers that become Prometheus metrics when somebody looks.

The library's own counters cost a lock and several checks per call, which a worker
would feel at thousands of steps a second. These are dictionaries; turning them into
samples is left to the moment of a scrape. Each is written from one thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Final, Protocol

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

MOST_LABEL_SETS: Final = 500
"""Label sets kept apart per metric; what comes after them is counted as `OTHER`."""
OTHER: Final = "other"

Labels = tuple[str, ...]


class Family(Protocol):
    """A metric with all its label sets."""

    def collect(self) -> Metric:
        """What it stands at."""


class Tally:
    """A number that only grows.

    Args:
        name: with its prefix and without ``_total``.
        text: one line of help.
        labels: names of the labels.
    """

    def __init__(self, name: str, text: str, *labels: str) -> None:
        self._name = name
        self._text = text
        self._labels = labels
        self._counts: dict[Labels, int] = {}

    def add(self, values: Labels = (), count: int = 1) -> None:
        """Count under these label values."""
        counts = self._counts
        if values not in counts:
            values = _admitted(values, len(counts))
            counts.setdefault(values, 0)
        counts[values] += count

    def collect(self) -> Metric:
        """What it stands at."""
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for values, count in list(self._counts.items()):
            family.add_metric(values, count)
        return family


class _Row:
    __slots__ = ("counts", "total")

    def __init__(self, width: int) -> None:
        self.counts = [0] * width
        self.total = 0.0


class Distribution:
    """How values spread over buckets.

    Args:
        name: with its prefix and unit.
        text: one line of help.
        buckets: upper bounds, rising.
        labels: names of the labels.
    """

    def __init__(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> None:
        self._name = name
        self._text = text
        self._labels = labels
        self._buckets = tuple(buckets)
        self._bounds = [*(f"{bound:g}" for bound in buckets), "+Inf"]
        self._rows: dict[Labels, _Row] = {}
        if not labels:
            self._rows[()] = _Row(len(self._bounds))

    def observe(self, value: float, values: Labels = ()) -> None:
        """Count one value under these label values."""
        row = self._rows.get(values)
        if row is None:
            values = _admitted(values, len(self._rows))
            row = self._rows.setdefault(values, _Row(len(self._bounds)))
        row.counts[bisect_left(self._buckets, value)] += 1
        row.total += value

    def collect(self) -> Metric:
        """What it stands at."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for values, row in list(self._rows.items()):
            heights = zip(self._bounds, accumulate(row.counts), strict=True)
            family.add_metric(values, [(bound, height) for bound, height in heights], row.total)
        return family


class Level:
    """A number that rises and falls.

    Args:
        name: with its prefix and unit.
        text: one line of help.
        labels: names of the labels.
    """

    def __init__(self, name: str, text: str, *labels: str) -> None:
        self._name = name
        self._text = text
        self._labels = labels
        self._values: dict[Labels, float] = {} if labels else {(): 0.0}
        self._ask: Callable[[], float] | None = None

    def set(self, value: float, values: Labels = ()) -> None:
        """Stand at `value` from now on."""
        self._values[values] = value

    def ask(self, source: Callable[[], float]) -> None:
        """Take the value from `source` whenever somebody looks."""
        self._ask = source

    def collect(self) -> Metric:
        """What it stands at."""
        if self._ask is not None:
            self._values[()] = self._ask()
        family = GaugeMetricFamily(self._name, self._text, labels=self._labels)
        for values, value in list(self._values.items()):
            family.add_metric(values, value)
        return family


class Families(Collector):
    """All metrics of one registry, read at a scrape."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = tuple(families)

    def collect(self) -> Iterable[Metric]:
        """What they stand at."""
        return [family.collect() for family in self._families]


def _admitted(values: Labels, known: int) -> Labels:
    return values if known < MOST_LABEL_SETS else (OTHER,) * len(values)
