"""The documentation keeps its word: links, names, tables and programs."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import typer

import loom_mq as loom
from loom_mq import errors
from loom_mq.cli.main import app
from loom_mq.flows.registry import load
from loom_mq.model.messages import ControlItem, ReplyItem, StartItem
from loom_mq.observe.metrics import Metrics
from loom_mq.runtime.embedded import Embedded
from loom_mq.runtime.environment import describe
from loom_mq.runtime.settings import SETTINGS_OF_ROLE
from tests.support.house import until

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
COMMANDS = vars(typer.main.get_command(app))["commands"]
LOOM = {
    name: {
        option
        for each in (command, *vars(command).get("commands", {}).values())
        for parameter in each.params
        for option in parameter.opts
    }
    for name, command in COMMANDS.items()
}
GLOBAL = {option for parameter in typer.main.get_command(app).params for option in parameter.opts}
DOCS = ROOT / "docs"
PAGES = sorted([README, ROOT / "CHANGELOG.md", *DOCS.rglob("*.md"), *ROOT.glob("benchmarks/*.md")])
HELLO = ROOT / "examples" / "hello.py"

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
# folders that hold one machine's own things; a path in them means nothing elsewhere
_OF_ONE_MACHINE = re.compile(r"(?<![\w.:])/(?:home|root|work|Users|mnt|media|tmp)/")


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    return _BLOCK.sub("", page.read_text())


def blocks(page: Path, language: str) -> list[str]:
    return [text for name, text in _BLOCK.findall(page.read_text()) if name == language]


def anchors(page: Path) -> set[str]:
    """The names that a web page makes of headings."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {name.strip().replace(" ", "-") for name in plain}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for link in _LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        place, _, anchor = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def test_every_page_can_be_found() -> None:
    index = DOCS / "index.md"
    linked = {
        (index.parent / link.partition("#")[0]).resolve() for link in _LINK.findall(prose(index))
    }
    decisions = {page for page in PAGES if page.parent.name == "decisions"}
    assert {page for page in PAGES if page != index} - decisions <= linked


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_nothing_is_of_this_machine(page: Path) -> None:
    assert _OF_ONE_MACHINE.search(page.read_text()) is None


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_python_can_be_read(page: Path) -> None:
    for text in blocks(page, "python"):
        compile(text, page_id(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_exist(page: Path) -> None:
    """Every command of `loom`, target of `make` and module that a page tells to run."""
    makefile = (ROOT / "Makefile").read_text()
    for line in "\n".join(blocks(page, "sh")).splitlines():
        words = shlex.split(line, comments=True)
        while words and re.match(r"^[A-Z_]+=", words[0]):
            del words[0]
        if words[:1] == ["loom"]:
            assert words[1] in LOOM, line
            parts = vars(COMMANDS[words[1]]).get("commands")
            if parts is not None and words[2:] and not words[2].startswith("-"):
                assert words[2] in parts, line
            options = {word for word in words if word.startswith("--")}
            assert options <= LOOM[words[1]] | GLOBAL, line
        elif words[:1] == ["make"]:
            assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE), line
        elif words[:2] == ["python", "-m"]:
            assert importlib.util.find_spec(words[2]) is not None, line


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_settings_and_metrics_exist(page: Path) -> None:
    text = page.read_text()
    known = {setting.variable for kind in SETTINGS_OF_ROLE.values() for setting in describe(kind)}
    # the project's own tools have variables too, which no process of the fleet reads
    told = set(re.findall(r"\b(LOOM_[A-Z_]*[A-Z])\b", text)) - set(
        re.findall(r"\bLOOM_(?:TEST|BENCH)_[A-Z_]+\b", text)
    )
    assert told <= known
    shown = set(re.findall(r"^# TYPE (\w+) ", Metrics(version="0").render().decode(), re.MULTILINE))
    metrics = set(re.findall(r"`(loom_(?!mq)\w+)`", text))
    assert metrics <= shown | {f"{name}_total" for name in shown}


# ---- errors ---------------------------------------------------------------------------------


def classes(root: type[errors.LoomError] = errors.LoomError) -> Iterator[type[errors.LoomError]]:
    yield root
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from classes(child)


def test_the_page_of_errors_has_every_code_and_no_other() -> None:
    page = (DOCS / "reference" / "errors.md").read_text()
    rows = re.findall(r"^\| `([a-z-]+)` \| `(\w+)` \|", page, re.MULTILINE)
    assert sorted(rows) == sorted((kind.code, kind.__name__) for kind in classes())


def test_the_tree_of_errors_is_the_tree() -> None:
    drawn: set[tuple[str, str]] = set()
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^ {4}((?:[│ ] {3})*)(?:[├└]── )?([A-Z]\w+Error)\b", line)
        if match is None:
            continue
        depth = len(match[1]) // 4 + (1 if "── " in line else 0)
        del above[depth:]
        drawn.add((match[2], above[-1] if above else "Exception"))
        above.append(match[2])
    assert drawn == {(kind.__name__, kind.__bases__[0].__name__) for kind in classes()}


# ---- messages and API -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heading", "kind"), [("Start", StartItem), ("Control", ControlItem), ("Replies", ReplyItem)]
)
def test_the_page_of_messages_has_every_field(heading: str, kind: type[msgspec.Struct]) -> None:
    page = (DOCS / "reference" / "messages.md").read_text()
    [section] = re.findall(rf"^## {heading}\n(.*?)(?=^##)", page, re.DOTALL | re.MULTILINE)
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \| .*\|$", section, re.MULTILINE)
    told = {name: default.strip() for name, _type, default in rows}
    for field in msgspec.structs.fields(kind):
        assert told[field.encode_name] == written_default(field), field.name
    names = {field.encode_name for field in msgspec.structs.fields(kind)}
    assert set(told) == names


def written_default(field: msgspec.structs.FieldInfo) -> str:
    """A default as the page writes it."""
    if field.required:
        return "required"
    value = field.default
    if value is msgspec.NODEFAULT:
        assert callable(field.default_factory)
        value = field.default_factory()
    if value is None or isinstance(value, msgspec.Raw):
        return "null"
    text = msgspec.json.encode(value).decode()
    return text if isinstance(value, int) else f"`{text}`"


def test_the_page_of_the_api_names_everything() -> None:
    page = (DOCS / "reference" / "api.md").read_text()
    missing = [name for name in loom.__all__ if not re.search(rf"`[^`]*\b{name}\b[^`]*`", page)]
    assert missing == []


# ---- rules and coverage -----------------------------------------------------------------------


def test_every_rule_is_told_with_its_record_and_its_mark() -> None:
    page = (DOCS / "semantics.md").read_text()
    rules = re.findall(r"^### ([JKF]\d+) .*\n\n\*\*(.+?)\*\* · (.+?)\. ", page, re.MULTILINE)
    wanted = [
        f"{room}{n}" for room, last in (("J", 10), ("K", 16), ("F", 11)) for n in range(1, last + 1)
    ]
    assert [rule for rule, _mark, _record in rules] == wanted
    assert {mark for _rule, mark, _record in rules} == {"here", "partly", "not yet"}
    for _rule, _mark, record in rules:
        assert "ADR" in record or "this project" in record


def test_every_test_that_the_coverage_names_exists() -> None:
    page = (DOCS / "coverage.md").read_text()
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", page)
    assert named
    for file, test in named:
        assert re.search(rf"^ *(async )?def {test}\b", (ROOT / file).read_text(), re.MULTILINE), (
            f"{file}::{test}"
        )


def test_the_coverage_claims_a_test_or_says_that_it_is_open() -> None:
    page = (DOCS / "coverage.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and "---" not in line]
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        if cells[0] == "system":
            continue
        assert len(cells) == 4, row
        assert "::" in cells[3] or cells[3].startswith("open"), row


# ---- the example ------------------------------------------------------------------------------


def test_the_readme_shows_the_example() -> None:
    assert HELLO.read_text() in blocks(README, "python")


async def test_the_example_runs_and_survives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The README's promise in one process: charged once, whatever stops in between."""
    path = tmp_path / "hello.sqlite"
    try:
        registry = load([str(HELLO)])
    finally:
        sys.path.remove(str(HELLO.parent))
    flow = registry.get("order", "1")
    assert flow is not None
    async with Embedded(registry, path) as house:
        handle = await house.client.start("order", 120, id="order-1")

        async def parked() -> bool:
            return (await handle.state()).gates == ("Approval",)

        await until(parked)
    async with Embedded(registry, path) as house:
        handle = house.client.handle("order-1")
        await handle.resume("Approval", True)
        async with asyncio.timeout(20):
            assert await handle.result() == "parcel 1"
        assert await house.client.execute(flow, 50, timeout=20) == "parcel 1"
    said = capsys.readouterr().out
    assert said.count("charging 120") == said.count("charging 50") == 1
