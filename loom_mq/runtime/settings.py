"""Every setting of every process: one frozen Struct each, read from ``LOOM_*``.

A field tells its own variable, range, unit, default and meaning, so the reader, the
errors, ``--help`` and `docs/reference/settings.md` cannot disagree.
"""

from __future__ import annotations

import enum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from loom_mq.errors import ConfigurationError
from loom_mq.observe.logging import LogFormat, LogLevel
from loom_mq.runtime.addresses import Address

BROKER_SCHEMES: Final = ("amqp", "amqps")
JOURNAL_SCHEMES: Final = ("postgresql", "sqlite", "memory")
MIB: Final = 1024 * 1024


class MigrateMode(enum.StrEnum):
    """What a service does about a journal whose schema is older than it needs."""

    AUTO = "auto"
    MANUAL = "manual"


def _seconds(help_line: str, *, ge: float, le: float) -> Meta:
    return Meta(ge=ge, le=le, description=help_line, extra={"unit": "s"})


def _seconds_over(help_line: str, *, gt: float, le: float) -> Meta:
    return Meta(gt=gt, le=le, description=help_line, extra={"unit": "s"})


def _count(help_line: str, *, ge: int, le: int, unit: str = "") -> Meta:
    return Meta(ge=ge, le=le, description=help_line, extra={"unit": unit})


def _address(help_line: str, schemes: tuple[str, ...]) -> Meta:
    return Meta(description=help_line, extra={"schemes": schemes})


def _names(help_line: str) -> Meta:
    return Meta(min_length=1, description=help_line, extra={"unit": "comma list"})


class CommonSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What clients and services share."""

    broker: Annotated[Address, _address("The RabbitMQ broker.", BROKER_SCHEMES)]
    log_level: Annotated[LogLevel, Meta(description="Least level that is written.")] = LogLevel.INFO
    log_format: Annotated[
        LogFormat, Meta(description="One JSON object a line, or text for a terminal.")
    ] = LogFormat.JSON
    payload_limit: Annotated[
        int,
        _count(
            "Largest payload taken, encoded; the same on every service.",
            ge=1024,
            le=64 * MIB,
            unit="bytes",
        ),
    ] = MIB
    publish_timeout: Annotated[
        float, _seconds("Wait for the broker's confirm at most this long.", ge=0.1, le=300)
    ] = 10.0

    def check(self) -> None:
        """Hold rules that concern more than one setting.

        Raises:
            ConfigurationError: two settings contradict each other.
        """


class ClientSettings(CommonSettings, frozen=True, kw_only=True):
    """A program that starts executions; it needs the broker only (F1)."""


class ServiceSettings(CommonSettings, frozen=True, kw_only=True):
    """What the three services share."""

    journal: Annotated[Address, _address("The journal.", JOURNAL_SCHEMES)]
    migrate: Annotated[
        MigrateMode,
        Meta(description="`auto` brings an older journal schema up to date at start."),
    ] = MigrateMode.AUTO
    http_host: Annotated[
        str, Meta(min_length=1, description="Where health and metrics are served.")
    ] = "127.0.0.1"
    http_port: Annotated[
        int | None,
        Meta(
            description="Port of health and metrics; 0 takes any free one, `off` serves none.",
            extra={"range": "`0` to `65535`, or `off`", "bounds": (0, 65535)},
        ),
    ] = 0
    startup_timeout: Annotated[
        float,
        _seconds("Wait for journal and broker at start at most this long.", ge=1, le=86400),
    ] = 60.0
    drain: Annotated[
        float,
        _seconds("After SIGTERM, finish what is in hand at most this long.", ge=0, le=86400),
    ] = 30.0
    lease: Annotated[
        float,
        _seconds_over(
            "Dead after this long without a sign of life; renewed three times.", gt=1, le=300
        ),
    ] = 5.0
    pool_size: Annotated[
        int, _count("Connections to PostgreSQL, besides the lease's own.", ge=1, le=100)
    ] = 4
    command_timeout: Annotated[
        float, _seconds("Wait for one statement of the journal at most this long.", ge=0.1, le=300)
    ] = 5.0
    statement_cache: Annotated[
        bool,
        Meta(description="Keep prepared statements; `false` behind a transaction pooler."),
    ] = True
    uvloop: Annotated[bool, Meta(description="Run on uvloop, where it is installed.")] = False


class DispatcherSettings(ServiceSettings, frozen=True, kw_only=True):
    """Admits starts, routes answers, and re-sends whatever got lost."""

    prefetch: Annotated[
        int, _count("Messages taken from a queue before they are settled.", ge=1, le=65535)
    ] = 200
    sweep_interval: Annotated[
        float, _seconds("Pause between two looks for lost work.", ge=0.05, le=3600)
    ] = 1.0
    resend_after: Annotated[
        float,
        _seconds("Send another package when nobody has claimed for this long.", ge=0.1, le=86400),
    ] = 5.0
    resend_limit: Annotated[
        float, _seconds("Longest pause between two packages; it doubles each time.", ge=1, le=86400)
    ] = 300.0
    max_recoveries: Annotated[
        int,
        _count("Recoveries without progress before an execution is given up.", ge=1, le=1_000_000),
    ] = 10

    def check(self) -> None:
        """Hold rules that concern more than one setting."""
        if self.resend_limit < self.resend_after:
            raise ConfigurationError(
                f"LOOM_RESEND_LIMIT is {self.resend_limit:g} s, shorter than "
                f"LOOM_RESEND_AFTER ({self.resend_after:g} s); give it at least as much"
            )


class WorkerSettings(ServiceSettings, frozen=True, kw_only=True):
    """Runs flows and their steps."""

    app: Annotated[
        tuple[str, ...],
        _names("Where the flows are: `package.module`, `package.module:flow` or `file.py`."),
    ]
    queues: Annotated[tuple[str, ...], _names("Queues to serve.")] = ("default",)
    prefetch: Annotated[
        int,
        _count(
            "Messages in hand before they are claimed; each carries up to 32 packages.",
            ge=1,
            le=65535,
        ),
    ] = 4
    slots: Annotated[int, _count("Executions driven at once.", ge=1, le=100_000)] = 200
    step_threads: Annotated[
        int, _count("Threads for steps that are plain functions.", ge=1, le=1000)
    ] = 32
    park_drain: Annotated[
        float,
        _seconds("A park waits for steps in flight at most this long.", ge=0, le=86400),
    ] = 30.0
    backoff_park: Annotated[
        float,
        _seconds("A retry's pause longer than this holds no worker.", ge=0, le=86400),
    ] = 5.0
    snapshot_every: Annotated[
        int,
        _count(
            "Events of an execution between two snapshots, at least; more as its log grows.",
            ge=10,
            le=1_000_000,
        ),
    ] = 500


class TimerSettings(ServiceSettings, frozen=True, kw_only=True):
    """Wakes executions whose time has come."""

    timer_poll: Annotated[
        float, _seconds("Longest pause between two looks for due timers.", ge=0.01, le=60)
    ] = 0.25
    timer_batch: Annotated[int, _count("Due timers taken at once.", ge=1, le=10_000)] = 500


SETTINGS_OF_ROLE: Final[dict[str, type[CommonSettings]]] = {
    "client": ClientSettings,
    "dispatcher": DispatcherSettings,
    "worker": WorkerSettings,
    "timer": TimerSettings,
}
