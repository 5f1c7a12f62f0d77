"""`loom` acts: through the journal, with and without an engine beside it (F11, K7, K13)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import loom_mq as loom
from loom_mq.cli.main import run
from loom_mq.cli.reach import DEV_FILE
from loom_mq.flows.registry import Registry
from loom_mq.runtime.embedded import Embedded
from tests.support.cli import FLOWS, WITHIN, Answer, Loom, cli, filled, items, until_parked

__all__ = ["cli", "filled"]


# ---- acting, with nobody there -------------------------------------------------------------------


def test_results_and_their_exit_codes(cli: Loom) -> None:
    assert cli("result", "done") == (0, "8\n", "")
    assert items(cli("result", "done", "--json"), "loom.result/1") == [
        {"id": "done", "status": "completed", "result": 8}
    ]
    code, out, err = cli("result", "failed")
    assert (code, out) == (1, "")
    assert "ValueError: broken" in err
    assert cli("result", "stopped")[0] == 8
    assert cli("result", "nap")[0] == 6
    assert cli("result", "nap", "--wait", "--timeout", "200ms")[0] == 6
    code, _, err = cli("--json", "result", "nobody")
    assert code == 3
    assert json.loads(err)["error"] == {
        "code": "unknown-execution",
        "message": "there is no execution 'nobody'",
        "execution_id": "nobody",
        "hint": "`loom list` and `loom flows` show what there is",
        "reason": None,
    }


def test_what_is_told_is_kept_until_somebody_is_there(cli: Loom) -> None:
    """K7, K13: a row before anything else; the next engine takes it."""
    code, out, err = cli("resume", "gate", "Approval", "true")
    assert (code, out) == (0, "gate: kept until its gate takes it\n")
    assert "no worker is alive" in err
    assert "answer arrived" in cli("why", "gate")[1]
    assert cli("cancel", "nap", "--reason", "enough")[0] == 0
    assert cli("resume", "done", "Approval", "true")[0] == 4
    assert cli("cancel", "failed")[0] == 4
    assert cli("resume", "nobody", "Approval", "true")[0] == 3
    assert cli("cancel", "nobody")[0] == 3

    async def serve() -> tuple[object, object]:
        async with Embedded(Registry(FLOWS), DEV_FILE) as house:
            said = await house.client.handle("gate").result(timeout=WITHIN)
            with pytest.raises(loom.ExecutionCancelledError) as stopped:
                await house.client.handle("nap").result(timeout=WITHIN)
            return said, str(stopped.value)

    assert asyncio.run(serve()) == ("said True", "execution 'nap' was cancelled: enough")


def test_starting_twice_is_one_execution(cli: Loom) -> None:
    """F2, K16."""
    assert cli("start", "doubling", "3", "--id", "e", "--label", "a=b")[:2] == (0, "e\n")
    [again] = items(cli("start", "doubling", " 3 ", "--id", "e", "--json"), "loom.start/1")
    assert again == {"id": "e", "flow": "doubling", "created": False}
    assert cli("start", "doubling", "4", "--id", "e")[0] == 4
    assert cli("start", "doubling", "3", "--id", "e", "--policy", "reject")[0] == 4
    policy = ("--json", "--policy")
    [found] = items(
        cli("start", "doubling", "3", "--id", "e", *policy, "after-close"), "loom.start/1"
    )
    assert found["created"] is False  # it has not ended
    assert cli("start", "doubling", "5", "--id", "done", *policy, "after-failure")[0] == 4
    assert cli("result", "done")[0] == 0
    [anew] = items(
        cli("start", "doubling", "5", "--id", "done", *policy, "after-close"), "loom.start/1"
    )
    assert anew["created"] is True
    assert cli("result", "done")[0] == 6
    assert cli("start", "nonsense")[0] == 3
    assert cli("start", "doubling", "three")[0] == 2
    assert cli("start", "doubling", "NaN")[0] == 2
    assert cli("start", "doubling", "1", "--label", "x")[0] == 2
    assert cli("start", "doubling", "1", "--id", "x" * 300)[0] == 2


# ---- with an engine there ------------------------------------------------------------------------


async def test_a_running_engine_acts_within_a_moment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands write into the journal beside the engine, which finds it there."""
    path = tmp_path / "live.sqlite"

    async def call(*arguments: str) -> Answer:
        code = await asyncio.to_thread(run, [*arguments, "--journal", f"sqlite:///{path}"])
        out, err = capsys.readouterr()
        return code, out, err

    async with Embedded(Registry(FLOWS), path) as house:
        assert await call("start", "doubling", "21", "--id", "e", "--wait") == (0, "42\n", "")
        code, _, err = await call("start", "doubling", '"x"', "--id", "bad", "--wait")
        assert code == 1
        assert "CodecError" in err
        assert (await call("start", "asking", "--id", "gate"))[0] == 0
        await until_parked(house, "gate")
        code, _, err = await call("resume", "gate", "Approval", '"yes"', "--json")
        assert (code, json.loads(err)["error"]["code"]) == (4, "resume-refused")
        answer = await call("resume", "gate", "Approval", "true", "--answer-id", "a")
        assert answer == (0, "gate: its gate took it\n", "")
        assert await call("result", "gate", "--wait") == (0, '"said True"\n', "")
        assert (await call("start", "sleeping", "--id", "nap"))[0] == 0
        await until_parked(house, "nap")
        assert (await call("cancel", "nap"))[:2] == (0, "nap: suspended → cancelled\n")
        [worker] = items(await call("workers", "--json"), "loom.workers/1")
        assert worker["queues"] == ["default"]
