"""Calls to the broker that end in bounded time and fail in our own words."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from typing import Any, Final, TypeVar

from aiormq.exceptions import (
    AMQPError,
    ChannelAccessRefused,
    ChannelInvalidStateError,
    ChannelLockedResource,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    InvalidFrameError,
)

from loom_mq.broker.limits import mismatch
from loom_mq.errors import BrokerError, BrokerUnreachableError

T = TypeVar("T")

LAG_SECONDS: Final = 1.0
"""A timeout that fires this much too late says that this process was busy, and nothing
about the broker."""

_INEQUIVALENT: Final = re.compile(
    r"inequivalent arg '(?P<argument>[^']*)' for queue '(?P<queue>.*?)' in vhost '.*?': "
    r"received (?P<wanted>.*?) but current is (?P<found>.*)",
    re.DOTALL,
)
_TYPED: Final = re.compile(r"(?:the value )?'(?P<value>.*?)'(?: of type '\w+')?", re.DOTALL)


class MissingQueueError(Exception):
    """The queue does not exist; never leaves the adapter."""


class LockedQueueError(Exception):
    """The queue is exclusive to another connection; never leaves the adapter."""


async def call(awaitable: Awaitable[T], *, seconds: float, what: str) -> T:
    """Wait for the broker's answer.

    Args:
        awaitable: the client library's call.
        seconds: how long to wait at most.
        what: what is asked, for the message, such as ``declaring queue 'loom.start'``.

    Raises:
        MissingQueueError: 404.
        LockedQueueError: 405.
        TopologyMismatchError: 406 for a queue's arguments.
        BrokerError: refused for another reason.
        BrokerUnreachableError: no answer in time, or the connection is gone.
    """
    try:
        async with asyncio.timeout(seconds):
            return await awaitable
    except TimeoutError as error:
        raise BrokerUnreachableError(f"{what}: no answer within {seconds:g} s") from error
    except asyncio.CancelledError:
        # the client library ends calls of a dying connection with this error as well,
        # which must not be taken for a request to this task to stop
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise BrokerUnreachableError(f"{what}: the connection is gone") from None
    except (AMQPError, ChannelInvalidStateError, OSError, RuntimeError) as error:
        ours = _in_our_words(error, what)
        # where the other ones say it all, the library's three layers would only hide it
        raise ours from (error if isinstance(ours, BrokerUnreachableError) else None)


async def first_of(*futures: asyncio.Future[Any]) -> None:
    """Wait until one of them is done; none is cancelled with this task."""
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


async def end(*tasks: asyncio.Task[Any] | None, seconds: float = 1.0) -> None:
    """Cancel tasks and give them a moment; one that hangs in the client library is left."""
    running = {task for task in tasks if task is not None}
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running, timeout=seconds)


def _in_our_words(
    error: Exception, what: str
) -> BrokerError | MissingQueueError | LockedQueueError:
    text = _text(error)
    match error:
        case ChannelNotFoundEntity():
            return MissingQueueError(f"{what}: there is no such queue")
        case ChannelLockedResource():
            return LockedQueueError(f"{what}: the queue belongs to another connection ({text})")
        case ChannelPreconditionFailed():
            return _mismatch(text, what)
        case InvalidFrameError():  # the library's way to tell that the broker closed instead
            return BrokerUnreachableError(
                f"{what}: the broker closed the connection; the virtual host does not exist, or "
                "the user may not use it"
            )
        case ChannelAccessRefused():
            return BrokerError(f"{what}: the broker user lacks the permission ({text})")
        case _:
            return BrokerUnreachableError(f"{what}: {text}")


def _mismatch(text: str, what: str) -> BrokerError:
    found = _INEQUIVALENT.search(text)
    if found is None:
        return BrokerError(f"{what}: refused by the broker ({text})")
    return mismatch(
        found["queue"],
        found["argument"],
        found=_value(found["found"]),
        wanted=_value(found["wanted"]),
    )


def _value(text: str) -> str:
    typed = _TYPED.fullmatch(text)
    return (typed["value"] or "''") if typed is not None else text


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__


def cause_text(error: BaseException | None) -> str:
    """One line that says what happened to a connection, for logs and health."""
    if error is None:
        return "closed"
    if isinstance(error, asyncio.CancelledError):
        return "no frames within the heartbeat time"
    return _text(error).splitlines()[0]
