"""A guard outlives the program that started a server, by as long as it takes to end the server.

The program holds the other end of the guard's standard input. When the program ends, however it
ends, the kernel closes that end; the guard reads the end of the file, ends the processes that it
was told about, removes their folder, and goes. A server that is closed in good order takes the
same way, so the way for bad days is tested every day.

Orders are lines of JSON: ``{"watch": pid, "signal": number}``, ``{"forget": pid}``,
``{"remove": folder}``.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from loom_mq.testing.servers import trees


class Guard:
    """The program's end of a guard.

    Args:
        folder: removed when the guard does its work.
    """

    def __init__(self, folder: Path) -> None:
        # A session of its own, so that what kills the program's group spares the guard.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", trees.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        if self._process.stdin is None:
            raise AssertionError("a guard without a standard input")
        self._orders: IO[bytes] = self._process.stdin
        self._give({"remove": str(folder)})

    def watch(self, pid: int, number: signal.Signals) -> None:
        """End this process when the program ends: with `number` first, with force soon after."""
        self._give({"watch": pid, "signal": int(number)})

    def forget(self, pid: int) -> None:
        """This process ended already."""
        self._give({"forget": pid})

    def dismiss(self, timeout: float = 60.0) -> None:
        """Let the guard do its work now and wait, `timeout` seconds at most; once only."""
        self._orders.close()
        self._process.wait(timeout)

    def _give(self, order: Mapping[str, int | str]) -> None:
        self._orders.write(json.dumps(order).encode() + b"\n")
        self._orders.flush()
