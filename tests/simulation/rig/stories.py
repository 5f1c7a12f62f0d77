"""Histories that break rules and histories that keep them, by which the observers are tried."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.rig.bench import Bench

Story = Callable[[Bench], None]
Case = tuple[str, Story]


class Stories:
    """What is told of some rules.

    Attributes:
        breaking: for each rule, histories that break it.
        keeping: histories that come near and break none.
    """

    def __init__(self) -> None:
        self.breaking: list[Case] = []
        self.keeping: list[Case] = []

    def breaks(self, rule: str) -> Callable[[Story], Story]:
        """A history that breaks a rule."""
        return _noted(self.breaking, rule)

    def keeps(self, rule: str) -> Callable[[Story], Story]:
        """A history that keeps a rule, and all others too."""
        return _noted(self.keeping, rule)

    @property
    def rules(self) -> set[str]:
        """Rules of which there are both."""
        broken = {rule for rule, _ in self.breaking}
        return broken & {rule for rule, _ in self.keeping}


def must_be_seen(rule: str, story: Story) -> None:
    """What breaks a rule is told under its name."""
    bench = Bench()
    story(bench)
    assert rule in bench.rules, bench.violations


def must_be_fine(story: Story) -> None:
    """What breaks none is not told of."""
    bench = Bench()
    story(bench)
    assert not bench.rules, bench.violations


def name_of(part: object) -> str:
    """How a test's parameter is called."""
    return str(getattr(part, "__name__", part))


def _noted(cases: list[Case], rule: str) -> Callable[[Story], Story]:
    def note(story: Story) -> Story:
        cases.append((rule, story))
        return story

    return note
