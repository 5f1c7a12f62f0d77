"""The page about testing shows tests that pass."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "test-flows.md"


async def test_the_tests_of_the_page_pass() -> None:
    source = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S))
    names: dict[str, object] = {"__name__": "page"}
    exec(compile(source, str(PAGE), "exec"), names)  # the page itself is what is tested
    tests = [value for name, value in names.items() if name.startswith("test_")]
    assert len(tests) == 3
    for test in tests:
        assert inspect.iscoroutinefunction(test)
        await test()
