"""A real fleet: services as processes, over real servers, killed for real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from loom_mq.broker.amqp import AmqpBroker
from loom_mq.client.client import Client
from loom_mq.journal.postgres import PostgresJournal
from loom_mq.journal.protocol import ListQuery
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey, ExecutionRow
from tests.support import ledger
from tests.support.house import until

ROOT = Path(__file__).parents[2]


class Process:
    """One running service."""

    def __init__(self, role: str, number: int, env: dict[str, str], folder: Path) -> None:
        self.role = role
        self.log = folder / f"{role}-{number}.log"
        with self.log.open("wb") as log:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", f"services.{role}"],
                env=env,
                cwd=ROOT,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    def lines(self) -> list[dict[str, object]]:
        """What it has logged."""
        found = []
        for line in self.log.read_text(errors="replace").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                found.append({"event": line})
        return found

    def events(self, name: str) -> list[dict[str, object]]:
        """Log lines of one event."""
        return [line for line in self.lines() if line.get("event") == name]

    async def ready(self) -> Self:
        """Return when it says that it is ready.

        Raises:
            AssertionError: it ended instead.
        """

        async def said() -> bool:
            assert self.running, f"{self.role} ended:\n{self.log.read_text(errors='replace')}"
            return bool(self.events("service.ready"))

        await until(said, within=60)
        return self

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._popen.send_signal(number)

    def kill(self) -> None:
        """Kill -9, and nothing more."""
        self._popen.kill()
        self._popen.wait(10)

    async def exit_code(self, within: float = 60.0) -> int:
        """Wait for its end."""

        async def ended() -> bool:
            return not self.running

        await until(ended, within=within)
        return self._popen.returncode


class Fleet:
    """Starts, kills and asks a fleet.

    Args:
        broker: address of a private broker.
        journal: address of a private database.
        folder: for logs and the ledger.
        app: where the workers' flows are.
        settings: more ``LOOM_*`` variables.
    """

    client: Client
    journal: PostgresJournal

    def __init__(
        self,
        broker: str,
        journal: str,
        folder: Path,
        *,
        app: str = "tests.support.fleet_flows",
        **settings: str,
    ) -> None:
        self.broker = broker
        self.dsn = journal
        self.folder = folder
        self.ledger = folder / "ledger"
        self.processes: list[Process] = []
        self._env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("LOOM_")},
            "LOOM_BROKER": broker,
            "LOOM_JOURNAL": journal,
            "LOOM_APP": app,
            "LOOM_LEASE": "3",
            "LOOM_RESEND_AFTER": "2",
            "LOOM_SWEEP_INTERVAL": "0.5",
            ledger.VARIABLE: str(self.ledger),
            "PYTHONPATH": str(ROOT),
            **settings,
        }

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if hasattr(self, "client"):
            await self.client.__aexit__(None, None, None)
        if hasattr(self, "journal"):
            await self.journal.__aexit__(None, None, None)
        for process in self.processes:
            if process.running:
                process.send(signal.SIGCONT)
                process.kill()

    def spawn(self, role: str, **settings: str) -> Process:
        """Start one service; it may take a moment to be ready."""
        process = Process(role, len(self.processes), {**self._env, **settings}, self.folder)
        self.processes.append(process)
        return process

    async def start(self, *, dispatchers: int = 1, workers: int = 1, timers: int = 1) -> None:
        """Start a fleet and return when all of it is ready, with a client and the journal open."""
        started = [
            self.spawn(role)
            for role, count in (("dispatcher", dispatchers), ("worker", workers), ("timer", timers))
            for _ in range(count)
        ]
        for process in started:
            await process.ready()
        await self.open()

    async def open(self) -> None:
        """Open a client and a journal of the test's own."""
        self.client = await Client(AmqpBroker(self.broker, name="test")).__aenter__()
        self.journal = await PostgresJournal(self.dsn).__aenter__()

    def of(self, role: str) -> list[Process]:
        """Running processes of a role."""
        return [each for each in self.processes if each.role == role and each.running]

    def effects(self) -> list[ledger.Effect]:
        """What the steps did, in order."""
        return ledger.effects(self.ledger)

    async def row(self, execution_id: str) -> ExecutionRow:
        """The index row of an execution that exists."""
        [row] = await self.journal.get([ExecutionKey(DEFAULT_TENANT, execution_id)])
        assert row is not None
        return row

    async def kinds(self, execution_id: str) -> list[str]:
        """The kinds of an execution's events, in order."""
        log = await self.journal.read(ExecutionKey(DEFAULT_TENANT, execution_id))
        return [envelope.kind for envelope in log]

    async def rows(self, limit: int = 1000) -> list[ExecutionRow]:
        """All executions."""
        return await self.journal.find(ListQuery(limit=limit))

    def tell_logs(self) -> str:
        """The ends of all logs, for a failure's text."""
        return "\n".join(
            f"--- {each.log.name} (running: {each.running})\n"
            + each.log.read_text(errors="replace")[-2000:]
            for each in self.processes
        )


def rerun_keys(found: Iterable[ledger.Effect]) -> set[str]:
    """Steps whose effect was begun by more than one attempt."""
    attempts: dict[str, set[int]] = {}
    for effect in found:
        attempts.setdefault(effect.key, set()).add(effect.attempt)
    return {key for key, seen in attempts.items() if len(seen) > 1}


def assert_no_completed_step_ran_again(found: list[ledger.Effect]) -> None:
    """A step that was done and remembered is not begun again.

    A step may be begun twice when its worker died in between, or after its effect and
    before its completion was durable; it then shows another attempt, once per death.
    """
    for effect in found:
        same = [each for each in found if each.key == effect.key and each.what == effect.what]
        attempts = [each.attempt for each in same]
        assert len(attempts) == len(set(attempts)), f"one attempt ran twice: {same}"
