"""What a journal must do. `loom_mq.testing.conformance.journal` holds a store to it.

Every method that takes a sequence is one round trip and one commit, and answers with
one verdict per item in the order given: an item that is refused never touches
another (J3). A verdict holds its refusal as an exception object, unraised.

Methods raise `StorageWriteError` (its cause is the storage's own error) when nothing
of the batch was written, `CommitOutcomeUnknownError` when the connection died during
the commit (J4: sending the very same batch again is safe), and
`JournalUnreachableError` when no connection can be had.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from loom_mq.errors import LoomError
from loom_mq.journal.requests import (
    CLAIM_PAGE,
    Admission,
    AdmitVerdict,
    Append,
    AppendVerdict,
    Claim,
    Claimed,
    ClaimIntent,
    ClaimVerdict,
    DeadLetter,
    DeliverVerdict,
    DueTimer,
    IndexUpdate,
    ListQuery,
    Planting,
    Renewal,
    Rewrite,
    Runnable,
    WatchVerdict,
)
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

__all__ = [
    "CLAIM_PAGE",
    "Admission",
    "AdmitVerdict",
    "Append",
    "AppendVerdict",
    "Claim",
    "ClaimIntent",
    "ClaimVerdict",
    "Claimed",
    "DeadLetter",
    "DeliverVerdict",
    "DueTimer",
    "IndexUpdate",
    "Journal",
    "LeaseSession",
    "ListQuery",
    "Planting",
    "Renewal",
    "Rewrite",
    "Runnable",
    "WatchVerdict",
]


class LeaseSession(Protocol):
    """One process's lease, on a connection of its own.

    It is opened and used on the event loop of a thread that user code cannot block
    (F7). Where the storage can tell that the connection is gone (a session lock), it
    does, see `Journal.lapse_if_gone`.
    """

    async def renew(self, ttl: float) -> Renewal:
        """Extend the lease to now + `ttl` seconds by the journal's clock."""

    async def drain(self) -> None:
        """Show on the worker's row that it takes nothing new; the lease stays as it is."""

    async def retire(self) -> None:
        """End the lease at once and release what is still held (graceful stop).

        Executions still owned become runnable at once; the worker's row stays until
        nothing names it.
        """

    async def close(self) -> None:
        """Close the connection without ending the lease."""


class Journal(Protocol):
    """The shared truth."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    async def now(self) -> int:
        """Journal time, microseconds since the epoch."""

    async def admit(self, admissions: Sequence[Admission]) -> list[AdmitVerdict]:
        """Create pending executions; the same id twice is one execution (F2).

        The first of two equal ids in one batch creates, the second finds it. A
        found, not ended execution gets the waiter added; an ended one does not.
        """

    async def append(self, appends: Sequence[Append]) -> list[AppendVerdict]:
        """Append under fence and sequence (J2, J3, J4); at most one per execution.

        A terminal status empties the inbox and the timers of the execution. A
        park with unread inbox items gets `hint_at` = now, else `hint_at` is cleared.
        """

    async def claim(self, claims: Sequence[Claim]) -> list[ClaimVerdict]:
        """Take over by compare-and-set (J5): fence + 1, new owner, attempt + 1.

        Refused while the owner's lease runs, unless it is the claimant itself,
        `preempt` is set or the attempt's deadline has passed (F7). A claim that was
        committed but whose answer was lost may be sent again: an execution already
        held by this owner under `expected_fence` + 1 answers as claimed.
        """

    async def acquire_fence(self, key: ExecutionKey, expected: int | None) -> int:
        """Take the next fence, whoever holds the execution (J5); for repair and tests.

        Args:
            key: the execution.
            expected: the fence to supersede; None supersedes whichever stands.

        Raises:
            StaleFenceError: another moved it first.
            UnknownExecutionError: no such execution.
        """

    async def defer(
        self,
        keys: Sequence[ExecutionKey],
        owner: str,
        delay: float | None,
        fences: Sequence[int] | None = None,
        trouble: str | None = None,
    ) -> None:
        """Give executions held by `owner` (or by nobody) back: the owner is cleared.

        Args:
            keys: which; others' are left alone.
            owner: who gives back.
            delay: they are sent again after so many seconds; None leaves `hint_at` as it
                is (the claim had cleared it, so what stands there came since).
            fences: the fence of each key; one that has moved since is left alone, so
                that a belated giving back cannot take a newer claim away.
            trouble: why nothing could be done with them (K3); stays on the row until
                the next append. None leaves what is there.
        """

    async def get(self, keys: Sequence[ExecutionKey]) -> list[ExecutionRow | None]:
        """Index rows."""

    async def read(
        self, key: ExecutionKey, *, first: int = 0, limit: int = CLAIM_PAGE, newest: bool = False
    ) -> list[Envelope]:
        """A page of the log.

        Args:
            key: whose log.
            first: lowest sequence wanted.
            limit: events at most.
            newest: take the last `limit` events (>= first), still in rising order.
        """

    async def find(self, query: ListQuery) -> list[ExecutionRow]:
        """Executions, newest first."""

    async def count(self, tenant: str | None = None) -> dict[Status, int]:
        """How many executions stand in each status (statuses with none left out)."""

    async def deliver(
        self, items: Sequence[InboxItem], resend_after: float = 5.0
    ) -> list[DeliverVerdict]:
        """Put items in inboxes (K7, K13). A suspended or pending execution gets
        `hint_at` = now + `resend_after`, so that a lost wake package is sent again.
        """

    async def inbox(self, keys: Sequence[ExecutionKey]) -> list[tuple[InboxItem, ...]]:
        """Unread items, oldest first."""

    async def discard(self, items: Sequence[tuple[ExecutionKey, str]]) -> None:
        """Delete inbox items that were refused."""

    async def watch(self, key: ExecutionKey, waiter: Waiter | None) -> WatchVerdict:
        """Register a waiter, or learn that the execution has ended.

        With `waiter` None it only looks. At most 64 waiters are kept, the newest.
        """

    async def lease(self, worker: WorkerRecord, ttl: float) -> LeaseSession:
        """Register a process and open its lease, `ttl` seconds long."""

    async def workers(self) -> list[WorkerRecord]:
        """Processes whose lease has not lapsed."""

    async def register_flows(self, flows: Sequence[FlowRecord]) -> None:
        """Make flows known; they stay known."""

    async def flows(self) -> list[FlowRecord]:
        """Flows that any worker has ever registered."""

    async def lapse_if_gone(self, owner: str) -> bool:
        """End a lease early if its holder's session is provably gone.

        Returns:
            Whether the lease has lapsed now (by this call or before). A store that
            cannot know answers by the lease's own time alone.
        """

    async def take_abandoned(
        self, *, limit: int, resend_after: float, max_recoveries: int
    ) -> list[Runnable]:
        """Detach executions from holders whose lease has lapsed or whose deadline has
        passed (F7): owner cleared, `hint_at` = now + `resend_after`. The fence stays:
        the next claim moves it. Executions that have reached `max_recoveries` are
        left as they are (F8). Two callers never get the same one.
        """

    async def take_unsent(
        self, *, limit: int, resend_after: float, backoff_limit: float, queues: Sequence[str] | None
    ) -> list[Runnable]:
        """Executions whose `hint_at` has passed and that nobody holds: count the hint
        and set the next `hint_at` = now + min(`resend_after` * 2**hints,
        `backoff_limit`).

        Args:
            limit: how many at most.
            resend_after: seconds.
            backoff_limit: seconds.
            queues: only these queues; None for all.
        """

    async def exhausted(self, max_recoveries: int, limit: int) -> list[ExecutionRow]:
        """Running executions given up after `max_recoveries` recoveries (F8)."""

    async def due_timers(self, *, limit: int, hold: float) -> list[DueTimer]:
        """Due timers, earliest first, held from other callers for `hold` seconds (F9).

        A suspended execution among them gets `hint_at` = now + `hold`: should its wake
        be lost once the timer's row is gone, it is sent again like any package.
        """

    async def drop_timers(self, timers: Sequence[tuple[ExecutionKey, int]]) -> None:
        """Delete timers whose fire was published."""

    async def arm_timers(self, timers: Sequence[tuple[ExecutionKey, int]]) -> list[bool]:
        """Arm timers that are missing (F9): idempotent per execution and due time.

        One that is there stays as it is, held or not. Only a suspended execution gets any:
        for all others nobody waits.

        Returns:
            Of each, whether it was missing and is armed now.
        """

    async def next_timer(self) -> int | None:
        """The earliest due time, of timers and of schedules, that is not held, in journal time."""

    async def put_schedule(self, row: ScheduleRow, expected: int | None) -> ScheduleRow:
        """Write a schedule by compare-and-set on its revision (F9).

        Its due time takes the place of the one before, in the same transaction. The same
        write again, after a commit that nobody heard of, is a success (J4).

        Args:
            row: what is to be there; revision and times are the journal's affair.
            expected: the revision that it changes; None for one that must not be there.

        Returns:
            What is there now.

        Raises:
            ScheduleExistsError: it was to be new, and is there.
            StaleScheduleError: somebody else has changed it.
            UnknownScheduleError: it is gone.
        """

    async def drop_schedule(self, key: ScheduleKey, expected: int | None = None) -> bool:
        """Delete a schedule with its due time; False when there is none.

        Args:
            key: which.
            expected: only this revision of it; None for whichever is there.

        Raises:
            StaleScheduleError: it has another revision.
        """

    async def schedule(self, key: ScheduleKey) -> ScheduleRow | None:
        """One schedule; None when there is none."""

    async def schedules(
        self, tenant: str | None = None, *, after: ScheduleKey | None = None, limit: int = 100
    ) -> list[ScheduleRow]:
        """Schedules by tenant and id, in the order of their bytes.

        Args:
            tenant: whose; None for everybody's.
            after: only those that sort behind this one.
            limit: how many at most.
        """

    async def due_schedules(self, *, limit: int, hold: float) -> list[ScheduleRow]:
        """Schedules that are due by the journal's clock, earliest first, held from other
        callers for `hold` seconds or until they are written (F9).
        """

    async def record_dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        """Keep dead letters; the same id twice is one."""

    async def dead_letters(self, limit: int = 50) -> list[DeadLetter]:
        """Dead letters, newest first."""

    async def drop_dead_letters(self, ids: Sequence[str]) -> list[bool]:
        """Delete dead letters; of each, whether this very call did."""

    async def save_snapshots(self, snapshots: Sequence[tuple[ExecutionKey, Snapshot]]) -> None:
        """Keep stored folds, one per execution, the newest (J7).

        One that reaches further than its execution's log, or less far than the one that
        is there, is dropped without a word, as is one of an unknown execution. No fence
        is asked: the fold of a durable log is true whoever made it.
        """

    async def snapshot(self, key: ExecutionKey) -> Snapshot | None:
        """The newest snapshot."""

    async def plant(self, plantings: Sequence[Planting]) -> list[LoomError | None]:
        """Create executions with ready logs (J8). All or nothing per execution.

        Refusals: `ExecutionAlreadyExistsError`.
        """

    async def rewrite(self, rewrites: Sequence[Rewrite]) -> list[LoomError | None]:
        """Replace the logs of executions that have ended (J8).

        Refusals: `ExecutionNotEndedError`, `UnknownExecutionError`, and
        `DuplicateSequenceError` when the new log does not end where the present one does
        or does not begin where its snapshot ends.
        """

    async def delete(self, keys: Sequence[ExecutionKey]) -> list[LoomError | None]:
        """Delete executions that have ended, with all that belongs to them (J8).

        Refusals: `ExecutionNotEndedError`, `UnknownExecutionError`.
        """
