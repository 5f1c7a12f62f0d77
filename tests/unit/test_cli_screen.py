"""Tables in wide and in narrow terminals: nothing that one needs is cut away (F11)."""

from __future__ import annotations

import sys

import pytest
from rich.text import Text

from loom_mq.cli.screen import Page, Screen

PAGE = Page(
    kind="executions",
    items=[],
    columns=("ID", "FLOW", "STATUS", "WAITING-FOR", "OWNER"),
    rows=[
        ("a-rather-long-id-of-an-order", "order", Text("suspended"), "Approval", "-"),
        ("b", "a-flow-with-a-long-name", Text("running"), "-", "worker/host/31415/abcdef"),
    ],
)


@pytest.fixture
def terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> pytest.MonkeyPatch:
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _stream: True)
    monkeypatch.delenv("COLORTERM", raising=False)
    return monkeypatch


def shown(capsys: pytest.CaptureFixture[str], page: Page = PAGE) -> list[str]:
    Screen(json=False, color=False).show(page)
    return capsys.readouterr().out.splitlines()


def test_a_pipe_gets_whole_cells(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert shown(capsys)[-1].endswith("worker/host/31415/abcdef")


def test_a_wide_terminal_cuts_the_widest_cells(
    capsys: pytest.CaptureFixture[str], terminal: pytest.MonkeyPatch
) -> None:
    terminal.setenv("COLUMNS", "90")
    lines = shown(capsys)
    assert max(map(len, lines)) <= 90
    assert lines[1].startswith("a-rather-long-id-of-an-order  ")
    assert lines[2].endswith("…")


def test_a_narrow_terminal_gets_a_few_lines_for_each_row(
    capsys: pytest.CaptureFixture[str], terminal: pytest.MonkeyPatch
) -> None:
    terminal.setenv("COLUMNS", "50")
    assert shown(capsys) == [
        "a-rather-long-id-of-an-order",
        "  FLOW order  STATUS suspended",
        "  WAITING-FOR Approval",
        "b",
        "  FLOW a-flow-with-a-long-name  STATUS running",
        "  OWNER worker/host/31415/abcdef",
    ]


def test_the_rest_of_a_long_line_hangs_below_its_begin(
    capsys: pytest.CaptureFixture[str], terminal: pytest.MonkeyPatch
) -> None:
    terminal.setenv("COLUMNS", "30")
    screen = Screen(json=False, color=False)
    screen.hanging(Text("ok   journal "), "answers within no time\x1b at all")
    assert capsys.readouterr().out.splitlines() == [
        "ok   journal answers within no",
        "             time\\x1b at all",
    ]
    Screen(json=True, color=False).hanging(Text("x"), "y")
    assert capsys.readouterr().out == ""
