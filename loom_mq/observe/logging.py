"""One stream of log lines per process: structured, redacted, never a flood.

structlog and the standard library's logging (aio-pika, asyncpg, asyncio, warnings)
meet in one handler, so every line has the same fields and no line shows a secret (C93).
Events are named in `observe.events`.
"""

from __future__ import annotations

import enum
import logging
import sys
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Final, TextIO

import structlog
from structlog.stdlib import ProcessorFormatter
from structlog.typing import EventDict, Processor, WrappedLogger

from loom_mq.observe.limiter import OncePer, once_per
from loom_mq.observe.redaction import Redactor, redactor

_FIRST: Final = ("timestamp", "level", "event", "service", "worker")
_INTERNAL: Final = frozenset({"_record", "_from_structlog"})
_LIBRARY_PERIOD: Final = 60.0
_log = structlog.get_logger(__name__)


class LogLevel(enum.StrEnum):
    """Least level that is written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def number(self) -> int:
        """The standard library's number for it."""
        return logging.getLevelNamesMapping()[self.value.upper()]


class LogFormat(enum.StrEnum):
    """How a line looks."""

    JSON = "json"
    CONSOLE = "console"


def configure_logging(
    *,
    service: str,
    worker: str,
    level: LogLevel = LogLevel.INFO,
    log_format: LogFormat = LogFormat.JSON,
    stream: TextIO | None = None,
) -> None:
    """Send everything that this process logs to one stream.

    Args:
        service: the role, on every line.
        worker: this process's own name, on every line.
        level: least level written.
        log_format: JSON lines or text.
        stream: where to; the standard error stream by default.
    """
    out = sys.stderr if stream is None else stream
    common: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
        _Signed(service, worker),
        # before any handler sees the line: there may be others than ours
        _Redacted(redactor),
    ]
    handler = _Handler(out)
    handler.addFilter(_LibraryLimit(once_per(_LIBRARY_PERIOD)))
    handler.setFormatter(
        ProcessorFormatter(
            foreign_pre_chain=[_library_line, *common],
            processors=[
                ProcessorFormatter.remove_processors_meta,
                _renderer(log_format, out),
            ],
        )
    )
    root = logging.getLogger()
    for old in list(root.handlers):
        if isinstance(old, _Handler):
            root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.number)
    logging.captureWarnings(True)
    structlog.configure(
        processors=[*common, ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level.number),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


def log_uncaught() -> None:
    """Log what nobody caught instead of letting Python print it unredacted."""
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread
    sys.unraisablehook = _unraisable


def _renderer(log_format: LogFormat, out: TextIO) -> Processor:
    if log_format is LogFormat.JSON:
        return structlog.processors.JSONRenderer()
    # the plain formatter: richer ones print local variables, passwords included
    return structlog.dev.ConsoleRenderer(
        colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback
    )


class _Signed:
    """Says who is speaking, unless the caller said so."""

    def __init__(self, service: str, worker: str) -> None:
        self._service = service
        self._worker = worker

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event.setdefault("service", self._service)
        event.setdefault("worker", self._worker)
        return event


class _Redacted:
    """Hides secrets in every field and puts the fields that all lines share first."""

    def __init__(self, secrets: Redactor) -> None:
        self._secrets = secrets

    def __call__(
        self, _logger: WrappedLogger, _method: str, event: EventDict
    ) -> Mapping[str, object]:
        shared = {name: event.pop(name) for name in _FIRST if name in event}
        return {
            self._secrets.text(str(name)): value
            if name in _INTERNAL
            else self._secrets.value(value)
            for name, value in {**shared, **event}.items()
        }


def _library_line(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    record = event["_record"]
    event["message"] = event["event"]
    event["event"] = "library.spoke"
    event["logger"] = record.name
    held_back = getattr(record, "held_back", 0)
    if held_back:
        event["held_back"] = held_back
    return event


class _LibraryLimit(logging.Filter):
    """Holds back warnings that a library repeats; lines of our own limit themselves."""

    def __init__(self, limiter: OncePer) -> None:
        super().__init__()
        self._limiter = limiter

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING or isinstance(record.msg, dict):
            return True
        held_back = self._limiter.admit((record.name, record.levelno, str(record.msg)))
        record.held_back = held_back
        return held_back is not None


class _Handler(logging.StreamHandler[TextIO]):
    """Writes lines; when that fails, says so without the line, which may hold secrets."""

    def handleError(self, record: logging.LogRecord) -> None:  # logging's own name
        error = sys.exc_info()[1]
        try:
            sys.stderr.write(
                f"a log line of {record.name} could not be written: {type(error).__name__}\n"
            )
        except (OSError, ValueError):
            return


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    _log.critical("process.crashed", exc_info=(kind, error, trace))


def _uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is None or issubclass(args.exc_type, SystemExit):
        return
    name = args.thread.name if args.thread is not None else "unknown"
    _log.critical(
        "thread.crashed",
        thread=name,
        exc_info=(args.exc_type, args.exc_value, args.exc_traceback),
    )


def _unraisable(args: sys.UnraisableHookArgs) -> None:
    if args.exc_value is None:
        return
    _log.error(
        "cleanup.failed",
        message=args.err_msg or "an error was raised where it could not be handled",
        exc_info=(args.exc_type, args.exc_value, args.exc_traceback),
    )
