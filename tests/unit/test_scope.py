"""Places in control flow: the same whatever finishes first (K3)."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from loom_mq.flows.scope import Strand, current_strand, install_flow_rules


class Keeper:
    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[Any]] = []

    def count_task(self) -> int:
        return len(self.tasks)

    def adopt(self, task: asyncio.Task[Any]) -> None:
        self.tasks.append(task)


def place() -> str:
    strand = current_strand.get()
    assert strand is not None
    return strand.place()


async def in_flow(seed: int) -> dict[str, list[str]]:
    """Three branches with random pauses; each notes the places it took."""
    chance = random.Random(seed)
    keeper = Keeper()
    taken: dict[str, list[str]] = {}

    async def branch(name: str, depth: int) -> None:
        for _ in range(3):
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
            taken.setdefault(name, []).append(place())
        if depth:
            async with asyncio.TaskGroup() as group:
                for child in range(2):
                    group.create_task(branch(f"{name}.{child}", depth - 1))

    async def flow() -> None:
        taken["before"] = [place()]
        await asyncio.gather(*(branch(f"b{n}", 1) for n in range(3)))
        taken["after"] = [place()]

    install_flow_rules()
    current_strand.set(Strand(keeper))
    await flow()
    current_strand.set(None)
    assert len(keeper.tasks) == 3 + 3 * 2
    return taken


def test_k3_places_do_not_depend_on_timing() -> None:
    """K3: 30 different interleavings of the same flow take the same places."""
    expected = asyncio.run(in_flow(0))
    assert expected["before"] == ["#0"]
    assert expected["after"] == ["#1"]
    assert expected["b1"] == ["~1#0", "~1#1", "~1#2"]
    assert expected["b1.0"] == ["~1~0#0", "~1~0#1", "~1~0#2"]
    for seed in range(1, 30):
        assert asyncio.run(in_flow(seed)) == expected


async def test_tasks_outside_flows_are_left_alone() -> None:
    install_flow_rules()
    seen = await asyncio.get_running_loop().create_task(_strand())
    assert seen is None


async def _strand() -> Strand | None:
    return current_strand.get()
