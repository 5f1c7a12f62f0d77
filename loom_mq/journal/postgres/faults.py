"""What asyncpg raises, in this package's own terms (J2, J4)."""

from __future__ import annotations

from typing import Final

import asyncpg

from loom_mq.errors import (
    CommitOutcomeUnknownError,
    ConfigurationError,
    JournalError,
    JournalUnreachableError,
    LoomError,
    StorageWriteError,
)

_ENDED: Final = frozenset({"57P01", "57P02", "57P03", "57P04", "57P05"})
"""The server ends a session with these: shutdown, crash, startup, dropped, idle."""
_BUSY: Final = frozenset({"57014", "55P03", "25006", "53300", "40001", "40P01"})
"""The server is there and wrote nothing for now: given up in time, locked, read-only
after a switch-over, full of connections, or worn out by conflicts."""
_SETUP: Final = frozenset({"28000", "28P01", "3D000", "42501"})
"""Refused credentials, no such database, no right: waiting will hardly help."""

_POOLED: Final = frozenset({"26000", "42P05"})
"""A prepared statement that is not there, or is there already: a transaction pooler stands
between. One that passes on no settings says so when we connect."""
_POOLER_HINT: Final = (
    "; if a transaction pooler such as PgBouncer stands between, set LOOM_STATEMENT_CACHE=false"
)

CONFLICTS: Final = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)
"""Nothing was written, and the same again will likely succeed."""


def state_of(error: BaseException) -> str:
    """The SQLSTATE of a server's error, empty for any other error."""
    return (error.sqlstate or "") if isinstance(error, asyncpg.PostgresError) else ""


def connection_lost(error: BaseException) -> bool:
    """Whether the connection died, or gave no answer: what it did is not known."""
    if isinstance(error, asyncpg.PostgresConnectionError | OSError | TimeoutError):
        return True
    if isinstance(error, asyncpg.InterfaceError):
        return not isinstance(error, ValueError)  # a ValueError never got to the server
    return isinstance(error, asyncpg.InternalClientError) or state_of(error) in _ENDED


def refused_by_server(error: BaseException) -> bool:
    """Whether the connection is as good as before: the server or asyncpg said no."""
    if connection_lost(error):
        return False
    return isinstance(error, asyncpg.PostgresError | ValueError | TypeError | OverflowError)


def unreachable(error: Exception, where: str) -> JournalUnreachableError:
    """No connection can be had.

    Args:
        error: what connecting raised.
        where: the server, without secrets.
    """
    if isinstance(error, ValueError | asyncpg.ClientConfigurationError):
        # its text may hold a piece of the address, password included
        return _mistaken(ConfigurationError(f"the address of the journal at {where} is wrong"))
    # poolers say 08P01 to everything, a server that is away for a moment included
    pooled = state_of(error) == "08P01" and "startup parameter" in str(error)
    if pooled or state_of(error) in _SETUP:
        hint = _POOLER_HINT if pooled else ""
        mistake = ConfigurationError(f"the journal at {where} refused us: {error}{hint}")
        mistake.__cause__ = error
        return _mistaken(mistake)
    reason = "there was no answer in time" if isinstance(error, TimeoutError) else f"{error}"
    failure = JournalUnreachableError(f"the journal at {where} cannot be reached: {reason}")
    failure.__cause__ = error
    return failure


def _mistaken(mistake: ConfigurationError) -> JournalUnreachableError:
    failure = JournalUnreachableError(
        f"{mistake.message}; check user, password, database and parameters of LOOM_JOURNAL"
    )
    failure.__cause__ = mistake
    return failure


def translate(error: Exception, where: str, *, writing: bool) -> LoomError:
    """What a failed call means; the cause is attached.

    Args:
        error: what the call raised.
        where: the server, without secrets.
        writing: whether the call may have written something.
    """
    failure = _judge(error, where, writing)
    failure.__cause__ = error
    return failure


def _judge(error: Exception, where: str, writing: bool) -> LoomError:
    if connection_lost(error):
        what = "gave no answer in time" if isinstance(error, TimeoutError) else "was cut off"
        if writing:
            return CommitOutcomeUnknownError(
                f"the journal at {where} {what} during a write, which may or may not have "
                "happened; writing the same again is safe"
            )
        return JournalUnreachableError(f"the journal at {where} {what}: {error}")
    state = state_of(error)
    if state in _BUSY:
        return JournalUnreachableError(f"the journal at {where} cannot do it now: {error}")
    if state in _POOLED:
        return JournalUnreachableError(f"the journal at {where} failed: {error}{_POOLER_HINT}")
    shown = f"{error} [{state}]" if state else f"{error}"
    if writing:
        return StorageWriteError(f"the journal at {where} could not write: {shown}")
    return JournalError(f"the journal at {where} could not read: {shown}")
