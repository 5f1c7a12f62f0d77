"""A connection to the embedded journal and the one thread that uses it.

Every call is one function on that thread and one transaction. Commits are synchronous
to the disk (``synchronous=FULL`` on a write-ahead log): what was answered survives a
killed process and a power failure.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from sqlite3 import Connection
from typing import Concatenate, Final, ParamSpec, TypeVar

from loom_mq.clock import Clock
from loom_mq.errors import (
    CommitOutcomeUnknownError,
    ConfigurationError,
    JournalUnreachableError,
    LoomError,
    StorageWriteError,
)

P = ParamSpec("P")
R = TypeVar("R")

OLDEST_SQLITE: Final = (3, 38, 0)
_PATIENCE_OF_SQLITE: Final = 0.5
"""Seconds that SQLite itself waits for a lock; above it we count, see `busy_timeout`."""
_PAUSE: Final = 0.005
_AUTO_CHECKPOINT: Final = 4_000
"""Pages of log after which SQLite moves them into the file, without waiting for readers."""
_LOG_KEPT: Final = 16 << 20
_LOG_LIMIT: Final = 64 << 20
"""Bytes of log after which it is cut off, as soon as no reader needs it."""
_WRITES_PER_LOOK: Final = 64
_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


class Database:
    """One connection on one thread; usable from any event loop.

    Args:
        path: the file.
        clock: journal time, read inside each transaction.
        busy_timeout: seconds of patience with another process that writes.
        name: of the thread.
        read_only: for a connection that only looks.
    """

    def __init__(
        self, path: Path, clock: Clock, *, busy_timeout: float, name: str, read_only: bool
    ) -> None:
        self._path = path
        self._log = path.with_name(path.name + "-wal")
        self._clock = clock
        self._busy_timeout = busy_timeout
        self._read_only = read_only
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._db: Connection | None = None
        self._writes = 0

    async def open(self, prepare: Callable[[Connection], None] | None = None) -> None:
        """Connect.

        Args:
            prepare: runs on the fresh connection in a writing transaction.

        Raises:
            ConfigurationError: the file cannot be opened, or is none of ours.
            JournalUnreachableError: another process keeps it busy.
        """
        await self._on_thread(lambda: self._open(prepare))

    async def write(
        self, work: Callable[Concatenate[Connection, int, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run `work(db, now, *args)` as one durable transaction.

        Raises:
            StorageWriteError: nothing of it was written.
            CommitOutcomeUnknownError: the commit itself failed (J4).
            JournalUnreachableError: another process writes all the time, or this journal
                is closed.
        """
        return await self._on_thread(
            lambda: self._write(lambda db: work(db, self._clock.now(), *args, **kwargs))
        )

    async def read(
        self, work: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run `work(db, *args)` over one snapshot of the file.

        Raises:
            JournalUnreachableError: the file cannot be read, or this journal is closed.
        """
        return await self._on_thread(lambda: self._read(lambda db: work(db, *args, **kwargs)))

    async def close(self, afterwards: Callable[[], None] | None = None) -> None:
        """Finish what was asked for, and close; not held up by the caller's cancellation.

        Args:
            afterwards: runs on the thread when the connection is closed.
        """
        closing = asyncio.get_running_loop().run_in_executor(
            self._pool, lambda: self._close(afterwards)
        )
        self._pool.shutdown(wait=False)
        await asyncio.shield(closing)

    async def _on_thread(self, work: Callable[[], R]) -> R:
        loop = asyncio.get_running_loop()
        try:
            working = loop.run_in_executor(self._pool, work)
        except RuntimeError as error:
            raise JournalUnreachableError(f"the journal {str(self._path)!r} is closed") from error
        return await working

    # ---- on the thread --------------------------------------------------------------

    def _open(self, prepare: Callable[[Connection], None] | None) -> None:
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            oldest = ".".join(str(part) for part in OLDEST_SQLITE)
            raise ConfigurationError(
                f"this Python has SQLite {sqlite3.sqlite_version}; the embedded journal needs "
                f"{oldest} or newer"
            )
        try:
            self._db = sqlite3.connect(
                self._path,
                timeout=_PATIENCE_OF_SQLITE,
                isolation_level=None,
                cached_statements=256,
            )
            self._until_free(self._set_up)
            if prepare is not None:
                self._write(prepare)
        except BaseException as error:
            self._close(None)
            if isinstance(error, StorageWriteError) and error.__cause__ is not None:
                error = error.__cause__
            if isinstance(error, sqlite3.Error):
                raise ConfigurationError(
                    f"the journal {str(self._path)!r} cannot be opened: {error}; it must be a "
                    "file made by loom-mq, in a folder that exists and can be written"
                ) from error
            raise

    def _set_up(self, db: Connection) -> None:
        (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise ConfigurationError(
                f"the journal {str(self._path)!r} cannot have a write-ahead log: it must be a "
                "file on a local disk"
            )
        for pragma in (
            "synchronous = FULL",
            "fullfsync = ON",
            f"journal_size_limit = {_LOG_KEPT}",
            f"wal_autocheckpoint = {_AUTO_CHECKPOINT}",
            "cache_size = -16384",
            "temp_store = MEMORY",
            f"query_only = {int(self._read_only)}",
        ):
            db.execute(f"PRAGMA {pragma}").fetchall()

    def _write(self, work: Callable[[Connection], R]) -> R:
        db = self._connection()
        try:
            self._until_free(lambda db: db.execute("BEGIN IMMEDIATE"))
        except sqlite3.Error as error:
            raise self._failed(StorageWriteError, "began no transaction", error) from error
        try:
            answer = work(db)
        except LoomError:
            _roll_back(db)
            raise
        except Exception as error:
            _roll_back(db)
            raise self._failed(StorageWriteError, "refused a write", error) from error
        except BaseException:
            _roll_back(db)
            raise
        try:
            db.execute("COMMIT")
        except sqlite3.Error as error:
            _roll_back(db)
            raise self._failed(CommitOutcomeUnknownError, "failed in a commit", error) from error
        self._writes += 1
        if self._writes % _WRITES_PER_LOOK == 0:
            self._bound_log(db)
        return answer

    def _read(self, work: Callable[[Connection], R]) -> R:
        def over_one_snapshot(db: Connection) -> R:
            db.execute("BEGIN")
            try:
                return work(db)
            finally:
                _roll_back(db)

        try:
            return self._until_free(over_one_snapshot)
        except sqlite3.Error as error:
            raise self._failed(JournalUnreachableError, "cannot be read", error) from error

    def _until_free(self, work: Callable[[Connection], R]) -> R:
        """Do what is harmless to repeat until no other process is in its way (C97)."""
        db = self._connection()
        deadline = time.monotonic() + self._busy_timeout
        while True:
            try:
                return work(db)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in _BUSY:
                    raise
                if time.monotonic() >= deadline:
                    raise JournalUnreachableError(
                        f"another process kept the journal {str(self._path)!r} busy for "
                        f"{self._busy_timeout:g} s; nothing was written"
                    ) from error
                time.sleep(_PAUSE)

    def _bound_log(self, db: Connection) -> None:
        """Cut off a log that a long read of another process made grow."""
        try:
            if self._log.stat().st_size > _LOG_LIMIT:
                self._cut_log(db)
        except OSError:
            return  # the log is not there

    def _cut_log(self, db: Connection) -> None:
        """Empty the log if nobody reads from it; never waits."""
        try:
            db.execute("PRAGMA busy_timeout = 0").fetchall()
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            db.execute(f"PRAGMA busy_timeout = {int(_PATIENCE_OF_SQLITE * 1000)}").fetchall()
        except sqlite3.Error:
            return  # it is only tidying; the next one may succeed

    def _close(self, afterwards: Callable[[], None] | None) -> None:
        db, self._db = self._db, None
        try:
            if db is not None:
                if not self._read_only:
                    self._cut_log(db)
                db.close()
        finally:
            if afterwards is not None:
                afterwards()

    def _connection(self) -> Connection:
        if self._db is None:
            raise JournalUnreachableError(f"the journal {str(self._path)!r} is not open")
        return self._db

    def _failed(self, kind: type[LoomError], what: str, error: Exception) -> LoomError:
        return kind(f"the journal {str(self._path)!r} {what}: {error}")


def _roll_back(db: Connection) -> None:
    try:
        if db.in_transaction:
            db.execute("ROLLBACK")
    except sqlite3.Error:
        return  # a connection that cannot roll back has nothing to roll back
