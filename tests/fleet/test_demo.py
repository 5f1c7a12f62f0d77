"""The demo that a newcomer runs: killed in the middle, it proves itself, and sees a cheat."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ORDERS = 60
"""Five of them large, so that the gate is in it."""
WITHIN = 100.0


@contextmanager
def playing(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The demo in a process of its own."""
    demo = subprocess.Popen(
        [
            *(sys.executable, "-m", "examples.orders.demo"),
            *("--orders", str(ORDERS), "--folder", str(folder)),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield demo
    finally:
        demo.kill()
        demo.wait(10)


def command(line: str | list[str]) -> subprocess.CompletedProcess[str]:
    words = shlex.split(line) if isinstance(line, str) else line
    return subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, timeout=WITHIN, check=False
    )


def prove_again(folder: Path) -> subprocess.CompletedProcess[str]:
    return command([sys.executable, "-m", "examples.orders.proof", str(folder)])


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("demo") / "kept"
    with playing(folder) as demo:
        text, _ = demo.communicate(timeout=WITHIN)
        assert demo.returncode == 0, text
    return folder, text


def test_it_proves_itself(played: tuple[Path, str]) -> None:
    """F4, F7: every order ends as it must, and no completed step runs again."""
    folder, text = played
    assert re.search(rf"^executions completed +{ORDERS}/{ORDERS}$", text, re.MULTILINE)
    assert re.search(r"^completed steps that ran twice +0$", text, re.MULTILINE)
    assert re.search(r"^kill -9 \d+$", text, re.MULTILINE)
    assert "Proven in" in text
    again = prove_again(folder)
    assert (again.returncode, again.stderr) == (0, "")


def test_its_commands_can_be_copied(played: tuple[Path, str]) -> None:
    _folder, text = played
    commands = re.findall(r"^  (\S*loom (?:list|show|history) .*)$", text, re.MULTILINE)
    assert len(commands) == 3
    for line in commands:
        done = command(line)
        assert done.returncode == 0, done.stderr
        assert "order-" in done.stdout or "EXECUTION_COMPLETED" in done.stdout


@pytest.mark.parametrize("cheat", ["again", "lost", "foreign", "outcome"])
def test_its_proof_sees_a_cheat(played: tuple[Path, str], cheat: str, tmp_path: Path) -> None:
    """A ledger line too much, one too few, one of nobody's, an order that nobody placed."""
    folder = tmp_path / "copy"
    folder.mkdir()
    for name in ("orders.sqlite", "ledger.jsonl", "killed.json"):
        (folder / name).write_bytes((played[0] / name).read_bytes())
    ledger, killed = folder / "ledger.jsonl", folder / "killed.json"
    lines = ledger.read_text().splitlines(keepends=True)
    done = set(json.loads(killed.read_text())["done"])
    place = next(n for n, line in enumerate(lines) if json.loads(line)["key"] in done)
    if cheat == "again":
        lines.append(lines[place])
    elif cheat == "lost":
        del lines[place]
    elif cheat == "foreign":
        lines.append(lines[place].replace("order-", "other-"))
    else:
        killed.write_text(
            killed.read_text().replace(f'"orders":{ORDERS}', f'"orders":{ORDERS - 1}')
        )
    ledger.write_text("".join(lines))
    proof = prove_again(folder)
    assert proof.returncode == 1
    assert "NOT AS IT MUST BE" in proof.stdout


def test_the_demo_itself_fails_when_an_effect_comes_twice(tmp_path: Path) -> None:
    """The exit code is the proof's: a line that is written twice while it runs is found."""
    folder = tmp_path / "cheated"
    with playing(folder) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "steps are done" in line:
                break
        ledger = folder / "ledger.jsonl"
        first = ledger.read_text().splitlines(keepends=True)[0]
        with ledger.open("a") as writing:
            writing.write(first)
        rest, _ = demo.communicate(timeout=WITHIN)
        assert demo.returncode == 1, rest
    assert re.search(r"^completed steps that ran twice +1$", rest, re.MULTILINE)
    assert "NOT PROVEN" in rest


def test_it_refuses_a_folder_that_is_taken(played: tuple[Path, str]) -> None:
    folder, _text = played
    done = command([sys.executable, "-m", "examples.orders.demo", "--folder", str(folder)])
    assert done.returncode == 2
    assert "earlier run" in done.stderr
