"""The journal in one SQLite file: for a whole engine in one process.

What was answered is on the disk: a commit survives ``kill -9`` and a power failure.
One engine at a time drives a file; beside it, others may look on and put items into
inboxes. Writes are one after another on one thread, and reads have a connection of
their own, so that a list never waits behind a write.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from sqlite3 import Connection
from types import TracebackType
from typing import Self

from loom_mq.clock import Clock, JournalClock
from loom_mq.errors import ConfigurationError, LoomError
from loom_mq.journal.protocol import (
    CLAIM_PAGE,
    Admission,
    AdmitVerdict,
    Append,
    AppendVerdict,
    Claim,
    ClaimVerdict,
    DeadLetter,
    DeliverVerdict,
    DueTimer,
    LeaseSession,
    ListQuery,
    Planting,
    Renewal,
    Rewrite,
    Runnable,
    WatchVerdict,
)
from loom_mq.journal.sqlite_ops import events, fleet, holding, lifecycle, logs, schedules, sweeps
from loom_mq.journal.sqlite_ops.database import Database
from loom_mq.journal.sqlite_ops.lockfile import FileLock
from loom_mq.journal.sqlite_ops.migrate import migrate
from loom_mq.model.events import Envelope
from loom_mq.model.execution import (
    ExecutionKey,
    ExecutionRow,
    FlowRecord,
    InboxItem,
    Status,
    Waiter,
    WorkerRecord,
)
from loom_mq.model.schedules import ScheduleKey, ScheduleRow
from loom_mq.model.snapshots import Snapshot


class SqliteLease:
    """A lease in the file; see `journal.protocol.LeaseSession`."""

    def __init__(self, database: Database, owner: str) -> None:
        self._database = database
        self._owner = owner

    async def renew(self, ttl: float) -> Renewal:
        """Extend the lease, unless it has lapsed: then it is lost (F7)."""
        return await self._database.write(fleet.renew, self._owner, ttl)

    async def drain(self) -> None:
        """Show on the worker's row that it takes nothing new."""
        await self._database.write(fleet.drain, self._owner)

    async def retire(self) -> None:
        """End the lease at once and release what is still held."""
        await self._database.write(fleet.retire, self._owner)

    async def close(self) -> None:
        """The connection is the journal's and stays."""


class SqliteJournal:
    """See the module's docstring.

    Args:
        path: the file; made when it is not there, its folder is not.
        exclusive: this is the engine: take the lock beside the file, bring its schema up
            to date, and end every lease in it, because whoever held one is gone. Without
            it, only look on and deliver.
        busy_timeout: seconds of patience with another process that writes (C97).
        clock: journal time; the wall clock of this host unless given.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        exclusive: bool = True,
        busy_timeout: float = 10.0,
        clock: Clock | None = None,
    ) -> None:
        self._path = Path(path)
        self._exclusive = exclusive
        self._clock = clock if clock is not None else JournalClock()
        self._lock = FileLock(self._path)
        self._writer = self._database("loom-sqlite-writer", busy_timeout, read_only=False)
        self._reader = self._database("loom-sqlite-reader", busy_timeout, read_only=True)

    def _database(self, name: str, busy_timeout: float, *, read_only: bool) -> Database:
        return Database(
            self._path, self._clock, busy_timeout=busy_timeout, name=name, read_only=read_only
        )

    async def __aenter__(self) -> Self:
        """Open the file.

        Raises:
            ConfigurationError: another engine has it, or it cannot be opened.
            SchemaVersionError: a newer release wrote it.
            JournalUnreachableError: another process keeps it busy.
        """
        if str(self._path) == ":memory:":
            raise ConfigurationError("a SQLite journal needs a file; MemoryJournal needs none")
        try:
            if self._exclusive:
                self._lock.acquire()
            await self._writer.open(self._prepare)
            await self._reader.open()
        except BaseException:
            await self._close()
            raise
        return self

    def _prepare(self, db: Connection) -> None:
        migrate(db, self._path, upgrade=self._exclusive)
        if self._exclusive:
            fleet.begin_alone(db, self._clock.now())

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Finish what was asked for, and close the file."""
        await self._close()

    async def _close(self) -> None:
        try:
            await self._reader.close()
        finally:
            # the lock goes last, on the writer's thread: after its connection
            await self._writer.close(self._lock.release)

    async def now(self) -> int:
        """Journal time, microseconds since the epoch: this host's."""
        return self._clock.now()

    # ---- executions -----------------------------------------------------------------

    async def admit(self, admissions: Sequence[Admission]) -> list[AdmitVerdict]:
        """Create pending executions; the same id twice is one execution (F2)."""
        return await self._writer.write(logs.admit, admissions)

    async def append(self, appends: Sequence[Append]) -> list[AppendVerdict]:
        """Append under fence and sequence (J2, J3, J4)."""
        return await self._writer.write(logs.append, appends)

    async def claim(self, claims: Sequence[Claim]) -> list[ClaimVerdict]:
        """Take over by compare-and-set (J5, F7)."""
        return await self._writer.write(holding.claim, claims)

    async def acquire_fence(self, key: ExecutionKey, expected: int | None) -> int:
        """Take the next fence, whoever holds the execution (J5); for repair and tests.

        Raises:
            StaleFenceError: another moved it first.
            UnknownExecutionError: no such execution.
        """
        return await self._writer.write(holding.acquire_fence, key, expected)

    async def defer(
        self,
        keys: Sequence[ExecutionKey],
        owner: str,
        delay: float | None,
        fences: Sequence[int] | None = None,
        trouble: str | None = None,
    ) -> None:
        """Give executions back; a hint set by mail since the claim stays."""
        await self._writer.write(holding.defer, keys, owner, delay, fences, trouble)

    async def get(self, keys: Sequence[ExecutionKey]) -> list[ExecutionRow | None]:
        """Index rows."""
        return await self._reader.read(holding.get, keys)

    async def read(
        self, key: ExecutionKey, *, first: int = 0, limit: int = CLAIM_PAGE, newest: bool = False
    ) -> list[Envelope]:
        """A page of the log."""
        return await self._reader.read(events.read, key, first, limit, newest)

    # ---- inbox and waiters ------------------------------------------------------------

    async def deliver(
        self, items: Sequence[InboxItem], resend_after: float = 5.0
    ) -> list[DeliverVerdict]:
        """Put items in inboxes (K7, K13); an id that was taken is a duplicate, too."""
        return await self._writer.write(holding.deliver, items, resend_after)

    async def inbox(self, keys: Sequence[ExecutionKey]) -> list[tuple[InboxItem, ...]]:
        """Unread items, oldest first."""
        return await self._reader.read(holding.inbox, keys)

    async def discard(self, items: Sequence[tuple[ExecutionKey, str]]) -> None:
        """Delete inbox items that were refused; their ids may come in again."""
        await self._writer.write(holding.discard, items)

    async def watch(self, key: ExecutionKey, waiter: Waiter | None) -> WatchVerdict:
        """Register a waiter, or learn that the execution has ended."""
        if waiter is None:
            return await self._reader.read(holding.watch, 0, key, None)
        return await self._writer.write(holding.watch, key, waiter)

    # ---- fleet ------------------------------------------------------------------------

    async def lease(self, worker: WorkerRecord, ttl: float) -> LeaseSession:
        """Register a process and open its lease, `ttl` seconds long (F7)."""
        await self._writer.write(fleet.register_worker, worker, ttl)
        return SqliteLease(self._writer, worker.owner)

    async def workers(self) -> list[WorkerRecord]:
        """Processes whose lease has not lapsed, by name."""
        return await self._reader.read(fleet.workers, self._clock.now())

    async def lapse_if_gone(self, owner: str) -> bool:
        """Whether the lease has lapsed, by its own time alone: there is no session to lose."""
        return await self._reader.read(fleet.has_lapsed, self._clock.now(), owner)

    async def register_flows(self, flows: Sequence[FlowRecord]) -> None:
        """Make flows known; they stay known (F2)."""
        await self._writer.write(fleet.register_flows, flows)

    async def flows(self) -> list[FlowRecord]:
        """Flows that any worker has ever registered, by name and version."""
        return await self._reader.read(fleet.flows)

    async def record_dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        """Keep dead letters; the same id twice is one (F2)."""
        await self._writer.write(fleet.record_dead_letters, letters)

    async def dead_letters(self, limit: int = 50) -> list[DeadLetter]:
        """Dead letters, newest first."""
        return await self._reader.read(fleet.dead_letters, limit)

    async def drop_dead_letters(self, ids: Sequence[str]) -> list[bool]:
        """Delete dead letters; of each, whether this very call did."""
        return await self._writer.write(fleet.drop_dead_letters, ids)

    # ---- sweeps and timers ------------------------------------------------------------

    async def take_abandoned(
        self, *, limit: int, resend_after: float, max_recoveries: int
    ) -> list[Runnable]:
        """Detach executions from dead or wedged holders (F7, F8)."""
        return await self._writer.write(sweeps.take_abandoned, limit, resend_after, max_recoveries)

    async def take_unsent(
        self, *, limit: int, resend_after: float, backoff_limit: float, queues: Sequence[str] | None
    ) -> list[Runnable]:
        """Count and put off the hints that have come due and that nobody has followed."""
        return await self._writer.write(
            sweeps.take_unsent, limit, resend_after, backoff_limit, queues
        )

    async def exhausted(self, max_recoveries: int, limit: int) -> list[ExecutionRow]:
        """Executions left with their dead holder after `max_recoveries` recoveries (F8)."""
        return await self._reader.read(sweeps.exhausted, self._clock.now(), max_recoveries, limit)

    async def due_timers(self, *, limit: int, hold: float) -> list[DueTimer]:
        """Due timers, earliest first, held from other callers for `hold` seconds (F9)."""
        return await self._writer.write(sweeps.due_timers, limit, hold)

    async def drop_timers(self, timers: Sequence[tuple[ExecutionKey, int]]) -> None:
        """Delete timers whose fire was published; one armed again meanwhile stays."""
        await self._writer.write(sweeps.drop_timers, timers)

    async def arm_timers(self, timers: Sequence[tuple[ExecutionKey, int]]) -> list[bool]:
        """Arm timers that are missing, of executions that are suspended (F9)."""
        return await self._writer.write(sweeps.arm_timers, timers)

    async def next_timer(self) -> int | None:
        """The earliest due time, of timers and of schedules, that is not held."""
        return await self._reader.read(sweeps.next_timer, self._clock.now())

    # ---- schedules --------------------------------------------------------------------

    async def put_schedule(self, row: ScheduleRow, expected: int | None) -> ScheduleRow:
        """Write a schedule by compare-and-set on its revision (F9, J4)."""
        return await self._writer.write(schedules.put_schedule, row, expected)

    async def drop_schedule(self, key: ScheduleKey, expected: int | None = None) -> bool:
        """Delete a schedule."""
        return await self._writer.write(schedules.drop_schedule, key, expected)

    async def schedule(self, key: ScheduleKey) -> ScheduleRow | None:
        """One schedule."""
        return await self._reader.read(schedules.schedule, 0, key)

    async def schedules(
        self, tenant: str | None = None, *, after: ScheduleKey | None = None, limit: int = 100
    ) -> list[ScheduleRow]:
        """Schedules by tenant and id."""
        return await self._reader.read(schedules.schedules, 0, tenant, after, limit)

    async def due_schedules(self, *, limit: int, hold: float) -> list[ScheduleRow]:
        """Schedules that are due, earliest first, held for `hold` seconds (F9)."""
        return await self._writer.write(schedules.due_schedules, limit, hold)

    # ---- snapshots and whole logs -------------------------------------------------------

    async def save_snapshots(self, snapshots: Sequence[tuple[ExecutionKey, Snapshot]]) -> None:
        """Keep stored folds, one per execution, the newest (J7)."""
        await self._writer.write(lifecycle.save_snapshots, snapshots)

    async def snapshot(self, key: ExecutionKey) -> Snapshot | None:
        """The newest snapshot."""
        return await self._reader.read(lifecycle.snapshot, key)

    async def plant(self, plantings: Sequence[Planting]) -> list[LoomError | None]:
        """Create executions with ready logs (J8)."""
        return await self._writer.write(lifecycle.plant, plantings)

    async def rewrite(self, rewrites: Sequence[Rewrite]) -> list[LoomError | None]:
        """Replace the logs of executions that have ended (J8)."""
        return await self._writer.write(lifecycle.rewrite, rewrites)

    async def delete(self, keys: Sequence[ExecutionKey]) -> list[LoomError | None]:
        """Delete executions that have ended, with all that belongs to them (J8)."""
        return await self._writer.write(lifecycle.delete, keys)

    # ---- lists ------------------------------------------------------------------------

    async def count(self, tenant: str | None = None) -> dict[Status, int]:
        """How many executions stand in each status."""
        return await self._reader.read(sweeps.count, tenant)

    async def find(self, query: ListQuery) -> list[ExecutionRow]:
        """Executions, newest first."""
        return await self._reader.read(sweeps.newest, query)
