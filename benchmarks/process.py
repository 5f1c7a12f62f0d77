"""Child processes that talk JSON lines with the driver.

The child reads commands from its standard input and answers on its standard output; it ends at
the end of its input, so no child outlives a driver, even a killed one. Standard library only: a
peer's process may run in another virtual environment.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

JsonField = str | int | float | bool | None | list[float]
Fields = dict[str, JsonField]

ROOT: Final = Path(__file__).resolve().parent.parent
_LINE_LIMIT: Final = 16 * 1024 * 1024
_saying: Final = threading.Lock()


class ChildFailedError(Exception):
    """A child ended, or stayed silent for too long; its last log lines are in the text."""


class Child:
    """A process started with ``python -m module``, and the line protocol with it."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self._process = process
        self._log = log
        self._said: dict[str, asyncio.Queue[Fields | None]] = {}
        self._reader = asyncio.create_task(self._read(), name=f"lines of {name}")

    @classmethod
    async def start(
        cls,
        name: str,
        module: str,
        arguments: Sequence[str],
        *,
        python: str,
        workdir: Path,
        timeout: float = 60.0,
    ) -> Child:
        """Start it and wait for its ``ready`` line, ``timeout`` seconds at most."""
        log = workdir / f"{name}.log"
        with log.open("ab") as stderr:
            process = await _spawn(python, module, arguments, stderr)
        child = cls(name, process, log)
        try:
            await child.expect("ready", timeout)
        except TimeoutError as error:
            await child.stop(timeout=1.0)
            raise child._failed(f"was not ready within {timeout:g} s") from error
        except BaseException:
            await child.stop(timeout=1.0)
            raise
        return child

    @property
    def pid(self) -> int:
        """The operating system's id of the process."""
        return self._process.pid

    async def tell(self, **command: JsonField) -> None:
        """Send one command."""
        stdin = self._process.stdin
        if stdin is None:
            raise ChildFailedError(f"{self.name} has no standard input")
        try:
            stdin.write(json.dumps(command).encode() + b"\n")
            await stdin.drain()
        except ConnectionError as error:
            raise self._failed("closed its input") from error

    async def expect(self, event: str, timeout: float) -> Fields:
        """The next ``event`` line, whatever else was said meanwhile.

        `TimeoutError` after ``timeout`` seconds; `ChildFailedError` if the child ended before.
        """
        async with asyncio.timeout(timeout):
            fields = await self._lines(event).get()
        if fields is None:
            raise self._failed(f"ended before it said {event!r}")
        return fields

    def kill(self) -> None:
        """``kill -9``, now."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)

    async def stop(self, timeout: float = 10.0) -> None:
        """Close its input, then ask by signal, then kill."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        for harder in (self._process.terminate, self.kill, None):
            try:
                async with asyncio.timeout(timeout):
                    await self._process.wait()
                return
            except TimeoutError:
                if harder is None:
                    raise self._failed("survives kill -9") from None
                with suppress(ProcessLookupError):
                    harder()

    def _lines(self, event: str) -> asyncio.Queue[Fields | None]:
        queue = self._said.setdefault(event, asyncio.Queue())
        if self._reader.done() and queue.empty():
            queue.put_nowait(None)
        return queue

    async def _read(self) -> None:
        """Sort the child's lines by event until it ends; None then wakes whoever still waits."""
        stdout = self._process.stdout
        while stdout is not None and (line := await stdout.readline()):
            fields: Fields = json.loads(line)
            self._said.setdefault(str(fields["event"]), asyncio.Queue()).put_nowait(fields)
        for queue in self._said.values():
            queue.put_nowait(None)

    def _failed(self, what: str) -> ChildFailedError:
        tail = b"\n".join(self._log.read_bytes().splitlines()[-15:]).decode(errors="replace")
        return ChildFailedError(f"{self.name} (pid {self.pid}) {what}. Its log ends:\n{tail}")


async def _spawn(
    python: str, module: str, arguments: Sequence[str], stderr: IO[bytes]
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        python,
        "-m",
        module,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        limit=_LINE_LIMIT,
    )


def say(event: str, **fields: JsonField) -> None:
    """In a child: send one line to the driver. Safe from any thread."""
    line = json.dumps({"event": event, **fields}) + "\n"
    with _saying:
        sys.stdout.write(line)
        sys.stdout.flush()


async def commands() -> AsyncIterator[Fields]:
    """In a child: the driver's commands, until it closes its end."""
    reader = asyncio.StreamReader(limit=_LINE_LIMIT)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := await reader.readline():
        command: Fields = json.loads(line)
        yield command
