"""`loom dev`: the first five minutes, a kill included (F7, C104)."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from loom_mq.cli.main import run
from loom_mq.cli.reach import DEV_FILE
from tests.support.cli import WITHIN

FLOW_FILE = """
import loom_mq as loom

@loom.step
async def greet(name: str) -> str:
    print("greeting", name, flush=True)
    return f"Hello {name}"

@loom.flow
async def hello(ctx: loom.Context, name: str) -> str:
    greeting = await ctx.run(greet, name)
    polite = await ctx.suspend(on="Polite", type=bool)
    return f"{greeting}, how do you do?" if polite else greeting
"""


class Dev:
    """`loom dev` in a process of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "loom_mq.cli", "dev", "hello.py", *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self.text = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait(10)

    def read_until(self, wanted: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.text += line
            if wanted in line:
                return
        pytest.fail(f"{wanted!r} did not come, but:\n{self.text}")

    def end(self, number: signal.Signals) -> int:
        assert self.process.stdout is not None
        self.process.send_signal(number)
        try:
            return self.process.wait(timeout=WITHIN)
        finally:
            self.text += self.process.stdout.read()
            self.process.stdout.close()


def test_dev_survives_kill_9(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first five minutes: start, kill -9, start again, answer, result; one greeting."""
    (tmp_path / "hello.py").write_text(FLOW_FILE)
    monkeypatch.chdir(tmp_path)
    with Dev(tmp_path, "--start", "hello", "--input", '"Ada"', "--id", "hello-1") as first:
        first.read_until("hello-1: next: ")
        assert first.end(signal.SIGKILL) == -signal.SIGKILL
    assert "greeting Ada" in first.text
    commands = re.findall(r"^ +(loom .*)$", first.text, re.MULTILINE)
    assert commands == ["loom list", "loom why hello-1", "loom history hello-1"]
    assert run(["why", "hello-1"]) == 0

    with Dev(tmp_path) as second:
        second.read_until("1 execution from before goes on")
        answered = subprocess.run(
            [sys.executable, "-m", "loom_mq.cli", "resume", "hello-1", "Polite", "true"],
            capture_output=True,
            text=True,
            timeout=WITHIN,
            check=False,
        )
        assert (answered.returncode, answered.stderr) == (0, "")
        assert run(["result", "hello-1", "--wait", "--timeout", "30"]) == 0
        assert second.end(signal.SIGINT) == 0
    assert "greeting" not in second.text
    assert "Traceback" not in second.text


def test_dev_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "hello_there.py").write_text(FLOW_FILE)
    (tmp_path / "empty_there.py").write_text("")
    for arguments, code, words in (
        (["nowhere.py"], 2, "no file"),
        (["empty_there.py"], 2, "no @flow"),
        (["hello_there.py", "--start", "nonsense"], 3, "hello"),
        (["hello_there.py", "--start", "hello", "--input", "5"], 2, "does not fit"),
        (["hello_there.py", "--start", "hello", "--input", "{"], 2, "not JSON"),
    ):
        assert run(["dev", *arguments]) == code, arguments
        assert words in capsys.readouterr().err
    assert not DEV_FILE.exists()
