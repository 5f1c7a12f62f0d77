"""Writes the generated pages: ``python -m loom_mq.runtime.reference docs/reference``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from loom_mq.observe.events import log_events_table
from loom_mq.runtime.settings_text import settings_table

PAGES: Final[dict[str, Callable[[], str]]] = {
    "settings.md": settings_table,
    "log-events.md": log_events_table,
}


def write_pages(folder: Path) -> None:
    """Write every generated page into `folder`."""
    for name, text in PAGES.items():
        (folder / name).write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    write_pages(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/reference"))
