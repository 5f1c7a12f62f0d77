"""A wrong argument at a call site is an error for the type checker (K: typed calls)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests" / "typing" / "flows.py"


def test_the_type_checker_refuses_exactly_the_wrong_lines() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(CASES)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    found = {
        (int(line), code)
        for line, code in re.findall(r"flows\.py:(\d+): error: .*\[([a-z-]+)\]", told)
    }
    expected = {
        (number, match.group(1))
        for number, line in enumerate(CASES.read_text().splitlines(), 1)
        if (match := re.search(r"# E: ([a-z-]+)", line))
    }
    assert found == expected, told
