"""What the private servers have in common: start, stop, kill, freeze, and an end in all cases."""

from __future__ import annotations

import asyncio
import os
import pwd
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

from loom_mq.testing.servers import trees
from loom_mq.testing.servers.guard import Guard

StopMode = Literal["fast", "immediate"]
"""``fast``: in good order, soon. ``immediate``: without saving anything."""

_POLL: Final = 0.01
_TAIL_LINES: Final = 25


class ServerFailedError(Exception):
    """A private server cannot be found, does not start, or refuses a command.

    The text says what to install, or ends with the last lines of the server's log.
    """


class PrivateServer(ABC):
    """A server process in a throwaway folder.

    It may be used from one event loop after another, by one task at a time. As a context
    manager it starts on entry, and is gone with its data at the end.

    Args:
        name: short, for people and for the folder's name.
        user: the account to run as when this program runs as root; None for no change.
        start_timeout: seconds until a start counts as failed.
    """

    def __init__(self, name: str, *, user: str | None, start_timeout: float) -> None:
        if not sys.platform.startswith("linux"):
            raise ServerFailedError(f"private servers need Linux, this is {sys.platform}")
        self.name = name
        self._user = pwd.getpwnam(user) if user is not None and os.geteuid() == 0 else None
        self._start_timeout = start_timeout
        self._folder: Path | None = None
        self._guard: Guard | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._helpers: list[subprocess.Popen[bytes]] = []
        self._paused = False

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def folder(self) -> Path:
        """Where all its files are; it exists from the first start until `close`."""
        if self._folder is None:
            raise ServerFailedError(f"{self.name} was never started, or is closed")
        return self._folder

    @property
    def log_file(self) -> Path:
        """What the server says."""
        return self.folder / "server.log"

    @property
    def pid(self) -> int:
        """The topmost process of the running server; another one after each start."""
        if self._process is None:
            raise ServerFailedError(f"{self.name} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether its process lives, paused or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def paused(self) -> bool:
        """Whether it was paused and not resumed."""
        return self._paused

    async def start(self) -> None:
        """Start it and wait until it takes connections; its data are those of the last stop.

        Raises:
            ServerFailedError: not installed, ended at once, or not ready in time.
        """
        if self.running:
            return
        if self._folder is None:
            await self._lay_out()
        self._reap()
        self._process = self._spawn(self._command(), self._environment(), self.log_file)
        self._watch(self._process.pid, self._gentle)
        await self._until_ready(self._process)

    async def stop(self, mode: StopMode = "fast", timeout: float = 60.0) -> None:
        """Stop it and keep its data.

        Raises:
            ServerFailedError: it still runs after `timeout` seconds.
        """
        if self._process is None:
            return
        if mode == "immediate":
            await self._settle_if_able()
        trees.send(self._process.pid, self._stop_signals[mode])
        await self.resume()
        try:
            async with asyncio.timeout(timeout):
                await self._ended(self._process)
        except TimeoutError as error:
            raise self._failed(f"does not stop within {timeout:g} s") from error
        self._reap()

    async def kill(self, *, at_once: bool = False) -> None:
        """``kill -9`` for all its processes at one moment, as if the power failed.

        Args:
            at_once: spare no moment for what the server is known to lose in such a case though
                it should not; see the kind of server.
        """
        if self._process is None:
            return
        if not at_once:
            await self._settle_if_able()
        await asyncio.to_thread(trees.kill, self._process.pid)
        await self._ended(self._process)
        self._reap()

    async def restart(self, mode: StopMode = "fast") -> None:
        """Stop it and start it again on its data."""
        await self.stop(mode)
        await self.start()

    async def pause(self) -> None:
        """Freeze all its processes: connections stay open and nobody answers."""
        await asyncio.to_thread(trees.freeze, self.pid)
        self._paused = True

    async def resume(self) -> None:
        """Let it go on after `pause`."""
        if self._process is not None:
            await asyncio.to_thread(trees.thaw, self._process.pid)
        self._paused = False

    async def ensure_running(self) -> None:
        """Undo whatever a test did to it: resume it, or start it."""
        if self._paused:
            await self.resume()
        await self.start()

    async def close(self) -> None:
        """End it and remove its data. Nothing is left of it."""
        if self._guard is not None:
            guard, self._guard = self._guard, None
            await asyncio.to_thread(guard.dismiss)
        for helper in self._helpers:
            await self._ended(helper)
        if self._process is not None:
            await self._ended(self._process)
        self._process = None
        self._helpers.clear()
        self._folder = None
        self._paused = False

    def log_tail(self, lines: int = _TAIL_LINES) -> str:
        """The last lines of its log."""
        if self._folder is None or not self.log_file.exists():
            return "(no log)"
        text = self.log_file.read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    # What a kind of server says about itself.

    _gentle: signal.Signals
    _stop_signals: Mapping[StopMode, signal.Signals]

    @abstractmethod
    async def _prepare(self) -> None:
        """Fill the new, empty folder."""

    @abstractmethod
    def _command(self) -> Sequence[str | Path]:
        """The program and its arguments, in the foreground."""

    @abstractmethod
    def _environment(self) -> Mapping[str, str]:
        """The environment of the server and its tools."""

    @abstractmethod
    async def _ready(self) -> bool:
        """Whether it takes connections."""

    @abstractmethod
    async def _settle(self) -> None:
        """Let the server save what it loses by a fault of its own when it is killed."""

    # For the kinds of servers.

    def _own(self, path: Path) -> None:
        """Give a file or folder to the account that the server runs as."""
        if self._user is not None:
            os.chown(path, self._user.pw_uid, self._user.pw_gid)

    def _spawn(
        self, command: Sequence[str | Path], environment: Mapping[str, str], log: Path
    ) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=self.folder,
                start_new_session=True,
                umask=0o077,
                user=self._user.pw_uid if self._user else None,
                group=self._user.pw_gid if self._user else None,
                extra_groups=[] if self._user else None,
            )

    def _watch(self, pid: int, number: signal.Signals) -> None:
        if self._guard is None:
            raise ServerFailedError(f"{self.name} is closed")
        self._guard.watch(pid, number)

    async def _run(self, command: Sequence[str | Path], timeout: float) -> str:
        """Run one of the server's tools to its end and return its output."""
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._environment(),
            cwd=self.folder,
            user=self._user.pw_uid if self._user else None,
            group=self._user.pw_gid if self._user else None,
            extra_groups=[] if self._user else None,
        )
        tool = Path(command[0]).name
        try:
            async with asyncio.timeout(timeout):
                output, complaint = await process.communicate()
        except TimeoutError as error:
            raise self._failed(f"left {tool} without an answer for {timeout:g} s") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            text = complaint.decode(errors="replace").strip()
            raise self._failed(f"was refused by {tool} (exit {process.returncode}): {text}")
        return output.decode(errors="replace")

    def _failed(self, what: str) -> ServerFailedError:
        return ServerFailedError(f"{self.name} {what}. Its log ends:\n{self.log_tail()}")

    async def _settle_if_able(self) -> None:
        if self.running and not self._paused:
            await self._settle()

    async def _lay_out(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix=f"loom-{self.name}-"))
        self._own(self._folder)
        self._guard = Guard(self._folder)
        await self._prepare()

    async def _until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + self._start_timeout
        while not await self._ready():
            if (code := process.poll()) is not None:
                raise self._failed(f"ended with exit code {code} instead of starting")
            if time.monotonic() > deadline:
                raise self._failed(f"was not ready within {self._start_timeout:g} s")
            await asyncio.sleep(_POLL)

    async def _ended(self, process: subprocess.Popen[bytes]) -> None:
        while process.poll() is None:
            await asyncio.sleep(_POLL)

    def _reap(self) -> None:
        """Forget a process that ended by itself or was ended."""
        if self._process is not None and self._guard is not None:
            self._guard.forget(self._process.pid)
        self._process = None
        self._paused = False
