"""What `loom` prints: lists for people, JSON for programs, errors as one sentence.

Answers go to standard output, everything else to standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Final

import msgspec
from rich.console import Console
from rich.text import Text

from loom_mq.cli.exits import exit_of, hint_of
from loom_mq.cli.text import json_text, plain, visible
from loom_mq.errors import InputError, LoomError, ResumeRefusedError
from loom_mq.observe.redaction import redactor

_NARROWEST: Final = 8
"""Columns that are left of a cell in a table, however narrow the terminal is."""
_GAP: Final = "  "
_INDENT: Final = "  "
_SAYS_NOTHING: Final = frozenset({"", "-"})

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
        columns: which columns of a table people want, in their order; none for all.
        lines: one line per JSON object, whoever reads.
    """

    def __init__(
        self,
        *,
        json: bool,
        color: bool,
        columns: Sequence[str] = (),
        lines: bool = False,
    ) -> None:
        self.json = json
        self._color = color
        self._columns = tuple(columns)
        self._lines = lines

    def show(self, page: Page) -> None:
        """Print one answer."""
        if self.json:
            body = {"schema": f"loom.{page.kind}/1", "items": page.items, "next": page.next}
            indent = 2 if sys.stdout.isatty() and not self._lines else None
            sys.stdout.write(json_text(plain(body), indent=indent) + "\n")
            return
        wanted = self._wanted(page.columns)
        if page.columns and page.rows:
            rows = [tuple(row[place] for place in wanted) for row in page.rows]
            self._table(tuple(page.columns[place] for place in wanted), rows)
        elif page.empty:
            self.note(page.empty)
        for line in page.lines:
            self.line(line)
        if page.next is not None:
            self.note(f"there are more: --cursor {page.next}")

    def _wanted(self, columns: tuple[str, ...]) -> list[int]:
        """The places of the columns that people want.

        Raises:
            InputError: there is no such column.
        """
        if not self._columns or not columns:
            return list(range(len(columns)))
        places = {name.upper(): place for place, name in enumerate(columns)}
        unknown = [name for name in self._columns if name.upper() not in places]
        if unknown:
            raise InputError(f"there is no column {unknown[0]!r}; there are {', '.join(columns)}")
        return [places[name.upper()] for name in self._columns]

    def clear(self) -> None:
        """An empty terminal, for the same once more; elsewhere nothing."""
        if not self.json and sys.stdout.isatty():
            self._console().clear()

    def line(self, text: Cell) -> None:
        """One more line of an answer for people; programs do not see it."""
        if not self.json:
            self._console().print(_safe(text, lines=True), soft_wrap=True)

    def hanging(self, head: Text, body: str) -> None:
        """A line for people whose rest stays right of its head where a terminal is narrow."""
        if self.json:
            return
        head, body = _safe(head), visible(body)
        console = self._console()
        indent = head.cell_len
        left = console.width - indent
        parts = [body]
        if sys.stdout.isatty() and left > _NARROWEST:
            parts = wrap(body, left, break_long_words=False, break_on_hyphens=False) or [""]
        console.print(head.append(parts[0]), soft_wrap=True)
        for part in parts[1:]:
            console.print(Text(" " * indent + part), soft_wrap=True)

    def value(self, value: object) -> None:
        """A bare value: JSON for everybody."""
        sys.stdout.write(json_text(plain(value)) + "\n")

    def note(self, text: str) -> None:
        """A remark for people that is no part of the answer."""
        if not self.json:
            sys.stderr.write(visible(redactor.text(text)) + "\n")

    def error(
        self,
        code: str,
        message: str,
        *,
        execution_id: str | None,
        hint: str,
        reason: str | None = None,
    ) -> None:
        """One sentence, or one JSON object."""
        message = redactor.text(message)
        if self.json:
            body = {
                "code": code,
                "message": message,
                "execution_id": execution_id,
                "hint": hint or None,
                "reason": reason,
            }
            sys.stderr.write(json_text({"error": plain(body)}) + "\n")
        else:
            sys.stderr.write(f"loom: {visible(message)}\n")

    def loom_error(self, error: LoomError) -> int:
        """Print an error of this product; returns the exit code."""
        self.error(
            error.code,
            error.message,
            execution_id=error.execution_id,
            hint=hint_of(error),
            reason=error.reason if isinstance(error, ResumeRefusedError) else None,
        )
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
        # elsewhere nobody sees an edge, so nothing is cut
        if sys.stdout.isatty() and not _narrow(widths, console.width):
            for block in _blocks(columns, lines[1:], console.width):
                console.print(block, soft_wrap=True)
            return
        for line in lines:
            text = Text()
            for cell, width in zip(line, widths, strict=True):
                cell.truncate(width, overflow="ellipsis", pad=True)
                text.append_text(cell).append(_GAP)
            text.rstrip()
            console.print(text, soft_wrap=True)


def _narrow(widths: list[int], edge: int) -> bool:
    """Take from the widest columns until a line fits; whether it does.

    The first column holds what one copies, so it is never cut.
    """
    others = range(1, len(widths))
    while sum(widths) + len(_GAP) * len(others) > edge:
        widest = max(others, key=lambda number: widths[number], default=0)
        if widest == 0 or widths[widest] <= _NARROWEST:
            return False
        widths[widest] -= 1
    return True


def _blocks(columns: tuple[str, ...], rows: Sequence[Sequence[Text]], edge: int) -> Iterator[Text]:
    """The rows of a table for which the terminal is too narrow: a few lines each.

    Cells keep their heading, and those that say nothing are left out.
    """
    for row in rows:
        yield Text(row[0].plain, style="bold")
        line = Text()
        for name, cell in zip(columns[1:], row[1:], strict=True):
            if cell.plain in _SAYS_NOTHING:
                continue
            pair = Text.assemble((f"{name} ", "dim"), cell)
            if line and line.cell_len + len(_GAP) + pair.cell_len > edge:
                yield line
                line = Text()
            line.append(_GAP if line else _INDENT).append_text(pair)
        if line:
            yield line


def _safe(cell: Cell, *, lines: bool = False) -> Text:
    text = cell if isinstance(cell, Text) else Text(cell)
    shown = visible(text.plain, lines=lines)
    return text.copy() if shown == text.plain else Text(shown, style=text.style)
