"""The journal in memory: for the simulator, for tests, and for trying things out.

It asks no clock but the one it is given and waits for nothing, so every method is
atomic and a simulation owns its time. It belongs to one event loop, and everything in
it is gone with the object.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from loom_mq.errors import LoomError
from loom_mq.journal import transitions, verdicts
from loom_mq.journal.memory_lifecycle import MemoryLifecycle
from loom_mq.journal.memory_store import Entry
from loom_mq.journal.packing import page_range
from loom_mq.journal.protocol import (
    CLAIM_PAGE,
    Admission,
    AdmitVerdict,
    Append,
    AppendVerdict,
    Claim,
    Claimed,
    ClaimVerdict,
    DeliverVerdict,
    ListQuery,
    WatchVerdict,
)
from loom_mq.journal.verdicts import Grant
from loom_mq.model.events import Envelope
from loom_mq.model.execution import ExecutionKey, ExecutionRow, InboxItem, Status, Waiter


class MemoryJournal(MemoryLifecycle):
    """See the module's docstring.

    Args:
        clock: journal time.
    """

    async def __aenter__(self) -> Self:
        """Nothing needs opening."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing needs closing."""

    # ---- writes ---------------------------------------------------------------------

    async def admit(self, admissions: Sequence[Admission]) -> list[AdmitVerdict]:
        """Create pending executions; the same id twice is one execution (F2)."""
        return [self._admit(each, self._clock.now()) for each in admissions]

    def _admit(self, admission: Admission, now: int) -> AdmitVerdict:
        entry = self._store.entries.get(admission.key)
        row = None
        if entry is None:
            row = transitions.admitted(admission, now)
        elif verdicts.makes_way(entry.row, admission) and self._retire(entry, admission):
            row = transitions.succeeded(entry.row, admission, now)
        created = row is not None
        if row is not None:
            entry = self._store.add(row, admission.start)
        assert entry is not None  # found or made
        same = entry.row.input_digest == admission.input_digest
        if admission.waiter is not None and same and not entry.row.status.terminal:
            entry.waiters = transitions.with_waiter(entry.waiters, admission.waiter)
        return AdmitVerdict(entry.row, created, same)

    def _retire(self, entry: Entry, admission: Admission) -> bool:
        """Whether an execution is now kept under another id: it must be free (K16)."""
        free = ExecutionKey(admission.key.tenant, admission.retire_as) not in self._store.entries
        if free:
            self._store.rename(entry, admission.retire_as)
        return free

    async def append(self, appends: Sequence[Append]) -> list[AppendVerdict]:
        """Append under fence and sequence (J2, J3, J4)."""
        return [self._append(each, self._clock.now()) for each in appends]

    def _append(self, append: Append, now: int) -> AppendVerdict:
        standing = self._store.standing(append.key, now)
        recorded: tuple[bytes, ...] = ()
        first_id_known = False
        if standing is not None:
            entry = self._store.entries[append.key]
            if verdicts.may_be_recorded(standing.row, append):
                span = entry.span(append.events[0].seq, append.events[-1].seq + 1)
                recorded = tuple(event.id for event in span)
            first_id_known = append.events[0].id in entry.first_ids
        grant = verdicts.judge_append(
            standing, append, recorded=recorded, first_id_known=first_id_known, now=now
        )
        if isinstance(grant, LoomError):
            return AppendVerdict(error=grant)
        if grant is Grant.NEW:
            self._write(entry, append, now)
        waiters = entry.waiters if append.index.status.terminal else ()
        return AppendVerdict(inbox=len(entry.inbox), waiters=waiters)

    def _write(self, entry: Entry, append: Append, now: int) -> None:
        entry.events.extend(append.events)
        entry.first_ids[append.events[0].id] = None
        entry.start = None
        for item_id in append.consume:
            if entry.inbox.pop(item_id, None) is not None:
                entry.taken[item_id] = None
        for due in append.timers:
            self._store.arm(entry, due)
        if append.index.status.terminal:
            entry.inbox.clear()
            entry.taken.clear()
            for due in list(entry.timers):
                self._store.disarm(entry, due)
        self._store.put(entry, transitions.appended(entry.row, append, len(entry.inbox), now))

    async def claim(self, claims: Sequence[Claim]) -> list[ClaimVerdict]:
        """Take over by compare-and-set (J5, F7)."""
        return [self._claim(each, self._clock.now()) for each in claims]

    def _claim(self, claim: Claim, now: int) -> ClaimVerdict:
        grant = verdicts.judge_claim(self._store.standing(claim.key, now), claim, now=now)
        if isinstance(grant, LoomError):
            return ClaimVerdict(error=grant)
        entry = self._store.entries[claim.key]
        if grant is Grant.NEW:
            self._store.put(entry, transitions.claimed(entry.row, claim, now))
        snapshot = verdicts.worth_sending(entry.snapshot, claim)
        known = claim.known_seq if snapshot is None else snapshot.seq
        events = _page(entry, first=known + 1, limit=CLAIM_PAGE)
        newest_sent = events[-1].seq if events else known
        return ClaimVerdict(
            Claimed(
                row=entry.row,
                events=tuple(events),
                more=newest_sent < entry.row.last_seq,
                start=entry.start,
                inbox=tuple(entry.inbox.values()),
                now=now,
                snapshot=snapshot,
            )
        )

    async def acquire_fence(self, key: ExecutionKey, expected: int | None) -> int:
        """Take the next fence, whoever holds the execution (J5); for repair and tests.

        Raises:
            StaleFenceError: another moved it first.
            UnknownExecutionError: no such execution.
        """
        entry = self._store.entries.get(key)
        if entry is None:
            raise verdicts.unknown(key)
        verdicts.judge_fence(entry.row, key, expected)
        return self._store.put(entry, transitions.fenced(entry.row, self._clock.now())).fence

    async def defer(
        self,
        keys: Sequence[ExecutionKey],
        owner: str,
        delay: float | None,
        fences: Sequence[int] | None = None,
        trouble: str | None = None,
    ) -> None:
        """Give executions back; a hint set by mail since the claim stays."""
        now = self._clock.now()
        for key, fence in zip(keys, [None] * len(keys) if fences is None else fences, strict=True):
            entry = self._store.entries.get(key)
            if entry is None:
                continue
            row = transitions.deferred(entry.row, owner, delay, now, fence, trouble)
            if row is not None:
                self._store.put(entry, row)

    async def deliver(
        self, items: Sequence[InboxItem], resend_after: float = 5.0
    ) -> list[DeliverVerdict]:
        """Put items in inboxes (K7, K13); an id that was taken is a duplicate, too."""
        return [self._deliver(each, resend_after, self._clock.now()) for each in items]

    def _deliver(self, item: InboxItem, resend_after: float, now: int) -> DeliverVerdict:
        entry = self._store.entries.get(item.key)
        if entry is None:
            return DeliverVerdict(error=verdicts.unknown(item.key))
        if entry.row.status.terminal:
            return DeliverVerdict(error=verdicts.ended(entry.row))
        if item.item_id in entry.inbox or item.item_id in entry.taken:
            return DeliverVerdict(entry.row, duplicate=True)
        entry.inbox[item.item_id] = item
        row = transitions.delivered(entry.row, resend_after, now)
        return DeliverVerdict(self._store.put(entry, row))

    async def discard(self, items: Sequence[tuple[ExecutionKey, str]]) -> None:
        """Delete inbox items that were refused; their ids may come in again."""
        for key, item_id in items:
            entry = self._store.entries.get(key)
            if entry is not None and entry.inbox.pop(item_id, None) is not None:
                self._store.put(entry, transitions.discarded(entry.row, len(entry.inbox)))

    async def watch(self, key: ExecutionKey, waiter: Waiter | None) -> WatchVerdict:
        """Register a waiter, or learn that the execution has ended."""
        entry = self._store.entries.get(key)
        if entry is None:
            return WatchVerdict(None)
        if entry.row.status.terminal:
            return WatchVerdict(entry.row, entry.events[-1] if entry.events else None)
        if waiter is not None:
            entry.waiters = transitions.with_waiter(entry.waiters, waiter)
        return WatchVerdict(entry.row)

    # ---- reads ----------------------------------------------------------------------

    async def get(self, keys: Sequence[ExecutionKey]) -> list[ExecutionRow | None]:
        """Index rows."""
        entries = (self._store.entries.get(key) for key in keys)
        return [None if entry is None else entry.row for entry in entries]

    async def read(
        self, key: ExecutionKey, *, first: int = 0, limit: int = CLAIM_PAGE, newest: bool = False
    ) -> list[Envelope]:
        """A page of the log."""
        entry = self._store.entries.get(key)
        return [] if entry is None else _page(entry, first=first, limit=limit, newest=newest)

    async def inbox(self, keys: Sequence[ExecutionKey]) -> list[tuple[InboxItem, ...]]:
        """Unread items, oldest first."""
        entries = (self._store.entries.get(key) for key in keys)
        return [() if entry is None else tuple(entry.inbox.values()) for entry in entries]

    async def count(self, tenant: str | None = None) -> dict[Status, int]:
        """How many executions stand in each status."""
        totals: dict[Status, int] = {}
        for (owner, status), number in self._store.counts.items():
            if number and tenant in (None, owner):
                totals[status] = totals.get(status, 0) + number
        return totals

    async def find(self, query: ListQuery) -> list[ExecutionRow]:
        """Executions, newest first."""
        found: list[ExecutionRow] = []
        for created_at, execution_id, tenant in reversed(self._store.newest):
            if len(found) >= query.limit:
                break
            if query.before is not None and (created_at, execution_id) >= query.before:
                continue
            row = self._store.entries[ExecutionKey(tenant, execution_id)].row
            if _wanted(row, query):
                found.append(row)
        return found


def _page(entry: Entry, *, first: int, limit: int, newest: bool = False) -> list[Envelope]:
    first = max(first, entry.begin)
    return entry.span(*page_range(entry.row.last_seq, first=first, limit=limit, newest=newest))


def _ended_before(row: ExecutionRow, time: int | None) -> bool:
    return time is None or (row.ended_at is not None and row.ended_at < time)


def _wanted(row: ExecutionRow, query: ListQuery) -> bool:
    return (
        query.tenant in (None, row.tenant)
        and query.status in (None, row.status)
        and query.flow in (None, row.flow)
        and query.version in (None, row.version)
        and query.queue in (None, row.queue)
        and (not query.in_doubt or bool(row.in_doubt))
        and (not query.troubled or row.trouble is not None)
        and _ended_before(row, query.ended_before)
        and verdicts.has_labels(row.labels, query.labels)
    )
