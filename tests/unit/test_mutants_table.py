"""The table of `make mutants` fits the code: short of running it, what can be told."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.guard import Guard
from tests.mutants.table import GUARDS

ROOT = Path(__file__).parents[2]


def test_every_guard_has_a_name_of_its_own() -> None:
    assert [name for name, times in Counter(g.id for g in GUARDS).items() if times > 1] == []
    assert len(GUARDS) > 115


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.id)
def test_a_guard_is_where_the_table_says(guard: Guard) -> None:
    """Its text stands once in its file, its mutant differs, and its tests are there."""
    for changed, old, new in guard.edits:
        assert (ROOT / changed).read_text().count(old) == 1
        assert new != old
    assert guard.tests
    for test in guard.tests:
        file, *names = test.split("::")
        text = (ROOT / file).read_text()
        name = names[-1].partition("[")[0] if names else ""
        kits = (ROOT / "loom_mq/testing/conformance").glob("*.py")
        assert f"def {name}" in text or any(f"def {name}" in kit.read_text() for kit in kits)
