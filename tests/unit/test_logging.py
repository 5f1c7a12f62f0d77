"""One stream of lines, with the same fields, no secrets and no flood (C93)."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog

from loom_mq.observe.events import LogEvent
from loom_mq.observe.limiter import OncePer
from loom_mq.observe.logging import LogFormat, LogLevel, configure_logging, log_uncaught
from loom_mq.observe.redaction import Redactor, redactor
from loom_mq.runtime.addresses import forms_of, secrets_of

PACKAGE = Path(__file__).parents[2] / "loom_mq"
SECRET_URL = "postgresql://loom:S3cr3t%2Fp@ss@db/loom?token=t0ken%20x"
FORMS = (
    "S3cr3t%2Fp@ss",
    "S3cr3t/p@ss",
    "S3cr3t%2Fp%40ss",
    "S3cr3t%2fp%40ss",
    "S3cr3t%252Fp%40ss",
    "t0ken%20x",
    "t0ken x",
)


class Sink:
    """What was written."""

    def __init__(self) -> None:
        self.stream = io.StringIO()

    def configure(
        self, level: LogLevel = LogLevel.DEBUG, log_format: LogFormat = LogFormat.JSON
    ) -> None:
        configure_logging(
            service="worker", worker="w/1", level=level, log_format=log_format, stream=self.stream
        )

    @property
    def text(self) -> str:
        return self.stream.getvalue()

    @property
    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.text.splitlines()]


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sink]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    monkeypatch.setattr(redactor, "_secrets", frozenset())
    monkeypatch.setattr(redactor, "_pattern", None)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    yield Sink()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    structlog.reset_defaults()


def test_every_line_says_when_what_and_who(sink: Sink) -> None:
    sink.configure()
    structlog.get_logger("a").info("service.ready", slots=3, worker_id=None)
    [line] = sink.lines
    assert list(line)[:5] == ["timestamp", "level", "event", "service", "worker"]
    assert line["event"] == "service.ready"
    assert (line["level"], line["service"], line["worker"], line["slots"]) == (
        "info",
        "worker",
        "w/1",
        3,
    )


def test_bound_context_is_on_the_line(sink: Sink) -> None:
    sink.configure()
    with structlog.contextvars.bound_contextvars(execution_id="e-1", tenant="t"):
        structlog.get_logger("b").info("execution.taken_over")
    assert sink.lines[0]["execution_id"] == "e-1"


def test_the_level_holds_for_us_and_for_libraries(sink: Sink) -> None:
    sink.configure(LogLevel.WARNING)
    structlog.get_logger("c").info("service.ready")
    logging.getLogger("aio_pika").info("connecting")
    assert sink.text == ""


def test_libraries_speak_through_the_same_stream(sink: Sink) -> None:
    sink.configure()
    logging.getLogger("aio_pika").warning("connection %s lost", 7)
    [line] = sink.lines
    assert line["event"] == "library.spoke"
    assert line["message"] == "connection 7 lost"
    assert line["logger"] == "aio_pika"
    assert line["worker"] == "w/1"


def test_a_library_that_repeats_itself_is_held_back(sink: Sink) -> None:
    sink.configure()
    for number in range(50):
        logging.getLogger("aiormq").warning("connection %s lost", number)
    logging.getLogger("aiormq").error("connection %s lost", 1)
    assert len(sink.lines) == 2


def test_warnings_are_lines_too(sink: Sink) -> None:
    sink.configure()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("something is deprecated", DeprecationWarning, stacklevel=1)
    assert "something is deprecated" in str(sink.lines[0]["message"])


class Leaky:
    """Shows a secret in its repr, and breaks on demand."""

    def __init__(self, text: str | None) -> None:
        self._text = text

    def __repr__(self) -> str:
        if self._text is None:
            raise RuntimeError("S3cr3t/p@ss")
        return f"Leaky({self._text!r})"


@pytest.mark.parametrize("log_format", LogFormat)
@pytest.mark.parametrize("form", FORMS)
def test_no_form_of_a_secret_is_written(sink: Sink, form: str, log_format: LogFormat) -> None:
    """C93: fields, nested data, keys, exceptions, tracebacks, libraries, warnings."""
    sink.configure(log_format=log_format)
    redactor.register(secrets_of(SECRET_URL))
    log = structlog.get_logger("d")
    log.info("service.started", url=f"postgresql://loom:{form}@db/loom")
    log.info(f"service.started {form}", **{form: 1})
    log.debug(
        "service.started",
        nested={"a": [{form: (form, {form})}], "b": form.encode()},
        error=ValueError(form),
        thing=Leaky(form),
        broken=Leaky(None),
    )
    try:
        try:
            raise KeyError(form)
        except KeyError as error:
            raise RuntimeError(f"cannot connect with {form}") from error
    except RuntimeError:
        log.exception("service.crashed", password=form)
        logging.getLogger("asyncio").exception("failed with %s", form)
    logging.getLogger("aiormq").debug("frame %r", f"\x00loom\x00{form}".encode())
    text = sink.text
    assert text.count("***") >= 10
    for other in FORMS:
        assert other not in text
        assert json.dumps(other)[1:-1] not in text


def test_a_secret_with_quotes_and_line_breaks_is_hidden_in_quoted_text(sink: Sink) -> None:
    """C93: as it looks inside the text of a JSON or Python string."""
    secret = 'pa"ss\\wo\nrd'
    sink.configure()
    redactor.register(forms_of(secret))
    structlog.get_logger("e").info(
        "service.started", body=json.dumps({"p": secret}), raw=secret, shown=repr(secret)
    )
    assert "wo" not in sink.text.replace("worker", "")


def test_what_nobody_caught_is_logged_redacted(sink: Sink) -> None:
    """C93: a crash with a traceback, in the main thread and in others."""
    sink.configure()
    redactor.register(secrets_of(SECRET_URL))
    log_uncaught()
    error = RuntimeError(f"cannot reach {SECRET_URL}")
    sys.excepthook(RuntimeError, error, None)
    thread = threading.Thread(target=_raise, args=(error,), name="step-3")
    thread.start()
    thread.join()
    sys.unraisablehook(
        SimpleNamespace(
            exc_type=RuntimeError, exc_value=error, exc_traceback=None, err_msg=None, object=None
        )
    )
    assert [line["event"] for line in sink.lines] == [
        "process.crashed",
        "thread.crashed",
        "cleanup.failed",
    ]
    assert sink.lines[1]["thread"] == "step-3"
    assert "S3cr3t" not in sink.text


def _raise(error: Exception) -> None:
    raise error


def test_a_line_that_cannot_be_written_is_not_shown_elsewhere(
    sink: Sink, capsys: pytest.CaptureFixture[str]
) -> None:
    """C93: the standard library would print the line's arguments to the error stream."""
    sink.configure()
    sink.stream.close()
    logging.getLogger("aiormq").error("with %s", "S3cr3t/p@ss")
    err = capsys.readouterr().err
    assert "could not be written: ValueError" in err
    assert "S3cr3t" not in err


def test_redaction_prefers_the_longest_form_and_knows_nothing_at_first() -> None:
    hide = Redactor()
    assert hide.text("pass password") == "pass password"
    hide.register(["pass", "password", ""])
    assert hide.text("pass password") == "*** ***"
    assert hide.value([1, True, None, 2.5, "my pass"]) == [1, True, None, 2.5, "my ***"]


def test_redaction_of_data_that_holds_itself_ends() -> None:
    loop: dict[str, object] = {}
    loop["again"] = loop
    hide = Redactor()
    hide.register(["secret"])
    assert "again" in str(hide.value(loop))


def test_one_warning_per_cause_and_period_with_a_count() -> None:
    """One warning per cause per minute with a count."""
    now = 0.0
    limiter = OncePer(60.0, lambda: now)
    assert limiter.admit("a") == 0
    assert [limiter.admit("a") for _ in range(3)] == [None, None, None]
    assert limiter.admit("b") == 0
    now = 61.0
    assert limiter.admit("a") == 3
    assert limiter.admit("a") is None
    assert limiter.forget("a") == 1
    assert limiter.admit("a") == 0


def test_the_limiter_forgets_the_cause_unheard_of_for_longest() -> None:
    limiter = OncePer(60.0, lambda: 0.0)
    for number in range(1001):
        assert limiter.admit(number) == 0
    assert limiter.admit(0) == 0
    assert limiter.admit(1000) is None


def test_every_event_that_the_package_logs_is_in_the_table() -> None:
    """The table of events is complete, and names are dotted."""
    known = {event.value for event in LogEvent}
    unknown = sorted(
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in PACKAGE.rglob("*.py")
        if "testing" not in path.parts
        for name in _logged_names(path)
        if name not in known
    )
    assert unknown == [], "add them to loom_mq/observe/events.py"
    assert all(re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", name) for name in known)


def _logged_names(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        speaker, first = node.func.value, node.args[0]
        logs = isinstance(speaker, ast.Name) and speaker.id in ("_log", "_logger")
        if not (logs or node.func.attr == "_say"):
            continue
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            yield first.value
