"""The `loom` command."""

from __future__ import annotations

import logging
import os
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Annotated, Final, NoReturn

import typer

from loom_mq import __about__
from loom_mq.cli import (
    acting,
    answering,
    archives,
    cancelling,
    dev,
    disposal,
    dlq,
    doctor,
    doubt,
    fleet,
    fork,
    history,
    listing,
    looking,
    measuring,
    migrate,
    queues,
    recovering,
    replaying,
    schedules,
    stuck,
    timers,
)
from loom_mq.cli.exits import Exit
from loom_mq.cli.options import ACTING, LOOKING, SCHEDULING, hoisted, watch_of
from loom_mq.cli.reach import Reach
from loom_mq.cli.screen import Screen
from loom_mq.errors import InputError, LoomError
from loom_mq.model.execution import DEFAULT_TENANT
from loom_mq.observe.logging import LogFormat, LogLevel, configure_logging
from loom_mq.runtime.environment import parse_seconds
from loom_mq.runtime.process import leave

app: Final = typer.Typer(
    name="loom",
    help="See and steer durable executions.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"{__about__.VERSION}\n")
        raise typer.Exit(Exit.DONE)


@app.callback()
def root(
    ctx: typer.Context,
    journal: Annotated[
        str | None,
        typer.Option(
            "--journal",
            metavar="URL",
            help="postgresql://… or sqlite:///path; LOOM_JOURNAL by default, or "
            "./loom-dev.sqlite where that file is.",
        ),
    ] = None,
    broker: Annotated[
        str | None,
        typer.Option(
            "--broker",
            metavar="URL",
            help="amqp://…, for commands that act; LOOM_BROKER by default. Without it they act "
            "through the journal.",
        ),
    ] = None,
    tenant: Annotated[str, typer.Option("--tenant", help="Whose executions.")] = DEFAULT_TENANT,
    timeout: Annotated[
        str | None,
        typer.Option(
            "--timeout", metavar="5s", help="Wait at most this long, for servers and for ends."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Answer with one JSON object.")] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="Without colours.")] = False,
    columns: Annotated[
        str | None,
        typer.Option("--columns", metavar="A,B", help="Only these columns of a table."),
    ] = None,
    watch: Annotated[
        str | None,
        typer.Option("--watch", metavar="2s", help="Look again and again, with pauses so long."),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """See and steer durable executions.

    The options below may stand anywhere on the command line.

    Exit codes: 0 done; 1 the execution failed; 2 usage; 3 not found; 4 refused;
    5 journal or broker unreachable; 6 timed out, it goes on; 7 `doctor` or a --check found
    something; 8 the execution was cancelled; 130 interrupted.
    """
    ctx.obj = Reach(
        journal=journal or os.environ.get("LOOM_JOURNAL") or None,
        broker=broker or os.environ.get("LOOM_BROKER") or None,
        tenant=tenant,
        timeout=_seconds("--timeout", timeout),
        screen=_screen(
            json=json, no_color=no_color, columns=columns or "", lines=watch is not None
        ),
        told=bool(journal),
    )


def _seconds(option: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        seconds = parse_seconds(text)
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise InputError(f"{option} {text!r} is no duration such as 5, 500ms, 5s or 2m")
    return seconds


def _screen(*, json: bool, no_color: bool, columns: str = "", lines: bool = False) -> Screen:
    return Screen(
        json=json,
        color=not (no_color or os.environ.get("NO_COLOR")),
        columns=[name.strip() for name in columns.split(",") if name.strip()],
        lines=lines,
    )


for _name, _command in (
    ("dev", dev.dev),
    ("start", acting.start),
    ("result", acting.result),
    ("resume", answering.resume),
    ("cancel", cancelling.cancel),
    ("verdict", doubt.verdict),
    ("list", listing.list_executions),
    ("show", looking.show),
    ("why", looking.why),
    ("history", history.history),
    ("stuck", stuck.stuck),
    ("census", recovering.census),
    ("recover", recovering.recover),
    ("reconcile-timers", recovering.reconcile),
    ("introspect", measuring.introspect),
    ("profile", measuring.profile),
    ("audit", measuring.audit),
    ("replay", replaying.replay),
    ("fork", fork.fork),
    ("export", archives.export),
    ("import", archives.import_archive),
    ("prune", disposal.prune),
    ("erase", disposal.erase),
    ("truncate", disposal.truncate),
    ("queues", queues.queues),
    ("workers", fleet.workers),
    ("flows", fleet.flows),
    ("doctor", doctor.doctor),
    ("migrate", migrate.migrate),
):
    app.command(_name)(_command)
app.command("ls", hidden=True)(listing.list_executions)
for _name, _group in (("timers", timers.app), ("schedules", schedules.app), ("dlq", dlq.app)):
    app.add_typer(_group, name=_name)


def run(arguments: Sequence[str]) -> int:
    """Run one command line; prints its answer or its error.

    Args:
        arguments: what stands after `loom`.

    Returns:
        The exit code, one of `Exit`.
    """
    ordered = hoisted(arguments)
    # for errors that come before the options are read
    screen = _screen(json="--json" in ordered, no_color="--no-color" in ordered)
    pause = 0.0
    try:
        if not set(ordered) & {"-h", "--help"}:
            pause = _seconds("--watch", watch_of(ordered)) or 0.0
        said = set(ordered)
        acting = ACTING | SCHEDULING if "schedules" in said else ACTING
        if pause and (not LOOKING & said or acting & said):
            raise InputError("--watch goes with commands that look, and change nothing")
    except InputError as error:
        return screen.loom_error(error)
    while True:
        code = _once(ordered, screen)
        if not pause or code not in (Exit.DONE, Exit.FOUND):
            return code
        try:
            time.sleep(pause)
        except KeyboardInterrupt:
            return Exit.INTERRUPTED
        screen.clear()


def _once(ordered: list[str], screen: Screen) -> int:
    command = typer.main.get_command(app)
    try:
        code = command.main(args=ordered, prog_name="loom", standalone_mode=False)
        sys.stdout.flush()
    except LoomError as error:
        return screen.loom_error(error)
    except typer.TyperException as error:
        screen.error("usage", error.format_message(), execution_id=None, hint="loom --help")
        return Exit.USAGE
    except (KeyboardInterrupt, typer.Abort):
        return Exit.INTERRUPTED
    except (BrokenPipeError, SystemExit):
        # whoever read has seen enough (the parser makes its own exit of that); Python must
        # not complain at its end either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.DONE
    except Exception as error:  # a traceback helps nobody who types commands
        frame = traceback.extract_tb(error.__traceback__)[-1]
        sentence = f"an error in loom itself: {type(error).__name__}: {error}"
        place = f"{os.path.basename(frame.filename)}:{frame.lineno}"
        screen.error("internal", f"{sentence} ({place})", execution_id=None, hint="")
        return Exit.BROKEN
    return Exit.DONE if code is None else int(code)


def main() -> NoReturn:
    """What the console script calls."""
    for stream in (sys.stdout, sys.stderr):
        # a terminal that cannot show a letter must not end the command
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    configure_logging(
        service="loom", worker="loom", level=LogLevel.WARNING, log_format=LogFormat.CONSOLE
    )
    # an error is one sentence, and what libraries have to say about it is none of them;
    # `loom dev` lets them speak again
    logging.disable(logging.CRITICAL)
    leave(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
