"""``python -m benchmarks.kernel``: how fast the kernel reads a log, on one core, without I/O.

``fold``: events per second from envelopes to a state, payloads decoded; what a claim of an
execution costs on top of reading its log. ``snapshot``: the same events, by reading a stored
fold instead (J7). CPU time, best of the rounds: the machine has other things to do.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table

from loom_mq.kernel.fold import fold
from loom_mq.kernel.snapshots import decode_snapshot, encode_state
from loom_mq.model import events as ev
from loom_mq.model.events import Envelope, Wait, WaitKind, kind_of_type
from loom_mq.model.failures import Failure

TARGET: Final = 300_000
"""Events per second that `fold` is held to."""
LENGTHS: Final = (10, 100, 1_000, 10_000)
ROUND: Final = 0.2
"""Seconds of work that a round repeats a log for."""
_RESULT: Final = b"\x00" + bytes(40)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernel", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each figure")
    options = parser.parse_args(argv)

    table = Table("events", "kind of log", "fold", "fold, per event", "snapshot, read", "written")
    slowest = float("inf")
    for name, make in (("steps", steps), ("everything", everything)):
        for length in LENGTHS:
            log = written(make(), length)
            snapshot = encode_state(fold(log))
            state = fold(log)
            speed = length / best(partial(fold, log), options.rounds)
            reading = length / best(partial(decode_snapshot, snapshot), options.rounds)
            writing = length / best(partial(encode_state, state), options.rounds)
            slowest = min(slowest, speed)
            table.add_row(
                f"{length:,}",
                name,
                f"{speed:,.0f}/s",
                f"{1e6 / speed:.2f} µs",
                f"{reading:,.0f}/s",
                f"{writing:,.0f}/s",
            )
    console = Console()
    console.print(table)
    console.print(f"Slowest fold: {slowest / TARGET:.2f} of the target of {TARGET:,} events/s.")


def best(work: Callable[[], object], rounds: int) -> float:
    """CPU seconds that one call takes, in the best round."""
    began = time.process_time()
    work()
    repeats = max(1, int(ROUND / max(time.process_time() - began, 1e-9)))
    fastest = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        for _ in range(repeats):
            work()
        fastest = min(fastest, (time.process_time() - began) / repeats)
    return fastest


def steps() -> Iterator[msgspec.Struct]:
    """A flow of steps, one after the other: two events each."""
    yield ev.ExecutionStarted("orders", "1", _RESULT)
    number = 0
    while True:
        place = f"#{number}"
        number += 1
        yield ev.StepStarted(place, "charge", 1, 123_456)
        yield ev.StepCompleted(place, _RESULT, number)


def everything() -> Iterator[msgspec.Struct]:
    """A flow that does a bit of everything: steps, retries, choices, gates, branches."""
    yield ev.ExecutionStarted("orders", "1", _RESULT, labels={"customer": "17"})
    failure = Failure("OSError", "builtins", "connection reset", "Traceback ...")
    turn = number = 0
    while True:
        step, choice, gate = f"#{number}", f"#{number + 1}", f"#{number + 2}"
        branches = [f"~{number}#0", f"~{number + 1}#0"]
        number += 3
        yield ev.StepStarted(step, "charge", 1, 123_456)
        yield ev.StepRetrying(step, failure, 1, 1_000)
        yield ev.StepStarted(step, "charge", 2, 123_456)
        turn += 1
        yield ev.StepCompleted(step, _RESULT, turn)
        yield ev.DecisionRecorded(choice, "cutoff", b"\x00\x01")
        yield from (ev.StepStarted(place, "pick", 1, 99) for place in branches)
        turn += 1
        yield ev.StepCompleted(branches[0], _RESULT, turn)
        yield ev.StepFailed(branches[1], failure, turn)
        yield ev.ExecutionSuspended((Wait(gate, WaitKind.GATE, "Approval", 9_999, "bool"),))
        turn += 1
        yield ev.ExecutionResumed((), turn)
        yield ev.AnswerTaken(gate, "Approval", b"\x00\xc3", "id", turn, "ann")


def written(payloads: Iterator[msgspec.Struct], length: int) -> list[Envelope]:
    """The first `length` events as they come from a journal: no two share an object."""
    decode = msgspec.msgpack.Decoder(Envelope).decode
    return [
        decode(
            msgspec.msgpack.encode(
                Envelope(
                    seq.to_bytes(16),
                    seq,
                    kind_of_type[type(payload)].value,
                    1_700_000_000_000_000 + seq,
                    1,
                    True,
                    ev.EVENT_SCHEMA,
                    msgspec.msgpack.encode(payload),
                )
            )
        )
        for seq, payload in zip(range(length), payloads, strict=False)
    ]


if __name__ == "__main__":
    main()
