"""A service's life and end, in real processes with real signals (C06, C60, C67, C93)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from loom_mq.runtime.part import ExitCode

ROOT = Path(__file__).parents[2]
SECRET = "S3cr3t"
SLACK = 0.5
"""Seconds for two busy cores, on top of what the rule allows."""


class Running:
    """A service process and what it said."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.text = ""

    async def until(self, event: str) -> dict[str, object]:
        """Read on until the line of this event."""
        assert self._process.stderr is not None
        async with asyncio.timeout(30):
            while line := await self._process.stderr.readline():
                self.text += line.decode()
                fields = json.loads(line) if line.startswith(b"{") else {"event": line.decode()}
                if str(fields["event"]).strip() == event:
                    return dict(fields)
        raise AssertionError(f"no {event} in:\n{self.text}")

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self._process.send_signal(number)

    async def ended(self) -> int:
        """Wait for the end; returns the exit code."""
        assert self._process.stderr is not None
        async with asyncio.timeout(30):
            self.text += (await self._process.stderr.read()).decode()
            return await self._process.wait()

    @property
    def events(self) -> list[str]:
        return [
            json.loads(line)["event"] for line in self.text.splitlines() if line.startswith("{")
        ]


@asynccontextmanager
async def service(mode: str, *arguments: str, **settings: str) -> AsyncIterator[Running]:
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith("LOOM_")
    } | {
        "LOOM_JOURNAL": "postgresql://loom:S3cr3t%2Fp@ss@127.0.0.1:1/loom?token=S3cr3tToken",
        "LOOM_BROKER": "amqp://loom:S3cr3t%2Fp@ss@127.0.0.1:1/v",
        "LOOM_HTTP_PORT": "off",
        "LOOM_DRAIN": "5",
        "LOOM_LEASE": "2",
        "LOOM_LOG_LEVEL": "debug",
        "LOOM_TEST_MODE": mode,
        **settings,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.unit.service_program",
        *arguments,
        cwd=ROOT,
        env=environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    running = Running(process)
    try:
        yield running
        assert SECRET not in running.text, "C93"
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.parametrize("loop", ["false", "true"], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_and_ends_with_0(number: signal.Signals, loop: str) -> None:
    """C06."""
    async with service("normal", LOOM_UVLOOP=loop) as running:
        await running.until("service.ready")
        running.signal(number)
        assert await running.ended() == ExitCode.CLEAN
        tail = running.events[running.events.index("service.ready") + 1 :]
        assert tail == ["service.draining", "service.drained", "lease.retired", "service.stopped"]
        assert "lease retired" in running.text


async def test_a_drain_that_takes_too_long_is_cut() -> None:
    """C06: grace over; the lease is ended, so that others need not wait for it."""
    async with service("slow", LOOM_DRAIN="0.5") as running:
        await running.until("service.ready")
        began = time.monotonic()
        running.signal()
        assert await running.ended() == ExitCode.GAVE_UP
        assert time.monotonic() - began < 0.5 + 2 + SLACK
        assert "service.drain_cut" in running.events
        assert "lease.retired" in running.events


@pytest.mark.parametrize("loop", ["false", "true"], ids=["asyncio", "uvloop"])
async def test_a_second_signal_stops_now(loop: str) -> None:
    """F10."""
    async with service("slow", LOOM_DRAIN="60", LOOM_UVLOOP=loop) as running:
        await running.until("service.ready")
        running.signal()
        await running.until("service.draining")
        began = time.monotonic()
        running.signal()
        assert await running.ended() == ExitCode.INTERRUPTED
        assert time.monotonic() - began < 2 + SLACK
        assert "lease.retired" in running.events


@pytest.mark.parametrize(
    ("mode", "loop"),
    [
        ("blocks", "false"),
        ("blocks", "true"),
        ("blocks-in-c", "false"),
        ("stop-hangs", "false"),
        ("frozen", "false"),
    ],
)
async def test_the_process_ends_in_time_whatever_hangs(mode: str, loop: str) -> None:
    """C60: user code, foreign code, the part, journal and broker; one line says so."""
    async with service(mode, LOOM_DRAIN="0.5", LOOM_UVLOOP=loop) as running:
        await running.until("service.ready")
        if mode.startswith("blocks"):
            blocked = await running.until("loop.blocked")
            where = "_block" if mode == "blocks" else "_misbehave"
            assert f"{where} (service_program.py" in str(blocked["stack"])
        began = time.monotonic()
        running.signal()
        code = await running.ended()
        assert time.monotonic() - began < 0.5 + 2 + SLACK
        assert code == ExitCode.GAVE_UP if mode != "stop-hangs" else code != ExitCode.CRASHED
        assert {"service.given_up", "service.drain_cut", "service.stop_cut"} & set(running.events)
        assert "Task was destroyed" not in running.text
        assert "never retrieved" not in running.text


async def test_a_stuck_thread_does_not_hold_the_process() -> None:
    """C60: a plain `def` step that never returns."""
    async with service("stuck-thread") as running:
        await running.until("service.ready")
        await asyncio.sleep(0.5)  # the thread starts 0.3 s after the part, with no event to tell
        began = time.monotonic()
        running.signal()
        assert await running.ended() == ExitCode.CLEAN
        assert time.monotonic() - began < 2 + SLACK


async def test_an_error_while_stopping_is_logged_and_the_rest_is_let_go_of() -> None:
    async with service("stop-raises") as running:
        await running.until("service.ready")
        running.signal()
        assert await running.ended() == ExitCode.CLEAN
        assert running.events[-3:] == ["service.stop_failed", "lease.retired", "service.stopped"]


@pytest.mark.parametrize("mode", ["crashes", "start-raises"])
async def test_a_crash_ends_with_1_and_a_redacted_traceback(mode: str) -> None:
    """C93."""
    async with service(mode) as running:
        assert await running.ended() == ExitCode.CRASHED
        assert "service.crashed" in running.events
        assert "RuntimeError" in running.text
        assert "***" in running.text


async def test_a_journal_that_stays_away_ends_with_5_and_one_sentence() -> None:
    """C67."""
    async with service("journal-down", LOOM_STARTUP_TIMEOUT="1") as running:
        began = time.monotonic()
        refused = await running.until("service.refused")
        assert await running.ended() == ExitCode.UNREACHABLE
        assert time.monotonic() - began < 15
        assert str(refused["error"]).startswith(
            "LOOM_JOURNAL (postgresql://loom:***@127.0.0.1:1/loom?token=***): connection refused"
        )
        assert running.events.count("service.waiting") == 1


async def test_what_is_set_up_wrong_ends_with_2_within_15_seconds() -> None:
    """C67."""
    async with service("wrong-password", LOOM_STARTUP_TIMEOUT="3600") as running:
        began = time.monotonic()
        refused = await running.until("service.refused")
        assert await running.ended() == ExitCode.SETTINGS
        assert time.monotonic() - began < 15
        assert "LOOM_JOURNAL" in str(refused["error"])
        assert "Traceback" not in running.text


async def test_a_newer_schema_ends_with_2_at_once() -> None:
    async with service("newer-schema") as running:
        assert await running.ended() == ExitCode.SETTINGS
        assert "service.waiting" not in running.events
        assert "upgrade loom-mq" in running.text


@pytest.mark.parametrize(
    ("mode", "sign"), [("never-connects", "service.started"), ("start-hangs", "starting")]
)
async def test_a_signal_before_it_is_ready_ends_it(mode: str, sign: str) -> None:
    async with service(mode) as running:
        await running.until(sign)
        if mode == "never-connects":
            await asyncio.sleep(0.3)  # the handlers are installed right after this line
        began = time.monotonic()
        running.signal()
        assert await running.ended() == ExitCode.CLEAN
        assert time.monotonic() - began < 2 + SLACK


async def test_health_tells_how_it_stands() -> None:
    async with service("slow", LOOM_HTTP_PORT="0", LOOM_DRAIN="1") as running:
        port = int(str((await running.until("health.served"))["port"]))
        await running.until("service.ready")
        status, checks = await _ready(port)
        assert (status, checks["service"]) == (200, {"ok": True, "detail": "ready"})
        assert set(checks) == {"service", "journal", "broker", "lease", "work"}
        running.signal()
        await running.until("service.draining")
        status, checks = await _ready(port)
        assert (status, checks["service"]) == (503, {"ok": False, "detail": "draining"})
        await running.ended()


async def _ready(port: int) -> tuple[int, dict[str, dict[str, object]]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /readyz HTTP/1.1\r\n\r\n")
    answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    checks: dict[str, dict[str, object]] = json.loads(body)["checks"]
    return int(head.split(b" ")[1]), checks


async def test_wrong_settings_end_with_2_and_one_line() -> None:
    """C67, C93."""
    async with service("normal", LOOM_LEASE="soon", LOOM_JOURNAL="pg://u:S3cr3t@h") as running:
        assert await running.ended() == ExitCode.SETTINGS
        assert running.text.count("\n") == 1
        assert "LOOM_LEASE is 'soon'" in running.text
        assert "LOOM_JOURNAL is 'pg://u:***@h'" in running.text


async def test_unknown_settings_are_warned_about() -> None:
    async with service("normal", LOOM_DRIAN="S3cr3t") as running:
        told = await running.until("settings.unknown")
        assert told["message"] == "LOOM_DRIAN is not a setting; did you mean LOOM_DRAIN?"


async def test_help_and_version() -> None:
    for argument, code in (("--help", 0), ("--version", 0), ("--port", 2)):
        async with service("normal", argument, LOOM_JOURNAL="") as running:
            assert await running.ended() == code
