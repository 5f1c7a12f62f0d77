"""The tables of the journal in memory, with the few indexes that its sweeps need.

Dictionaries stand where sets would do: their order is that of insertion, so that a
simulation runs alike under every hash seed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from loom_mq.journal.protocol import DeadLetter
from loom_mq.journal.verdicts import Standing
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
from loom_mq.model.snapshots import Snapshot


class Entry:
    """Everything about one execution.

    Attributes:
        row: the index row; changed through `MemoryStore.put` only.
        start: the start payload while the log is empty.
        events: what is kept of the log, without a gap up to its end.
        snapshot: the newest stored fold.
        first_ids: first ids of the appends so far.
        inbox: unread items by id, oldest first.
        taken: ids of items that events have taken; the same id never comes in again.
        timers: armed due times, and until when each is held (0: never was).
    """

    __slots__ = (
        "events",
        "first_ids",
        "inbox",
        "row",
        "snapshot",
        "start",
        "taken",
        "timers",
        "waiters",
    )

    def __init__(self, row: ExecutionRow, start: bytes | None) -> None:
        self.row = row
        self.start = start
        self.snapshot: Snapshot | None = None
        self.waiters: tuple[Waiter, ...] = ()
        self.events: list[Envelope] = []
        self.first_ids: dict[bytes, None] = {}
        self.inbox: dict[str, InboxItem] = {}
        self.taken: dict[str, None] = {}
        self.timers: dict[int, int] = {}

    @property
    def begin(self) -> int:
        """The lowest sequence that is kept: 0 unless a snapshot stands for what was before."""
        return self.events[0].seq if self.events else self.row.last_seq + 1

    def span(self, low: int, high: int) -> list[Envelope]:
        """What is kept of the events from `low` up to, not including, `high`."""
        begin = self.begin
        return self.events[max(low - begin, 0) : max(high - begin, 0)]

    def set_log(self, events: Sequence[Envelope]) -> None:
        """Replace the log."""
        self.events = list(events)
        self.first_ids = dict.fromkeys(event.id for event in events[:1])


class MemoryStore:
    """All tables. Not safe for threads; one event loop owns it.

    Attributes:
        owned: executions that somebody drives.
        hinted: executions with a hint time.
        newest: (created_at, execution_id, tenant) of every execution, rising.
        timers: (due, key) of every armed timer, rising.
    """

    def __init__(self) -> None:
        self.entries: dict[ExecutionKey, Entry] = {}
        self.owned: dict[ExecutionKey, None] = {}
        self.hinted: dict[ExecutionKey, None] = {}
        self.newest: list[tuple[int, str, str]] = []
        self.counts: Counter[tuple[str, Status]] = Counter()
        self.timers: list[tuple[int, ExecutionKey]] = []
        self.workers: dict[str, WorkerRecord] = {}
        self.flows: dict[tuple[str, str], FlowRecord] = {}
        self.letters: dict[str, DeadLetter] = {}

    def add(self, row: ExecutionRow, start: bytes | None) -> Entry:
        """Insert a new execution."""
        return self._insert(Entry(row, start))

    def _insert(self, entry: Entry) -> Entry:
        row = entry.row
        self.entries[row.key] = entry
        insort(self.newest, _age(row))
        self.counts[row.tenant, row.status] += 1
        self._index(row)
        return entry

    def remove(self, entry: Entry) -> None:
        """Delete an execution with all that belongs to it."""
        row = entry.row
        for due in list(entry.timers):
            self.disarm(entry, due)
        del self.entries[row.key]
        del self.newest[bisect_left(self.newest, _age(row))]
        self.counts[row.tenant, row.status] -= 1
        self.owned.pop(row.key, None)
        self.hinted.pop(row.key, None)

    def rename(self, entry: Entry, execution_id: str) -> None:
        """Give an execution that has ended, and so has no timers, another id."""
        self.remove(entry)
        entry.row = replace(entry.row, execution_id=execution_id)
        self._insert(entry)

    def put(self, entry: Entry, row: ExecutionRow) -> ExecutionRow:
        """Replace an index row."""
        if row.status is not entry.row.status:
            self.counts[row.tenant, entry.row.status] -= 1
            self.counts[row.tenant, row.status] += 1
        entry.row = row
        self._index(row)
        return row

    def _index(self, row: ExecutionRow) -> None:
        key = row.key
        if row.owner is None:
            self.owned.pop(key, None)
        else:
            self.owned[key] = None
        if row.hint_at is None:
            self.hinted.pop(key, None)
        else:
            self.hinted[key] = None

    def standing(self, key: ExecutionKey, now: int) -> Standing | None:
        """An execution as decisions see it."""
        entry = self.entries.get(key)
        if entry is None:
            return None
        return Standing(entry.row, self.alive(entry.row.owner, now))

    def alive(self, owner: str | None, now: int) -> bool:
        """Whether the lease of `owner` runs."""
        worker = None if owner is None else self.workers.get(owner)
        return worker is not None and worker.lease_until > now

    def abandoned(self, now: int) -> Iterator[Entry]:
        """Executions whose holder is dead or wedged (F7)."""
        for key in list(self.owned):
            entry = self.entries[key]
            if Standing(entry.row, self.alive(entry.row.owner, now)).holder(now) is None:
                yield entry

    def arm(self, entry: Entry, due: int) -> None:
        """Arm a timer; one that is armed and held already is as good as new."""
        if due not in entry.timers:
            insort(self.timers, (due, entry.row.key))
        entry.timers[due] = 0

    def disarm(self, entry: Entry, due: int) -> None:
        """Delete a timer if it is there."""
        if entry.timers.pop(due, None) is not None:
            del self.timers[bisect_left(self.timers, (due, entry.row.key))]

    def sweep_workers(self, now: int) -> None:
        """Forget lapsed leases that no execution names."""
        named = {self.entries[key].row.owner for key in self.owned}
        for owner, worker in list(self.workers.items()):
            if worker.lease_until <= now and owner not in named:
                del self.workers[owner]


def _age(row: ExecutionRow) -> tuple[int, str, str]:
    return row.created_at, row.execution_id, row.tenant
