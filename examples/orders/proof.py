"""Proves with the journal and the ledger that a killed engine lost and repeated nothing.

``python -m examples.orders.proof FOLDER`` proves it once more for a folder that the demo
left. Change a line of its ledger and see it fail.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from decimal import Decimal
from pathlib import Path

import msgspec

from examples.orders.catalogue import read_orders
from examples.orders.flows import LARGE, fulfil
from examples.orders.ledger import calls
from examples.orders.model import Invoice, Order, Parcel
from loom_mq import Status
from loom_mq.journal.protocol import Journal, ListQuery
from loom_mq.journal.sqlite import SqliteJournal
from loom_mq.kernel.fold import ExecutionState, FrameStatus, fold
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey

JOURNAL = "orders.sqlite"
LEDGER = "ledger.jsonl"
KILLED = "killed.json"


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What journal and ledger held at one moment.

    Attributes:
        orders: how many there are in all.
        refused: the order that nobody approved, if any.
        statuses: executions by status.
        done: idempotency keys of steps whose outcome the journal holds.
        begun: keys of steps that the journal knows to have begun and nothing more.
        effects: how often each effect was seen, by key.
    """

    orders: int
    refused: str | None
    statuses: dict[str, int]
    done: list[str]
    begun: list[str]
    effects: dict[str, int]


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in the end.

    Attributes:
        facts: figures for people, in order.
        violations: what must not be, one sentence each; none when all is well.
    """

    facts: list[tuple[str, str]]
    violations: list[str]


async def logs(journal: Journal) -> dict[str, ExecutionState]:
    """Every execution's folded log, by id."""
    states = {}
    for row in await journal.find(ListQuery(limit=100_000)):
        key = ExecutionKey(DEFAULT_TENANT, row.execution_id)
        states[row.execution_id] = fold(await journal.read(key))
    return states


async def look(journal: Journal, ledger: Path, orders: int, refused: str | None) -> Snapshot:
    """Take down what journal and ledger hold now."""
    done: list[str] = []
    begun: list[str] = []
    for name, state in (await logs(journal)).items():
        for place, frame in state.frames.items():
            key = f"{DEFAULT_TENANT}/{name}/{place}"
            settled = frame.status in (FrameStatus.COMPLETED, FrameStatus.FAILED)
            (done if settled else begun).append(key)
    counted = await journal.count()
    return Snapshot(
        orders=orders,
        refused=refused,
        statuses={status.value: number for status, number in counted.items()},
        done=done,
        begun=begun,
        effects=dict(calls(ledger)),
    )


async def prove(journal: Journal, ledger: Path, killed: Snapshot) -> Proof:
    """Compare the end with what was held when the engine was killed."""
    states = await logs(journal)
    seen = calls(ledger)
    violations: list[str] = []
    orders = read_orders(killed.orders)
    completed = _check_outcomes(orders, states, killed.refused, violations)
    expected = _expected(states, violations)
    _check_effects(seen, expected, killed, violations)
    twice = [key for key in killed.done if seen[key] != killed.effects.get(key, 0)]
    again = [key for key in killed.begun if key in expected]
    doubled = sum(seen[key] > 1 for key in again)
    facts = [
        ("executions completed", f"{completed}/{len(orders)}"),
        ("effects seen in the ledger", str(sum(seen.values()))),
        ("steps completed before the kill", str(len(killed.done))),
        ("steps interrupted by the kill and run again", str(len(again))),
        ("  of which had done their effect, unrecorded", str(doubled)),
        ("completed steps that ran twice", str(len(twice))),
    ]
    return Proof(facts=facts, violations=violations)


def _check_outcomes(
    orders: list[Order],
    states: dict[str, ExecutionState],
    refused: str | None,
    violations: list[str],
) -> int:
    """Every order has ended as it must; returns how many have."""
    good = 0
    for order in orders:
        state = states.get(order.id)
        if state is None or state.status is not Status.COMPLETED or state.result is None:
            violations.append(f"{order.id} has not completed")
            continue
        invoice = fulfil.result_codec.decode(state.result)
        wanted = _wanted(order, paid=order.id != refused and order.customer != "no-credit")
        if invoice == wanted:
            good += 1
        else:
            violations.append(f"{order.id} ended with {invoice}, not with {wanted}")
    extra = sorted(states.keys() - {order.id for order in orders})
    violations.extend(f"nobody ordered {name}" for name in extra)
    return good


def _wanted(order: Order, *, paid: bool) -> Invoice:
    if not paid:
        return Invoice(order.id, Decimal(0), (), approved_by_hand=False)
    parcels = tuple(
        Parcel(line.sku, tracking=f"{order.id}/shelf-{line.sku}") for line in order.lines
    )
    return Invoice(order.id, order.total, parcels, approved_by_hand=order.total >= LARGE)


def _expected(states: dict[str, ExecutionState], violations: list[str]) -> dict[str, int]:
    """How often the effect of each completed step may have been seen at most."""
    expected = {}
    for name, state in states.items():
        for place, frame in state.frames.items():
            if frame.status is FrameStatus.COMPLETED:
                expected[f"{DEFAULT_TENANT}/{name}/{place}"] = frame.attempts
            elif frame.status is not FrameStatus.FAILED:
                violations.append(f"step {frame.name} of {name} is {frame.status.value} at the end")
    return expected


def _check_effects(
    seen: Counter[str], expected: dict[str, int], killed: Snapshot, violations: list[str]
) -> None:
    interrupted, done = set(killed.begun), set(killed.done)
    for key in sorted(seen.keys() | expected.keys()):
        number = seen[key]
        if key not in expected:
            violations.append(f"{key}: an effect that the journal knows nothing of")
        elif number == 0:
            violations.append(f"{key}: completed in the journal, and no effect was ever seen")
        elif key in done and number != killed.effects.get(key, 0):
            violations.append(f"{key}: completed before the kill, and its effect came again")
        elif key in interrupted and number > expected[key]:
            violations.append(f"{key}: more effects ({number}) than attempts ({expected[key]})")
        elif key not in interrupted and number != 1:
            violations.append(f"{key}: its effect was seen {number} times")
    for key in sorted(killed.effects.keys() - done - interrupted):
        violations.append(f"{key}: its effect came before the journal knew that it begins")


async def main(folder: Path) -> int:
    """Prove it for a folder that the demo left."""
    killed = msgspec.json.decode(read(folder / KILLED), type=Snapshot)
    async with SqliteJournal(folder / JOURNAL, exclusive=False) as journal:
        proof = await prove(journal, folder / LEDGER, killed)
    for name, figure in proof.facts:
        print(f"{name:<46}{figure:>8}")
    for sentence in proof.violations:
        print(f"NOT AS IT MUST BE: {sentence}")
    return 1 if proof.violations else 0


def read(path: Path) -> bytes:
    """A file's content."""
    return path.read_bytes()


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main(Path(sys.argv[1]))))
