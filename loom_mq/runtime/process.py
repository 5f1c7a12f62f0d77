"""One process of the fleet: from its arguments to its exit code."""

from __future__ import annotations

import asyncio
import importlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NoReturn, TypeVar

import msgspec
import structlog

from loom_mq import __about__
from loom_mq.errors import (
    BrokerUnreachableError,
    ConfigurationError,
    JournalUnreachableError,
    LoomError,
    SchemaVersionError,
    SettingsError,
    TopologyMismatchError,
)
from loom_mq.ids import new_owner
from loom_mq.model.execution import WorkerRecord
from loom_mq.observe.logging import configure_logging, log_uncaught
from loom_mq.observe.metrics import Metrics
from loom_mq.observe.redaction import redactor
from loom_mq.runtime.environment import read_settings, shown_settings, unknown_variables
from loom_mq.runtime.exits import no_clean_exit
from loom_mq.runtime.part import Build, ExitCode
from loom_mq.runtime.ports import OPENERS, Openers
from loom_mq.runtime.service import Service
from loom_mq.runtime.settings import ServiceSettings, WorkerSettings
from loom_mq.runtime.settings_text import settings_help
from loom_mq.runtime.signals import SignalWatch

_LAST_TASKS: Final = 0.3
_MISTAKES: Final = (ConfigurationError, SchemaVersionError, TopologyMismatchError)

S = TypeVar("S", bound=ServiceSettings)

_log = structlog.get_logger(__name__)


def read_or_leave(
    role: str, about: str, kind: type[S], arguments: Sequence[str], environ: Mapping[str, str]
) -> S:
    """The settings of a service; ``--help``, ``--version`` and mistakes end the process.

    Args:
        role: name of the service.
        about: what it does, for ``--help``.
        kind: its settings.
        arguments: what stands after the program's name.
        environ: usually ``os.environ``.

    Raises:
        SystemExit: there is nothing to run.
    """
    if arguments and arguments[0] in ("-h", "--help"):
        print(f"usage: python -m services.{role}\n\n{about}\n\nSettings, from the environment:\n")
        print(settings_help(kind))
        raise SystemExit(ExitCode.CLEAN)
    if arguments and arguments[0] == "--version":
        print(__about__.VERSION)
        raise SystemExit(ExitCode.CLEAN)
    if arguments:
        refuse(role, f"it takes no arguments, not {arguments[0]!r}; see --help")
    try:
        settings = read_settings(kind, environ)
    except SettingsError as error:
        refuse(role, error.message)
    redactor.register(settings.broker.secrets() | settings.journal.secrets())
    return settings


def refuse(role: str, sentence: str) -> NoReturn:
    """End the process with one line that says what is set up wrong.

    Raises:
        SystemExit: always, with `ExitCode.SETTINGS`.
    """
    print(redactor.text(f"loom {role}: {sentence}"), file=sys.stderr)
    raise SystemExit(ExitCode.SETTINGS)


def run_service(
    role: str, settings: ServiceSettings, build: Build, *, openers: Openers = OPENERS
) -> ExitCode:
    """Run one service in this process until it is told to stop.

    Must be called in the main thread. Ends within ``LOOM_DRAIN`` and two seconds of
    the first signal whatever broker, journal or user code do: by force if need be.

    Args:
        role: dispatcher, worker or timer.
        settings: everything that can be set.
        build: makes the part that does the work.
        openers: make the connections.
    """
    host = socket.gethostname()
    owner = new_owner(role, host)
    redactor.register(settings.broker.secrets() | settings.journal.secrets())
    configure_logging(
        service=role, worker=owner, level=settings.log_level, log_format=settings.log_format
    )
    log_uncaught()
    for sentence in unknown_variables(os.environ):
        _log.warning("settings.unknown", message=sentence)
    _log.info("service.started", release=__about__.VERSION, settings=shown_settings(settings))
    record = WorkerRecord(owner=owner, role=role, host=host, release=__about__.VERSION)
    if isinstance(settings, WorkerSettings):
        record = msgspec.structs.replace(record, queues=settings.queues, slots=settings.slots)
    try:
        return _run(record, settings, build, openers)
    except _MISTAKES as error:
        _log.error("service.refused", error=error.message, code=error.code)
        return ExitCode.SETTINGS
    except (JournalUnreachableError, BrokerUnreachableError) as error:
        _log.error("service.refused", error=error.message, code=error.code)
        return ExitCode.UNREACHABLE
    except LoomError as error:
        _log.error("service.refused", error=error.message, code=error.code)
        return ExitCode.CRASHED
    except Exception:  # whatever it is, the log has it and the exit code says so
        _log.exception("service.crashed")
        return ExitCode.CRASHED


def _run(
    record: WorkerRecord, settings: ServiceSettings, build: Build, openers: Openers
) -> ExitCode:
    loop = _new_loop(settings)
    asyncio.set_event_loop(loop)
    watch = SignalWatch(
        drain=settings.drain,
        on_first=lambda: _tell(loop, service.ask_to_stop),
        on_second=lambda: _tell(loop, service.stop_at_once),
        forced_code=ExitCode.GAVE_UP,
    )
    service = Service(
        record,
        settings,
        build,
        openers=openers,
        metrics=Metrics(version=__about__.VERSION),
        seconds_left=lambda: watch.seconds_left,
        limit=watch.limit,
    )
    watch.install()
    try:
        with no_clean_exit():
            return loop.run_until_complete(service.run())
    finally:
        _wind_down(loop)


def leave(code: int) -> NoReturn:
    """End the process, even while a step's thread is stuck (C60)."""
    sys.stdout.flush()
    sys.stderr.flush()
    stuck = [
        thread
        for thread in threading.enumerate()
        if thread is not threading.main_thread() and not thread.daemon
    ]
    if stuck:
        os._exit(code)
    raise SystemExit(code)


def _new_loop(settings: ServiceSettings) -> asyncio.AbstractEventLoop:
    if not settings.uvloop:
        return asyncio.new_event_loop()
    try:
        module = importlib.import_module("uvloop")
    except ImportError:
        raise SettingsError(
            "LOOM_UVLOOP is true but uvloop is not installed; install loom-mq[uvloop] or set "
            "LOOM_UVLOOP=false"
        ) from None
    loop: asyncio.AbstractEventLoop = module.new_event_loop()
    return loop


def _tell(loop: asyncio.AbstractEventLoop, what: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(what)
    except RuntimeError:
        return  # the loop is closed: it has stopped already


def _wind_down(loop: asyncio.AbstractEventLoop) -> None:
    """Close the loop without waiting for anything that does not end by itself."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=_LAST_TASKS))
    loop.run_until_complete(loop.shutdown_asyncgens())
    asyncio.set_event_loop(None)
    loop.close()
