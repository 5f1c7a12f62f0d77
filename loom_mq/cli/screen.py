"""What `loom` prints: lists for people, JSON for programs, errors as one sentence.

Answers go to standard output, everything else to standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import msgspec
from rich.console import Console
from rich.text import Text

from loom_mq.cli.exits import exit_of, hint_of
from loom_mq.cli.text import json_text, plain, visible
from loom_mq.errors import LoomError
from loom_mq.observe.redaction import redactor

_NARROWEST: Final = 5
"""Columns that are left of a cell, however narrow the terminal is."""
_GAP: Final = "  "

Cell = str | Text
Item = dict[str, object]


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One answer, for people and for programs.

    Attributes:
        kind: name of the JSON object's schema, such as ``executions``.
        items: what it holds, for programs.
        columns: headings, for people; none for an answer that is no table.
        rows: as many cells each as there are columns.
        lines: printed for people after the table.
        empty: printed for people instead of an empty table.
        next: where the next page begins.
    """

    kind: str
    items: Sequence[Item]
    columns: tuple[str, ...] = ()
    rows: Sequence[tuple[Cell, ...]] = ()
    lines: Sequence[Cell] = ()
    empty: str = ""
    next: str | None = None


class Screen:
    """Where the answers of one command go.

    Args:
        json: programs read them.
        color: people like colours; without it there are none.
    """

    def __init__(self, *, json: bool, color: bool) -> None:
        self.json = json
        self._color = color

    def show(self, page: Page) -> None:
        """Print one answer."""
        if self.json:
            body = {"schema": f"loom.{page.kind}/1", "items": page.items, "next": page.next}
            indent = 2 if sys.stdout.isatty() else None
            sys.stdout.write(json_text(plain(body), indent=indent) + "\n")
            return
        if page.columns and page.rows:
            self._table(page.columns, page.rows)
        elif page.empty:
            self.note(page.empty)
        for line in page.lines:
            self.line(line)
        if page.next is not None:
            self.note(f"there are more: --cursor {page.next}")

    def line(self, text: Cell) -> None:
        """One more line of an answer for people; programs do not see it."""
        if not self.json:
            self._console().print(_safe(text, lines=True), soft_wrap=True)

    def value(self, value: object) -> None:
        """A bare value: JSON for everybody."""
        sys.stdout.write(json_text(plain(value)) + "\n")

    def note(self, text: str) -> None:
        """A remark for people that is no part of the answer."""
        if not self.json:
            sys.stderr.write(visible(redactor.text(text)) + "\n")

    def error(self, code: str, message: str, *, execution_id: str | None, hint: str) -> None:
        """One sentence, or one JSON object."""
        message = redactor.text(message)
        if self.json:
            body = {
                "code": code,
                "message": message,
                "execution_id": execution_id,
                "hint": hint or None,
            }
            sys.stderr.write(json_text({"error": plain(body)}) + "\n")
        else:
            sys.stderr.write(f"loom: {visible(message)}\n")

    def loom_error(self, error: LoomError) -> int:
        """Print an error of this product; returns the exit code."""
        self.error(error.code, error.message, execution_id=error.execution_id, hint=hint_of(error))
        return exit_of(error)

    def _console(self) -> Console:
        return Console(
            highlight=False,
            markup=False,
            emoji=False,
            color_system="auto" if self._color else None,
        )

    def _table(self, columns: tuple[str, ...], rows: Sequence[tuple[Cell, ...]]) -> None:
        lines = [
            [Text(name, style="bold") for name in columns],
            *([_safe(cell) for cell in row] for row in rows),
        ]
        widths = [max(cell.cell_len for cell in column) for column in zip(*lines, strict=True)]
        console = self._console()
        if sys.stdout.isatty():  # elsewhere nobody sees an edge, so nothing is cut
            _narrow(widths, console.width)
        for line in lines:
            text = Text()
            for cell, width in zip(line, widths, strict=True):
                cell.truncate(width, overflow="ellipsis", pad=True)
                text.append_text(cell).append(_GAP)
            text.rstrip()
            console.print(text, soft_wrap=True)


def _narrow(widths: list[int], edge: int) -> None:
    """Take from the widest columns until a line fits.

    The first column holds what one copies, so it is never cut, even when it does not fit.
    """
    others = range(1, len(widths))
    while sum(widths) + len(_GAP) * len(others) > edge:
        widest = max(others, key=lambda number: widths[number], default=0)
        if widest == 0 or widths[widest] <= _NARROWEST:
            return
        widths[widest] -= 1


def _safe(cell: Cell, *, lines: bool = False) -> Text:
    text = cell if isinstance(cell, Text) else Text(cell)
    return Text(visible(text.plain, lines=lines), style=text.style)
