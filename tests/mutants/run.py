"""``make mutants``: takes each guard of the table away, and watches a test fail.

The tree is copied, one guard is changed in the copy, and the tests that are named for it run
there. A mutant that they do not catch, a text that is no longer there, and a named test that
fails without any mutant are errors. The last line says how many were caught.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tests.mutants.guard import Guard
from tests.mutants.table import GUARDS

ROOT: Final = Path(__file__).parents[2]
LEFT_OUT: Final = shutil.ignore_patterns(
    ".git", ".venv", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"
)
SECONDS: Final = 300
"""For the tests of one guard; a mutant that hangs is caught by its time limit."""
SOUND_SECONDS: Final = 3600
"""For the tests of all guards together, without any mutant."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the table; 0 when every mutant was caught."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[""], help="ids that begin with one of these")
    parser.add_argument("--list", action="store_true", help="say what there is, run nothing")
    given = parser.parse_args(argv)
    guards = [guard for guard in GUARDS if guard.id.startswith(tuple(given.only))]
    if given.list:
        for guard in guards:
            print(f"{guard.id:<28} {guard.rule:<6} {guard.what}")
        return 0
    with tempfile.TemporaryDirectory(prefix="loom-mutants-") as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=LEFT_OUT)
        if not _sound(tree, guards):
            return 1
        caught = sum(_caught(tree, guard) for guard in guards)
    print(f"{caught} of {len(guards)} caught")
    return 0 if caught == len(guards) else 1


def _sound(tree: Path, guards: Iterable[Guard]) -> bool:
    """Whether the named tests pass as the tree stands, and come from the tree."""
    where = _python(tree, "-c", "import loom_mq; print(loom_mq.__file__)").stdout.strip()
    if not where.startswith(str(tree)):
        print(f"the copy is not what is tested: {where}")
        return False
    tests = sorted({test for guard in guards for test in guard.tests})
    done = _pytest(tree, tests, seconds=SOUND_SECONDS)
    if done.returncode:
        print(f"the tests fail without any mutant:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    return done.returncode == 0


def _caught(tree: Path, guard: Guard) -> bool:
    kept: dict[Path, str] = {}
    for file, old, new in guard.edits:
        path = tree / file
        text = path.read_text()
        kept.setdefault(path, text)
        if text.count(old) != 1:
            print(f"{guard.id:<28} LOST: its text stands {text.count(old)} times in {file}")
            _put_back(kept)
            return False
        path.write_text(text.replace(old, new))
    try:
        done = _pytest(tree, guard.tests)
    except subprocess.TimeoutExpired:
        print(f"{guard.id:<28} caught: {guard.what} (its tests came to no end)")
        return True
    finally:
        _put_back(kept)
    # 1 says that tests ran and some failed; anything else is no verdict of a test
    caught = done.returncode == 1 and "failed" in done.stdout
    told = "caught" if caught else f"SURVIVED (pytest left with {done.returncode})"
    print(f"{guard.id:<28} {told}: {guard.what}", flush=True)
    return caught


def _put_back(kept: dict[Path, str]) -> None:
    for path, text in kept.items():
        path.write_text(text)


def _pytest(
    tree: Path, tests: Sequence[str], *, seconds: int = SECONDS
) -> subprocess.CompletedProcess[str]:
    return _python(
        tree, "-m", "pytest", "-q", "-x", "--tb=no", "-p", "no:cacheprovider",
        "-o", "timeout=60", "-o", "faulthandler_timeout=0", *tests, seconds=seconds,
    )  # fmt: skip


def _python(
    tree: Path, *arguments: str, seconds: int = SECONDS
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


if __name__ == "__main__":
    sys.exit(main())
