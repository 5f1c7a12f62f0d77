"""What simulated steps do, and the flow that calls them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import loom_mq as loom
from tests.simulation.rig.choices import Choices
from tests.simulation.rig.jobs import Node, Work
from tests.simulation.rig.nodes import present
from tests.simulation.rig.observer import Effect, Observer


class Declined(loom.TypedFailure[int], channel="declined"):
    """A failure that is part of a contract."""


class World:
    """What is outside of the flows, in one run.

    Attributes:
        failures: how often each step that fails at first has failed, by execution and node.
    """

    def __init__(
        self, work: Work, observer: Observer, choices: Choices, now: Callable[[], int]
    ) -> None:
        self.programs = {job.id: job.program for job in work.jobs}
        self.observer = observer
        self.choices = choices
        self.now = now
        self.failures: dict[tuple[str, str, int], int] = {}


class Present:
    """Where flows and steps find the world of the present run."""

    world: World


class _Running:
    """One call of an effect, from its beginning to its end."""

    def __init__(self, node: int) -> None:
        info = loom.current_step()
        world = Present.world
        place = info.idempotency_key.rpartition("/")[2]
        self.key = (info.tenant, info.execution_id, node)
        self.choices = world.choices
        self._effect = Effect(
            execution_id=f"{info.tenant}/{info.execution_id}",
            place=place,
            step=f"{info.name}#{node}",
            attempt=info.attempt,
            by=present(),
            at=world.now(),
        )
        world.observer.began(self._effect)

    def __enter__(self) -> _Running:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        outcome = "done" if kind is None else kind.__name__
        Present.world.observer.ended(self._effect, outcome)

    async def dawdle(self) -> None:
        """Take some time."""
        await asyncio.sleep(self.choices.delay("effect", 1.0))

    def failed_before(self) -> int:
        """How often it failed so far; it fails once more now."""
        failures = Present.world.failures
        failures[self.key] = failures.get(self.key, 0) + 1
        return failures[self.key] - 1

    @property
    def failures(self) -> int:
        """How often it failed so far."""
        return Present.world.failures.get(self.key, 0)


def value_of(node: int) -> int:
    """What a node's step returns."""
    return node * 10


@loom.step
async def work(node: int, n: int) -> int:
    """Takes its time."""
    with _Running(node) as running:
        await running.dawdle()
        return value_of(node)


@loom.step
def plain(node: int, n: int) -> int:
    """Runs in a thread."""
    with _Running(node):
        return value_of(node)


@loom.step(failures=(Declined,))
async def declines(node: int, n: int) -> int:
    """Fails as its contract says."""
    with _Running(node) as running:
        await running.dawdle()
        raise Declined(node)


@loom.step(retry=loom.NO_RETRY)
async def fails(node: int, n: int) -> int:
    """Fails."""
    with _Running(node) as running:
        await running.dawdle()
        raise ValueError(f"no {node}")


@loom.step(retry=loom.Retry(attempts=50, initial=0.01, maximum=0.05))
async def flaky(node: int, n: int) -> int:
    """Fails at first, and is tried again soon."""
    with _Running(node) as running:
        if running.failures < n:
            running.failed_before()
            raise ValueError(f"not yet {node}")
        await running.dawdle()
        return value_of(node)


@loom.step(retry=loom.Retry(attempts=50, initial=6.0, maximum=20.0))
async def sluggish(node: int, n: int) -> int:
    """Fails at first, and is tried again much later."""
    with _Running(node) as running:
        if running.failures < n:
            running.failed_before()
            raise ValueError(f"not now {node}")
        return value_of(node)


async def _careful(node: int, n: int) -> int:
    with _Running(node) as running:
        await running.dawdle()
        return value_of(node)


CAREFUL: Final = tuple(
    loom.step(name=f"careful{number}", idempotent=False)(_careful) for number in range(64)
)
"""Each must not run twice, and has a name of its own, by which verdicts are given."""


@loom.step(retry=loom.NO_RETRY)
async def exits(node: int, n: int) -> int:
    """Wants to end the process."""
    with _Running(node):
        raise SystemExit(3)


@loom.step(retry=loom.NO_RETRY)
async def unencodable(node: int, n: int) -> Any:
    """Returns what nobody can keep."""
    with _Running(node):
        return object()


@loom.step
async def stubborn(node: int, n: int) -> int:
    """Takes a cancellation for a hint."""
    with _Running(node) as running:
        try:
            await running.dawdle()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return value_of(node)


@loom.step
async def undo(node: int, n: int) -> int:
    """Undoes what another did."""
    with _Running(node):
        return node


STEPS: Final[dict[str, loom.Step[[int, int], Any]]] = {
    "work": work,
    "plain": plain,
    "declines": declines,
    "fails": fails,
    "flaky": flaky,
    "sluggish": sluggish,
    "exits": exits,
    "unencodable": unencodable,
    "stubborn": stubborn,
}


def step_of(node: Node) -> loom.Step[[int, int], Any]:
    """The step that an instruction calls."""
    return CAREFUL[node.id] if node.kind == "careful" else STEPS[node.kind]
