"""`loom dev`: everything in one process, for the first five minutes and for daily work."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from loom_mq.cli.exits import Exit
from loom_mq.cli.inputs import example_of, parse_json
from loom_mq.cli.options import reach_of
from loom_mq.cli.reach import DEV_FILE, Reach
from loom_mq.cli.reading import explained
from loom_mq.cli.screen import Screen
from loom_mq.cli.text import json_text, plain, sqlite_address
from loom_mq.codec.values import to_display
from loom_mq.errors import CodecError, InputError, LoomError, UnknownFlowError
from loom_mq.flows.definition import Flow
from loom_mq.flows.registry import Registry, load
from loom_mq.ids import RandomIds, check_id
from loom_mq.kernel.explain import ReasonCode
from loom_mq.runtime.embedded import DRAIN, Embedded
from loom_mq.runtime.signals import SignalWatch

_LOOK_SECONDS: Final = 0.2


class First(msgspec.Struct, frozen=True):
    """An execution to start right away."""

    flow: Flow[Any, Any]
    value: object
    id: str


def dev(
    ctx: typer.Context,
    place: Annotated[
        str,
        typer.Argument(metavar="FILE_OR_MODULE", help="Where the flows are: file.py or a.module."),
    ],
    db: Annotated[
        Path, typer.Option("--db", help="The journal's file; made when it is not there.")
    ] = DEV_FILE,
    start: Annotated[
        str | None, typer.Option("--start", metavar="FLOW", help="Start this flow right away.")
    ] = None,
    value: Annotated[
        str, typer.Option("--input", metavar="JSON", help="Input of the flow started.")
    ] = "null",
    execution_id: Annotated[
        str | None, typer.Option("--id", help="Id of the execution started.")
    ] = None,
) -> Exit:
    """Run flows in this process: no broker, no database server, one file.

    Ctrl-C finishes what is in hand. Killing it loses nothing: started again on the same
    file it goes on where every execution was.
    """
    logging.disable(logging.NOTSET)
    sys.path.insert(0, os.getcwd())
    registry = load([place])
    first = None if start is None else _first(registry, start, value, execution_id)
    reach = msgspec.structs.replace(
        reach_of(ctx), journal=sqlite_address(db), told=db != DEV_FILE, tenant="default"
    )
    asyncio.run(_serve(reach, registry, db, first))
    return Exit.DONE


def _first(registry: Registry, name: str, value: str, execution_id: str | None) -> First:
    """Check what is to be started before anything runs."""
    flow = max(
        (flow for flow in registry if flow.name == name), key=lambda f: f.version, default=None
    )
    if flow is None:
        known = ", ".join(sorted({flow.name for flow in registry}))
        raise UnknownFlowError(f"--start {name!r}: there is no such flow, but {known}")
    data = parse_json(value, "--input")
    try:
        given: object = None
        if flow.takes_input:
            given = msgspec.convert(data, flow.input_codec.annotation, strict=True)
        elif data is not None:
            raise InputError(f"flow {name!r} takes no input")
    except (msgspec.ValidationError, CodecError) as error:
        raise InputError(f"--input does not fit flow {name!r}: {error}") from error
    chosen = RandomIds().execution() if execution_id is None else check_id(execution_id, "--id")
    return First(flow, given, chosen)


async def _serve(reach: Reach, registry: Registry, db: Path, first: First | None) -> None:
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    watch = SignalWatch(
        drain=DRAIN,
        on_first=lambda: _tell(loop, asked.set),
        on_second=lambda: os._exit(Exit.INTERRUPTED),
        forced_code=Exit.TIMED_OUT,
    )
    async with Embedded(registry, db) as house:
        watch.install()
        unended = sum(
            number
            for status, number in (await house.journal.count()).items()
            if not status.terminal
        )
        _announce(reach, registry, db, first, unended)
        following = None
        if first is not None:
            await house.client.start(first.flow, first.value, id=first.id)
            following = asyncio.ensure_future(_follow(reach, house, first.id))
        await asked.wait()
        if following is not None:
            following.cancel()
        reach.screen.line("Stopping: what is in hand is finished first; Ctrl-C again ends it now.")
    watch.remove()


def _tell(loop: asyncio.AbstractEventLoop, what: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(what)
    except RuntimeError:
        return  # it has stopped already


# ---- what it says ------------------------------------------------------------------------------


def _announce(
    reach: Reach, registry: Registry, db: Path, first: First | None, unended: int
) -> None:
    screen = reach.screen
    screen.line(f"loom dev serves, with its journal in {db}:")
    for flow in sorted(registry, key=lambda each: (each.name, each.version)):
        screen.line(f"  {flow.name} version {flow.version}  queue {flow.queue}")
    if unended:
        before = "1 execution from before goes" if unended == 1 else f"{unended} from before go"
        screen.line(f"{before} on.")
    screen.line("Ctrl-C stops it; killed, it goes on where it was when you start it again.")
    screen.line("\nIn another terminal:")
    for command in _commands(reach, registry, first):
        screen.line(f"  {command}")
    screen.line("")
    sys.stdout.flush()


def _commands(reach: Reach, registry: Registry, first: First | None) -> list[str]:
    if first is not None:
        name = first.id
        opening = []
    else:
        flow = min(registry, key=lambda each: each.name)
        name = f"try-{flow.name}"
        example = [example_of(flow.input_codec.annotation)] if flow.takes_input else []
        opening = [["loom", "start", flow.name, *example, "--id", name]]
    lines = [*opening, ["loom", "list"], ["loom", "why", name], ["loom", "history", name]]
    return [reach.copyable(shlex.join(line)) for line in lines[:3]]


async def _follow(reach: Reach, house: Embedded, execution_id: str) -> None:
    """Say what becomes of the execution that was started here."""
    key = reach.key(execution_id)
    said: tuple[ReasonCode, int | None] | None = None
    while True:
        try:
            row, state, reason, _now = await explained(reach, house.journal, key)
        except LoomError as error:
            reach.screen.note(f"loom dev: {error.message}")
        else:
            if (reason.code, reason.since) != said and reason.code not in _FLEETING:
                _say(reach.screen, execution_id, reason.sentence)
                said = (reason.code, reason.since)
                if reason.next and not row.status.terminal:
                    _say(reach.screen, execution_id, f"next: {reach.copyable(reason.next)}")
            if row.status.terminal:
                if state.result is not None:
                    value = json_text(plain(to_display(state.result)))
                    _say(reach.screen, execution_id, f"result: {value}")
                return
        await asyncio.sleep(_LOOK_SECONDS)


_FLEETING: Final = frozenset({ReasonCode.DISPATCHING, ReasonCode.RUNNING})


def _say(screen: Screen, execution_id: str, text: str) -> None:
    screen.line(f"{execution_id}: {text}")
    sys.stdout.flush()
