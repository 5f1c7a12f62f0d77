"""`loom` over a real fleet: it acts through the broker and looks into PostgreSQL (F11)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
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


Call = Callable[..., Awaitable[tuple[int, str, str]]]


@pytest.fixture
def call(fleet: Fleet, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """`loom` with this fleet's journal in its environment; code, answer, remarks."""
    monkeypatch.setenv("LOOM_JOURNAL", fleet.dsn)
    monkeypatch.delenv("LOOM_BROKER", raising=False)

    async def call(*arguments: str) -> tuple[int, str, str]:
        code = await asyncio.to_thread(run, arguments)
        out, err = capsys.readouterr()
        return code, out, err

    return call


async def until_code(call: Call, name: str, code: str) -> None:
    """Wait until this is the reason why an execution is where it is."""

    async def so() -> bool:
        _, out, _ = await call("why", name, "--json")
        return bool(out) and json.loads(out)["items"][0]["code"] == code

    await until(so, within=30, every=0.2)


async def test_the_command_line_over_broker_and_postgresql(fleet: Fleet, call: Call) -> None:
    """Migrate, start, wait, look, answer, cancel; the same exit codes as over one file."""
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
        await until_code(call, name, "gate_waiting")
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


async def test_verdicts_and_ends_over_broker_and_postgresql(
    fleet: Fleet, call: Call, tmp_path: Path
) -> None:
    """K6, J8: doubt is found, judged in somebody's name and gone; the log is cut and kept."""
    broker = ("--broker", fleet.broker)
    assert (await call("migrate"))[0] == 0
    await fleet.start()
    assert (await call("start", "charged", "7", "--id", "e", "--wait", *broker))[0] == 0
    for name in ("by-broker", "by-journal"):
        assert (await call("fork", "e", name, "--at", "1"))[0] == 0
        await until_code(call, name, "in_doubt")
    assert (await call("stuck", "--check"))[0] == 7
    doubt = ("charge", "completed", "--value", '"paid"', "--as", "ann")
    code, _, err = await call("verdict", "by-broker", "other", *doubt[1:], *broker)
    assert (code, "other" in err) == (4, True)
    assert (await call("verdict", "e", *doubt, *broker))[0] == 4
    assert (await call("verdict", "nobody", *doubt, *broker))[0] == 3
    for name, more in (("by-broker", broker), ("by-journal", ())):
        assert (await call("verdict", name, "charge", "completed", "--value", "7", *more))[0] == 4
        answered = await call("verdict", name, *doubt, *more)
        assert answered == (0, f"{name}: charge completed; it goes on\n", ""), fleet.tell_logs()
        assert await call("result", name, "--wait", *more) == (0, '"paid"\n', "")
        assert "(by ann)" in (await call("history", name, "--kind", "verdict_taken"))[1]
    code, archive, _ = await call("export", "--flow", "charged", "--ended-before", "0s")
    assert code == 0
    file = tmp_path / "all.ndjson"
    file.write_text(archive)
    assert (await call("truncate", "e", "--yes"))[:2] == (0, "e: cut 3 events\n")
    assert await call("result", "e") == (0, '"receipt-7"\n', "")
    assert (await call("prune", "--older-than", "0s", "--yes"))[1].endswith("3 executions\n")
    assert (await call("list")) == (0, "", "no executions\n")
    assert (await call("import", str(file)))[0] == 0
    assert await call("result", "by-broker") == (0, '"paid"\n', "")
