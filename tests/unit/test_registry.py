"""Finding flows in modules and files (F1)."""

from __future__ import annotations

from pathlib import Path

import pytest

import loom_mq as loom
from loom_mq.errors import ConfigurationError
from loom_mq.flows.registry import Registry, load

FLOW = """
import loom_mq as loom

@loom.flow(name="{name}")
async def body(ctx: loom.Context) -> int:
    return 1
"""


@loom.flow
async def here(ctx: loom.Context) -> int:
    return 1


def test_a_module_gives_all_its_flows() -> None:
    names = {flow.name for flow in load(["tests.support.fleet_flows"])}
    assert {"steps", "mixed", "sleeper"} <= names


def test_one_flow_by_its_name() -> None:
    assert [flow.name for flow in load(["tests.support.fleet_flows:steps"])] == ["steps"]


@pytest.mark.parametrize("stem", ["orders_of_mine", "queue", "json"])
def test_a_file_whatever_it_is_called(tmp_path: Path, stem: str) -> None:
    """A file is itself, also when a module of the standard library has its name."""
    file = tmp_path / f"{stem}.py"
    file.write_text(FLOW.format(name=f"flow of {stem}"))
    assert [flow.name for flow in load([str(file)])] == [f"flow of {stem}"]


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("no.such.module", "cannot be imported"),
        ("no/such/file.py", "no file"),
        ("tests.support.house", "no @flow"),
        ("tests.support.fleet_flows:nothing", "no @flow"),
    ],
)
def test_what_is_not_there_is_told_in_a_sentence(place: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        load([place])


def test_two_flows_of_one_name_are_refused() -> None:
    @loom.flow(name="here")
    async def other(ctx: loom.Context) -> int:
        return 2

    with pytest.raises(ConfigurationError, match="defined twice"):
        Registry([here, other])
