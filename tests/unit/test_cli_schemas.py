"""What `--json` answers is what the published schema says (F11)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from loom_mq.cli import schemas
from loom_mq.cli.schemas import KINDS
from tests.support.cli import Loom, check_kind, cli, filled

__all__ = ["cli", "filled"]

ROOT = Path(__file__).parents[2]
OF_OTHERS = {"schedules", "schedule"}
"""Kinds that are not in the table yet."""


def test_the_published_schema_is_this_one() -> None:
    published = (ROOT / "docs" / "reference" / schemas.PAGE).read_text("utf-8")
    assert published == schemas.document(), "write it: python -m loom_mq.cli.schemas docs/reference"
    whole = json.loads(published)
    named = {each["$ref"].rpartition("/")[2].replace("~1", "/") for each in whole["oneOf"]}
    assert named == {f"loom.{kind}/1" for kind in KINDS}
    assert named <= set(whole["$defs"])


def test_every_answer_has_a_kind_of_the_table() -> None:
    found: set[str] = set()
    for file in (ROOT / "loom_mq" / "cli").glob("*.py"):
        text = file.read_text("utf-8")
        found |= set(re.findall(r'\bkind="([a-z_-]+)"', text))
        found |= set(re.findall(r'_tell\(reach, "([a-z-]+)"', text))
    assert found - OF_OTHERS <= set(KINDS)
    assert len(found) > 30


@pytest.mark.parametrize(
    "line",
    [
        "list",
        "list --status failed",
        "list --count",
        "show done",
        "show failed",
        "show gate",
        "why gate",
        "why nap",
        "history done --payloads",
        "history failed",
        "stuck",
        "census",
        "introspect gate",
        "introspect failed",
        "profile doubling",
        "audit gate",
        "queues",
        "workers",
        "flows",
        "timers",
        "timers reconcile",
        "dlq",
        "doctor",
        "export done",
        "prune --older-than 0s --dry-run",
        "truncate done --dry-run",
        "cancel --flow asking --dry-run",
        "start doubling 1 --id again",
        "resume gate Approval true",
        "cancel nap",
        "fork done copy",
    ],
)
def test_answers_fit_their_schema(cli: Loom, line: str) -> None:
    """No key is left out and none is there that nobody told of."""
    code, out, err = cli(*line.split(), "--json")
    assert code in (0, 7), err
    assert err == ""
    if not line.startswith("export"):
        check_kind(json.loads(out))
