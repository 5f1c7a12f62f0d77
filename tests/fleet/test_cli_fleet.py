"""`loom` over a real fleet: it acts through the broker and looks into PostgreSQL (F11)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from loom_mq.cli.main import run
from tests.support.fleet import Fleet
from tests.support.house import until


@pytest.fixture
async def fleet(rabbit_url: str, postgres_dsn: str, tmp_path: Path) -> AsyncIterator[Fleet]:
    # in a process of its own `loom` keeps the log out of its answers by itself
    with capture_logs():
        async with Fleet(rabbit_url, postgres_dsn, tmp_path) as fleet:
            yield fleet


async def test_the_command_line_over_broker_and_postgresql(
    fleet: Fleet, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Migrate, start, wait, look, answer, cancel; the same exit codes as over one file."""
    monkeypatch.setenv("LOOM_JOURNAL", fleet.dsn)
    monkeypatch.delenv("LOOM_BROKER", raising=False)

    async def call(*arguments: str) -> tuple[int, str, str]:
        code = await asyncio.to_thread(run, arguments)
        out, err = capsys.readouterr()
        return code, out, err

    async def parked(name: str) -> None:
        async def waiting() -> bool:
            _, out, _ = await call("why", name, "--json")
            return bool(out) and json.loads(out)["items"][0]["code"] == "gate_waiting"

        await until(waiting, within=30, every=0.2)

    broker = ("--broker", fleet.broker)
    code, out, _ = await call("migrate", "--json")
    assert code == 0
    assert json.loads(out)["items"][0]["schema_version"] >= 1
    await fleet.start()
    assert await call("start", "steps", "[2, 0.0]", "--id", "e", "--wait", *broker) == (
        0,
        "2\n",
        "",
    )
    assert await call("result", "e", *broker) == (0, "2\n", "")
    assert await call("result", "e") == (0, "2\n", "")
    assert (await call("start", "steps", "[3, 0.0]", "--id", "e", *broker))[0] == 4
    assert (await call("start", "nonsense", *broker))[0] == 3
    for name in ("by-broker", "by-journal", "stopped"):
        assert (await call("start", "gated", "--id", name, *broker))[0] == 0
        await parked(name)
    assert (await call("resume", "by-broker", "Approval", "5", *broker))[0] == 4
    took = "its gate took it\n"
    answered = await call("resume", "by-broker", "Approval", '"yes"', *broker)
    assert answered == (0, f"by-broker: {took}", "")
    assert (await call("resume", "by-journal", "Approval", "5"))[0] == 4
    answered = await call("resume", "by-journal", "Approval", '"yes"')
    assert answered == (0, f"by-journal: {took}", ""), fleet.tell_logs()
    for name in ("by-broker", "by-journal"):
        assert await call("result", name, "--wait", *broker) == (0, '"1 yes"\n', "")
    code, out, _ = await call("cancel", "stopped", "--reason", "enough", *broker)
    assert (code, out) == (0, "stopped: suspended → cancelled\n")
    assert (await call("result", "stopped"))[0] == 8
    assert (await call("resume", "stopped", "Approval", '"no"', *broker))[0] == 4
    code, out, _ = await call("workers", "--json")
    assert {worker["role"] for worker in json.loads(out)["items"]} == {
        *("dispatcher", "worker", "timer")
    }
    code, out, _ = await call("list", "--json", "--status", "completed")
    assert [item["id"] for item in json.loads(out)["items"]] == ["by-journal", "by-broker", "e"]
    assert (await call("stuck", "--check"))[0] == 0
