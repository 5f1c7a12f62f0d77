"""Process trees: freeze, thaw and kill a server with all its children.

Run as a program, this file is the guard of `loom_mq.testing.servers.guard`. It therefore imports
nothing but the standard library: a guard starts fast and lives on whatever happens to the package.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")
_STOPPED = frozenset("Tt")
_GONE = frozenset("ZX")
_POLL = 0.002
_GENTLE_SECONDS = 5.0


class Process(NamedTuple):
    """What the kernel tells about a process."""

    pid: int
    parent: int
    state: str
    started: int
    """Clock ticks since boot; with `pid`, names one process for ever."""


def inspect(pid: int) -> Process | None:
    """The process with this id, or None once it has ended (a zombie has ended)."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The command's name stands in parentheses and may hold anything, so read after the last one.
    fields = text.rpartition(")")[2].split()
    if fields[0] in _GONE:
        return None
    return Process(pid, int(fields[1]), fields[0], int(fields[19]))


def tree(root: int) -> list[Process]:
    """`root` and all its living descendants, parents first; empty once `root` has ended."""
    top = inspect(root)
    if top is None:
        return []
    children: defaultdict[int, list[Process]] = defaultdict(list)
    for entry in _PROC.iterdir():
        if entry.name.isdecimal() and (process := inspect(int(entry.name))) is not None:
            children[process.parent].append(process)
    found = [top]
    for process in found:
        found.extend(children[process.pid])
    return found


def send(pid: int, number: signal.Signals) -> None:
    """Signal a process that may have ended already."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def freeze(root: int, timeout: float = 10.0) -> list[Process]:
    """Stop `root` and every descendant.

    Args:
        root: the id of the topmost process.
        timeout: seconds to wait for processes that are busy in the kernel, on a disk say.

    Returns:
        The frozen processes, parents first.

    Raises:
        TimeoutError: some of them still run.
    """
    deadline = time.monotonic() + timeout
    while True:
        # Parents come first, so each round can only meet children born before it.
        processes = tree(root)
        running = [process for process in processes if process.state not in _STOPPED]
        if not running:
            return processes
        for process in running:
            send(process.pid, signal.SIGSTOP)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {[p.pid for p in running]} do not stop")
        time.sleep(_POLL)


def thaw(root: int) -> None:
    """Let `root` and every descendant go on, children first."""
    for process in reversed(tree(root)):
        send(process.pid, signal.SIGCONT)


def kill(root: int, timeout: float = 10.0) -> None:
    """``kill -9`` for `root` and every descendant, all at one moment.

    Args:
        root: the id of the topmost process.
        timeout: seconds to wait until all are gone.

    Raises:
        TimeoutError: some of them are still there.
    """
    try:
        processes = freeze(root, timeout)
    except TimeoutError:
        processes = tree(root)
    for process in processes:
        send(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + timeout
    while left := [p.pid for p in processes if _same(p)]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {left} survive kill -9")
        time.sleep(_POLL)


def _same(process: Process) -> bool:
    now = inspect(process.pid)
    return now is not None and now.started == process.started


def end(process: Process, number: signal.Signals) -> None:
    """End a tree: with signal `number` if that works in a few seconds, else by force."""
    if not _same(process):
        return
    send(process.pid, number)
    thaw(process.pid)
    deadline = time.monotonic() + _GENTLE_SECONDS
    while _same(process) and time.monotonic() < deadline:
        time.sleep(_POLL)
    with suppress(TimeoutError):
        kill(process.pid)


def main() -> None:
    """Be a guard: take orders until the program that gives them ends, then carry them out."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    wards: dict[int, tuple[Process, signal.Signals]] = {}
    folders: list[str] = []
    for line in sys.stdin:
        match json.loads(line):
            case {"watch": int(pid), "signal": int(code)}:
                if (process := inspect(pid)) is not None:
                    wards[pid] = (process, signal.Signals(code))
            case {"forget": int(pid)}:
                wards.pop(pid, None)
            case {"remove": str(folder)}:
                folders.append(folder)
    for process, number in wards.values():
        end(process, number)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
