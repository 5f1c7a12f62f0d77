"""Asking before something is gone for good."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from loom_mq.cli.reach import Reach
from loom_mq.cli.text import visible
from loom_mq.errors import InputError

Yes = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done; do nothing.")]


def ask(reach: Reach, what: str, *, yes: bool) -> None:
    """Go on only when somebody wants it.

    Args:
        reach: where the command is.
        what: what is about to be done, as a sentence.
        yes: they have said so on the command line.

    Raises:
        InputError: nobody is there to be asked.
        typer.Abort: they do not want it.
    """
    if yes:
        return
    if reach.screen.json or not sys.stdin.isatty():
        raise InputError(f"{what} Nobody is here to be asked: say --yes, or look with --dry-run")
    typer.confirm(visible(f"{what} Go on?"), abort=True, err=True)
