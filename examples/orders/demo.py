"""`make demo`: 300 orders, a kill in the middle, and the proof that nothing was lost.

The engine runs in a process of its own over one SQLite file, and is killed with
``kill -9``. Everything else, the approvals included, happens beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import signal
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import msgspec

from examples.orders.catalogue import read_orders
from examples.orders.desk import Desk
from examples.orders.flows import LARGE
from examples.orders.ledger import VARIABLE
from examples.orders.proof import JOURNAL, KILLED, LEDGER, Proof, Snapshot, look, prove
from examples.orders.stage import Stage
from loom_mq import Status
from loom_mq.journal.protocol import Journal
from loom_mq.journal.sqlite import SqliteJournal

ROOT = Path(__file__).parents[2]
KILL_AT = 0.4
"""Share of the orders that are completed when the engine is killed."""
KILL_LATEST = 0.6
"""It is not waited beyond this share for a moment with `BUSY` orders in hand."""
BUSY = 5
LOOK = 0.1
"""Seconds between two looks into the journal."""
BUDGET = 150.0
"""Seconds for all of it; a quiet machine needs a tenth."""
GOODBYE = 15.0


class Trouble(Exception):
    """The demo cannot go on; says why."""


class Demo:
    """One run.

    Args:
        folder: for journal, ledger and log; kept.
        number: how many orders.
        journal: open, beside the engine's.
        stage: shows what happens.
    """

    def __init__(self, folder: Path, number: int, journal: Journal, stage: Stage) -> None:
        self._folder = folder
        self._number = number
        self._journal = journal
        self._stage = stage
        self._deadline = time.monotonic() + BUDGET
        large = [order.id for order in read_orders(number) if order.total >= LARGE]
        self.refused = large[0] if large else None
        self._desk = Desk(journal, self.refused)
        self._house: Process | None = None

    async def run(self) -> Proof:
        """From the first order to the proof."""
        try:
            house = await self._open()
            await self._watch(house, KILL_AT)
            await self._until_busy()
            killed = await self._kill(house)
            house = await self._open()
            self._stage.say(f"Started again on the same file: process {house.pid}.")
            await self._watch(house, 1.0)
            await self._close(house)
        finally:
            if self._house is not None and self._house.returncode is None:
                self._house.kill()
                await self._house.wait()
        return await prove(self._journal, self._folder / LEDGER, killed)

    # ---- the engine's process -----------------------------------------------------------------

    async def _open(self) -> Process:
        log = os.open(self._folder / "house.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._house = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "examples.orders.house",
                str(self._folder / JOURNAL),
                str(self._number),
                stdin=PIPE,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, VARIABLE: str(self._folder / LEDGER)},
            )
        finally:
            os.close(log)
        return self._house

    async def _watch(self, house: Process, share: float) -> None:
        """Show how it goes, approve what waits, until a share of the orders is completed."""
        wanted = max(1, int(self._number * share))
        while True:
            counts = await self._journal.count()
            self._stage.show(counts, len(await self._desk.waiting()))
            if sum(number for status, number in counts.items() if status.terminal) >= wanted:
                return
            await self._desk.work()
            if house.returncode is not None:
                raise Trouble(f"the engine ended by itself with {house.returncode}")
            if time.monotonic() > self._deadline:
                raise Trouble(f"not done within {BUDGET:g} s")
            await asyncio.sleep(LOOK)

    async def _until_busy(self) -> None:
        """Wait a moment for orders to be in hand: a kill is to hit somebody."""
        for _ in range(100):
            counts = await self._journal.count()
            ended = sum(number for status, number in counts.items() if status.terminal)
            if counts.get(Status.RUNNING, 0) >= BUSY or ended > KILL_LATEST * self._number:
                return
            await asyncio.sleep(LOOK / 10)

    async def _kill(self, house: Process) -> Snapshot:
        house.send_signal(signal.SIGKILL)
        await house.wait()
        say = self._stage.say
        say(f"kill -9 {house.pid}", style="bold red")
        killed = await look(self._journal, self._folder / LEDGER, self._number, self.refused)
        save(self._folder / KILLED, msgspec.json.encode(killed))
        counts = ", ".join(f"{number} {name}" for name, number in killed.statuses.items())
        say(f"The journal holds: {counts};")
        say(f"  {len(killed.done)} steps are done, {len(killed.begun)} were under way.")
        waiting = await self._desk.waiting()
        await self._desk.answer(waiting)
        if waiting:
            say(f"Nobody runs now; {len(waiting)} orders are approved all the same.")
        return killed

    async def _close(self, house: Process) -> None:
        """Let the engine end in good order."""
        assert house.stdin is not None
        house.stdin.close()
        try:
            async with asyncio.timeout(GOODBYE):
                code = await house.wait()
        except TimeoutError:
            raise Trouble(f"the engine did not end within {GOODBYE:g} s") from None
        if code != 0:
            raise Trouble(f"the engine ended with {code}")


def save(path: Path, content: bytes) -> None:
    """Write a file."""
    path.write_bytes(content)


def tail(path: Path, lines: int = 15) -> str:
    """The end of a text file."""
    if not path.exists():
        return ""
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


def epilogue(stage: Stage, folder: Path, proof: Proof, seconds: float, order: str) -> None:
    """Say what came out, and how to look closer."""
    stage.say("")
    for name, figure in proof.facts:
        stage.say(f"{name:<46}{figure:>8}")
    if proof.violations:
        stage.say(f"NOT PROVEN after {seconds:.1f} s:", style="bold red")
        for sentence in proof.violations[:20]:
            stage.say(f"  {sentence}")
    else:
        stage.say(f"Proven in {seconds:.1f} s: nothing was lost, nothing done ran again.")
    journal = f"--journal {shlex.quote(f'sqlite:///{folder / JOURNAL}')}"
    python = from_here(Path(sys.executable))
    script = Path(sys.executable).with_name("loom")
    loom = from_here(script) if script.exists() else f"{python} -m loom_mq.cli"
    stage.say(f"\nLook closer; everything is in {folder}:")
    stage.say(f"  {loom} list {journal}")
    stage.say(f"  {loom} show {order} {journal}")
    stage.say(f"  {loom} history {order} {journal}")
    stage.say("Prove it again, after a change to its ledger.jsonl if you like:")
    stage.say(f"  {python} -m examples.orders.proof {shlex.quote(str(folder))}")


def from_here(path: Path) -> str:
    """A program of this environment, as it is called from the present folder."""
    return shlex.quote(
        str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
    )


async def play(folder: Path, number: int) -> int:
    """Run the demo; 0 when everything is proven."""
    began = time.monotonic()
    stage = Stage(number)
    stage.say(f"{number} orders, one SQLite file: {folder / JOURNAL}")
    stage.say(f"The engine gets kill -9 when {KILL_AT:.0%} of them are completed.\n")
    try:
        async with SqliteJournal(folder / JOURNAL, exclusive=False) as journal:
            with stage:
                demo = Demo(folder, number, journal, stage)
                proof = await demo.run()
    except Trouble as trouble:
        stage.say(f"The demo failed: {trouble}. The end of {folder / 'house.log'}:", style="red")
        stage.say(tail(folder / "house.log"))
        return 2
    epilogue(stage, folder, proof, time.monotonic() - began, demo.refused or "order-0001")
    return 1 if proof.violations else 0


def arguments() -> argparse.Namespace:
    """Read the command line."""
    everything = len(read_orders())
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=int, default=everything, help="how many; all by default")
    parser.add_argument("--folder", type=Path, help="where to keep it; a new one by default")
    chosen = parser.parse_args()
    if not 1 <= chosen.orders <= everything:
        parser.error(f"--orders takes 1 to {everything}")
    if chosen.folder is not None and (chosen.folder / JOURNAL).exists():
        parser.error(f"{chosen.folder} holds a journal of an earlier run; name another folder")
    return chosen


def main() -> int:
    """Read the arguments and play."""
    chosen = arguments()
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="loom-orders-"))
    folder.mkdir(parents=True, exist_ok=True)
    return asyncio.run(play(folder.resolve(), chosen.orders))


if __name__ == "__main__":
    raise SystemExit(main())
