"""A service with a part that misbehaves on demand; run as a process by `test_service`."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import threading
import time
from types import TracebackType
from typing import Final, Self, cast

from loom_mq.broker.protocol import Broker, BrokerHealth
from loom_mq.clock import JournalClock
from loom_mq.errors import JournalUnreachableError, SchemaVersionError, SettingsError
from loom_mq.journal.protocol import Journal, LeaseSession, Renewal
from loom_mq.model.execution import WorkerRecord
from loom_mq.observe.checks import Check
from loom_mq.runtime.part import Part, Ports
from loom_mq.runtime.ports import Openers
from loom_mq.runtime.process import leave, read_or_leave, run_service
from loom_mq.runtime.settings import TimerSettings

FOREVER: Final = 3600.0
PASSWORD: Final = "S3cr3t/p@ss"


class Connection:
    """A journal and a broker, as far as a service without work needs them."""

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._clock = JournalClock()

    async def __aenter__(self) -> Self:
        match self._mode:
            case "journal-down":
                raise JournalUnreachableError("connection refused")
            case "wrong-password":
                raise SettingsError("the password was refused")
            case "newer-schema":
                raise SchemaVersionError("the schema is of version 99; upgrade loom-mq")
            case "never-connects":
                await asyncio.sleep(FOREVER)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._mode == "frozen":
            await asyncio.sleep(FOREVER)

    async def now(self) -> int:
        return self._clock.now()

    def health(self) -> BrokerHealth:
        return BrokerHealth(True, False, True)

    async def lease(self, worker: WorkerRecord, ttl: float) -> LeaseSession:
        return Session(self._mode, self._clock)


class Session:
    """See `Connection`."""

    def __init__(self, mode: str, clock: JournalClock) -> None:
        self._mode = mode
        self._clock = clock

    async def renew(self, ttl: float) -> Renewal:
        return Renewal(held=True, now=self._clock.now())

    async def drain(self) -> None:
        return None

    async def retire(self) -> None:
        if self._mode == "frozen":
            await asyncio.sleep(FOREVER)
        print("lease retired", file=sys.stderr)

    async def close(self) -> None:
        if self._mode == "frozen":
            await asyncio.sleep(FOREVER)


class Work:
    """The part."""

    def __init__(self, mode: str, ports: Ports) -> None:
        self._mode = mode
        self._ports = ports
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        if self._mode == "start-raises":
            raise RuntimeError(f"no luck with {PASSWORD}")
        if self._mode == "start-hangs":
            print("starting", file=sys.stderr, flush=True)
            await asyncio.sleep(FOREVER)
        self._task = asyncio.ensure_future(self._misbehave())

    async def _misbehave(self) -> None:
        await asyncio.sleep(0.3)
        match self._mode:
            case "blocks":
                _block()
            case "blocks-in-c":
                hashlib.pbkdf2_hmac("sha256", b"x", b"y", 2_000_000_000)
            case "crashes":
                self._ports.fail(RuntimeError(f"lost everything with {PASSWORD}"))
            case "stuck-thread":
                threading.Thread(target=time.sleep, args=(FOREVER,)).start()

    async def drain(self, timeout: float) -> None:
        if self._mode in ("slow", "frozen"):
            await asyncio.sleep(FOREVER)
        await asyncio.sleep(0.2)

    async def stop(self) -> None:
        if self._mode == "stop-hangs":
            while True:
                try:
                    await asyncio.sleep(FOREVER)
                except asyncio.CancelledError:
                    continue
        if self._mode == "stop-raises":
            raise RuntimeError("no")

    def checks(self) -> dict[str, Check]:
        return {"work": Check(True, self._mode)}


def _block() -> None:
    time.sleep(FOREVER)


def main() -> None:
    mode = os.environ["LOOM_TEST_MODE"]
    settings = read_or_leave("timer", "For tests.", TimerSettings, sys.argv[1:], os.environ)

    async def build(ports: Ports) -> Part:
        return Work(mode, ports)

    openers = Openers(
        prepare=lambda _settings: asyncio.sleep(0),
        journal=lambda _settings, _clock: cast(Journal, Connection(mode)),
        broker=lambda _settings, _name: cast(Broker, Connection("")),
    )
    leave(run_service("timer", settings, build, openers=openers))


if __name__ == "__main__":
    main()
