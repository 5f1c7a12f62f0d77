"""SQL from ``.sql`` files: every statement has a name, and a comment that says its index."""

from __future__ import annotations

import re
from importlib import resources
from importlib.resources.abc import Traversable
from types import MappingProxyType
from typing import Final

_NAME: Final = re.compile(r"^--\s*name:\s*(\w+)\s*$")
_MIGRATION: Final = re.compile(r"^(\d{4})_\w+\.sql$")


def sql_folder(store: str) -> Traversable:
    """The folder of a store's SQL files.

    Args:
        store: ``sqlite`` or another folder below ``sql``.
    """
    return resources.files("loom_mq.journal") / "sql" / store


def load_statements(store: str, file: str) -> MappingProxyType[str, str]:
    """The statements of one file by name, without their comments.

    A statement begins after a line ``-- name: its_name`` and ends where the next begins.

    Args:
        store: folder below ``sql``.
        file: name of the file, without ``.sql``.

    Raises:
        ValueError: two statements share a name, or one is empty.
    """
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in (sql_folder(store) / f"{file}.sql").read_text("utf-8").splitlines():
        if (name := _NAME.match(line)) is not None:
            if name[1] in found:
                raise ValueError(f"{store}/{file}.sql has two statements named {name[1]}")
            lines = found[name[1]] = []
        elif line.strip() and not line.lstrip().startswith("--"):
            lines.append(line.rstrip())
    if not all(found.values()):
        raise ValueError(f"{store}/{file}.sql has a name without a statement")
    return MappingProxyType({name: "\n".join(body).rstrip(";") for name, body in found.items()})


def load_migrations(store: str) -> list[tuple[int, str]]:
    """Numbered migration scripts, ``0001_initial.sql`` and so on, in their order.

    Raises:
        ValueError: a number is missing.
    """
    scripts = sorted(
        (int(match[1]), each.read_text("utf-8"))
        for each in sql_folder(store).iterdir()
        if (match := _MIGRATION.match(each.name)) is not None
    )
    if [number for number, _script in scripts] != list(range(1, len(scripts) + 1)):
        raise ValueError(f"the migrations of {store} are not numbered without a gap from 0001")
    return scripts
