"""The how-to pages show flows that run and tests that pass."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs" / "how-to"
PAGES = (
    ("wait-at-gates", 2),
    ("sleep-and-timers", 1),
    ("handle-failures", 2),
    ("cancel-and-clean-up", 1),
    ("change-code", 1),
    ("schedules", 2),
)


@pytest.mark.parametrize(("page", "tests"), PAGES, ids=[page for page, _tests in PAGES])
async def test_the_tests_of_the_page_pass(page: str, tests: int) -> None:
    path = DOCS / f"{page}.md"
    ran = 0
    for block in re.findall(r"^```python\n(.*?)^```", path.read_text(), re.M | re.S):
        names: dict[str, object] = {"__name__": "page"}
        exec(compile(block, str(path), "exec"), names)  # the page itself is what is tested
        for name, value in names.items():
            if name.startswith("test_") and inspect.iscoroutinefunction(value):
                await value()
                ran += 1
    assert ran == tests
