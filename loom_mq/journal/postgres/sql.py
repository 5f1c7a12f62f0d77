"""The SQL files of this store, with the schema's name put in."""

from __future__ import annotations

import re
from typing import Final

from loom_mq.journal.statements import load_migrations, load_statements, sql_folder

STORE: Final = "postgres"
FUNCTIONS_REVISION: Final = 5
"""Counts releases of the functions; raised with every change of a released one, so that
an older program never puts its own over newer ones."""

_SCHEMA: Final = re.compile(r"\bloom\.")


class Sql:
    """Statements and scripts for one schema.

    Args:
        schema: its name; letters, digits and underscores only.
    """

    def __init__(self, schema: str) -> None:
        self._prefix = f'"{schema}".'
        self._calls: dict[str, str] = {}
        self._statements = {
            name: self._placed(text) for name, text in load_statements(STORE, "statements").items()
        }

    def __getitem__(self, name: str) -> str:
        """A statement of ``statements.sql`` by name."""
        return self._statements[name]

    def call(self, function: str, arguments: int, answer: str = "*") -> str:
        """The statement that calls a function of the journal.

        Args:
            function: its name.
            arguments: how many it takes.
            answer: what to select from it.
        """
        text = self._calls.get(function)
        if text is None:
            places = ", ".join(f"${at}" for at in range(1, arguments + 1))
            text = f"SELECT {answer} FROM {self._prefix}{function}({places})"
            self._calls[function] = text
        return text

    def migrations(self) -> list[tuple[int, str]]:
        """The numbered scripts."""
        return [(number, self._placed(text)) for number, text in load_migrations(STORE)]

    def functions(self) -> str:
        """The script of all functions."""
        files = sorted((sql_folder(STORE) / "functions").iterdir(), key=lambda file: file.name)
        return self._placed("\n".join(file.read_text("utf-8") for file in files))

    def _placed(self, text: str) -> str:
        return _SCHEMA.sub(self._prefix, text)
