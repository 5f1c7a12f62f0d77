"""What must be so once the weather is fair and all clients have heard how it ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from loom_mq.clock import MICROS
from loom_mq.engine.worker import Worker
from loom_mq.flows.rehearsal import rehearse
from tests.simulation.rig.choices import Choices
from tests.simulation.rig.eyes import Eyes
from tests.simulation.rig.nodes import SimFleet
from tests.simulation.rig.observer import Violation
from tests.simulation.rig.player import simulated
from tests.simulation.rig.shadow import JournalShadow

CANCEL_WITHIN: Final = 1.0
"""Seconds within which a holder hears of a cancel (K13)."""
PATIENT: Final = 30.0
"""Seconds that a park must wait for work in flight, so that all of it comes to its end (K11)."""


def check_rest(fleet: SimFleet, eyes: Eyes, *, harmless: bool) -> Iterator[Violation]:
    """L1 to L7, L10: nothing is left lying, and no back-stop carried the main path.

    Args:
        fleet: where all work has come to its end.
        eyes: what was seen of it.
        harmless: whether nobody died and nothing was lost; drains are no harm.
    """
    eyes.shadow.check()
    yield from _check_rows(fleet)
    yield from _check_queues(fleet)
    yield from _check_processes(fleet)
    if fleet.store._store.letters:
        letters = [(each.queue, each.reason) for each in fleet.store._store.letters.values()]
        yield _wrong("L4", f"dead letters: {letters[:3]}")
    if harmless:
        yield from _check_economy(eyes, patient=fleet.shape.park_drain >= PATIENT)


def _check_economy(eyes: Eyes, *, patient: bool) -> Iterator[Violation]:
    """L5, L6, L7: what must be so where nothing was lost and nobody died."""
    shadow = eyes.shadow
    if shadow.recoveries:
        yield _wrong("L7", f"{shadow.recoveries} recoveries, and nobody died")
    if shadow.abandoned:
        yield _wrong("L7", f"{shadow.abandoned} were taken for abandoned, and nobody died")
    for call in eyes.ledger.repeated + (eyes.ledger.stragglers if patient else []):
        yield Violation(
            rule="L6",
            execution_id=call.effect.execution_id,
            text=f"{call.effect.step} ran again, and nobody died",
        )
    if shadow.slowest_cancel > CANCEL_WITHIN * MICROS:
        yield _wrong("L5", f"a holder heard of a cancel after {shadow.slowest_cancel / MICROS} s")


def _check_rows(fleet: SimFleet) -> Iterator[Violation]:
    for entry in fleet.store._store.entries.values():
        row = entry.row
        name = f"{row.tenant}/{row.execution_id}"
        if not row.status.terminal:
            yield Violation(
                rule="L1",
                execution_id=name,
                text=f"{row.status}, owner {row.owner}, gates {row.gates}, in doubt "
                f"{row.in_doubt}, wakes {row.wake_at}, hint {row.hint_at}, {row.trouble}",
            )
        elif row.owner is not None or entry.inbox or entry.timers or row.hint_at is not None:
            yield Violation(
                rule="L2",
                execution_id=name,
                text=f"{row.status} with owner {row.owner}, {len(entry.inbox)} items, "
                f"timers {entry.timers}, hint {row.hint_at}",
            )


def _check_queues(fleet: SimFleet) -> Iterator[Violation]:
    for name, queue in fleet.hub._queues.items():
        if name.startswith("loom.token."):
            continue  # it is held, and that is what it is for
        unsettled = sum(len(each._unsettled) for each in queue.registrations)
        if queue.depth.ready or unsettled:
            yield _wrong("L4", f"queue {name}: {queue.depth.ready} ready, {unsettled} unsettled")


def _check_processes(fleet: SimFleet) -> Iterator[Violation]:
    for node in fleet.nodes:
        if not node.alive or node.part is None:
            yield _wrong("H0", f"{node.role} {node.index} does not run")
        elif isinstance(node.part, Worker) and node.part.busy:
            yield _wrong("L10", f"{node.part.owner} has {node.part.busy} executions in hand")


async def check_replay(shadow: JournalShadow, choices: Choices, prefixes: int) -> list[Violation]:
    """S13: the code fits each log, as far as it goes, at some of the lengths that it has had.

    Args:
        shadow: the logs.

        choices: at which lengths.
        prefixes: how many lengths of each log, besides the whole.
    """
    found: list[Violation] = []
    for key, known in shadow.known.items():
        lengths = {len(known.log)}
        lengths |= {1 + choices.pick("prefix", len(known.log)) for _ in range(prefixes)}
        for length in sorted(lengths):
            outcome = await rehearse(simulated, known.log[:length], execution_id=key.execution_id)
            if not outcome.ok:
                found.append(
                    Violation(
                        rule="S13",
                        execution_id=f"{key.tenant}/{key.execution_id}",
                        text=f"after {length} of {len(known.log)} events: {outcome.problem}",
                    )
                )
    return found


def _wrong(rule: str, text: str) -> Violation:
    return Violation(rule=rule, execution_id="", text=text)
