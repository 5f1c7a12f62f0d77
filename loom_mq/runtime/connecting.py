"""Connecting at start: patient with what may come up, short with what is set up wrong (C67)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, TypeVar

import structlog

from loom_mq.errors import (
    BrokerUnreachableError,
    ConfigurationError,
    JournalUnreachableError,
    LoomError,
    SchemaVersionError,
    SettingsError,
)
from loom_mq.observe.limiter import once_per
from loom_mq.runtime.addresses import Address

MISTAKE_PATIENCE: Final = 4.0
"""Seconds of patience with what looks like a mistake: a fresh deployment may still be
making the user, the database or the vhost."""
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
GOODBYE: Final = 0.5

Connection = AbstractAsyncContextManager[object]
_TELLTALES: Final = ("ACCESS_REFUSED", "NOT_ALLOWED", "virtual host does not exist", "[SSL: ")
"""What a broker's refusal of user, vhost or certificate looks like in an error's text."""

C = TypeVar("C", bound=Connection)
D = TypeVar("D", bound=Connection)

_log = structlog.get_logger(__name__)


class _CutShortError(Exception):
    """The whole patience was over in the middle of a try."""


class Target:
    """What to connect to, for messages.

    Args:
        what: journal or broker.
        variable: the setting that says where it is.
        address: its value.
    """

    def __init__(self, what: str, variable: str, address: Address) -> None:
        self.what = what
        self.variable = variable
        self.address = address

    def __str__(self) -> str:
        return f"{self.variable} ({self.address})"


async def connect(
    target: Target,
    make: Callable[[], C],
    *,
    patience: float,
    prepare: Callable[[], Awaitable[None]] | None = None,
) -> C:
    """Make a connection and enter it, again and again until it works.

    Args:
        target: what for.
        make: makes a fresh, unentered connection for each try.
        patience: seconds until giving up; mistakes get `MISTAKE_PATIENCE` at most.
        prepare: done before each try, as a part of it.

    Raises:
        SettingsError: it is set up wrong; names the setting.
        SchemaVersionError: as raised, at once.
        JournalUnreachableError, BrokerUnreachableError: the patience is over.
    """
    once = once_per(60.0)
    began = time.monotonic()
    pause = FIRST_PAUSE
    tries = 0
    problem: LoomError = JournalUnreachableError("there was no answer in time")
    while True:
        tries += 1
        try:
            return await _enter(make, prepare, patience - (time.monotonic() - began))
        except SchemaVersionError:
            raise
        except _CutShortError:
            raise _given_up(target, problem, time.monotonic() - began, tries) from problem
        except LoomError as error:
            problem = error
        limit = min(patience, MISTAKE_PATIENCE) if is_mistake(problem) else patience
        waited = time.monotonic() - began
        if waited + pause > limit:
            raise _given_up(target, problem, waited, tries) from problem
        held_back = once.admit(type(problem).__name__)
        if held_back is not None:
            _log.warning(
                "service.waiting",
                waits_for=target.what,
                address=str(target.address),
                error=problem,
                next_try=round(pause, 2),
                held_back=held_back,
            )
        await asyncio.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE)


def is_mistake(error: BaseException) -> bool:
    """Whether waiting will hardly help: refused credentials, an unknown vhost or database."""
    if any(telltale in str(error) for telltale in _TELLTALES):
        return True
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ConfigurationError):
            return True
        seen = seen.__cause__
    return not isinstance(error, JournalUnreachableError | BrokerUnreachableError)


async def leave(connection: Connection, what: str) -> None:
    """Close a connection in bounded time, and never fail."""
    try:
        async with asyncio.timeout(GOODBYE):
            await connection.__aexit__(None, None, None)
    except Exception as error:  # a goodbye must not fail
        _log.warning("service.goodbye_failed", to=what, error=error)


async def _enter(
    make: Callable[[], C], prepare: Callable[[], Awaitable[None]] | None, seconds: float
) -> C:
    try:
        async with asyncio.timeout(max(seconds, 0.1)):
            if prepare is not None:
                await prepare()
            connection = make()
            await connection.__aenter__()
            return connection
    except TimeoutError:
        raise _CutShortError from None


def _given_up(target: Target, problem: LoomError, waited: float, tries: int) -> LoomError:
    times = "once" if tries == 1 else f"{tries} times"
    sentence = f"{target}: {problem.message} (tried {times} in {waited:.1f} s)"
    if is_mistake(problem):
        return SettingsError(sentence)
    kind = BrokerUnreachableError if target.what == "broker" else JournalUnreachableError
    return kind(sentence)


async def connect_both(first: Awaitable[C], second: Awaitable[D]) -> tuple[C, D]:
    """Wait for two connections; when one of them fails, the other is let go of.

    Raises:
        LoomError: what the failed one raised.
    """
    one = asyncio.ensure_future(first)
    two = asyncio.ensure_future(second)
    try:
        await asyncio.gather(one, two)
        return one.result(), two.result()
    except BaseException:
        for task in (one, two):
            task.cancel()
        await asyncio.wait((one, two), timeout=GOODBYE)
        for task in (one, two):
            if task.done() and not task.cancelled() and task.exception() is None:
                await leave(task.result(), "what was connected")
        raise
