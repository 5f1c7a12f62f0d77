"""The journal in memory: leases, sweeps, timers, flows and dead letters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from loom_mq.clock import Clock
from loom_mq.journal import transitions
from loom_mq.journal.memory_schedules import MemorySchedules
from loom_mq.journal.memory_store import Entry, MemoryStore
from loom_mq.journal.protocol import DeadLetter, DueTimer, LeaseSession, Renewal, Runnable
from loom_mq.model.execution import (
    ExecutionKey,
    ExecutionRow,
    FlowRecord,
    Status,
    WorkerRecord,
)


class MemoryLease:
    """A lease in memory; see `journal.protocol.LeaseSession`."""

    def __init__(self, store: MemoryStore, clock: Clock, owner: str) -> None:
        self._store = store
        self._clock = clock
        self._owner = owner

    async def renew(self, ttl: float) -> Renewal:
        """Extend the lease, unless it has lapsed: then it is lost, whoever noticed (F7)."""
        now = self._clock.now()
        if not self._store.alive(self._owner, now):
            return Renewal(held=False, now=now)
        self._set(transitions.after(now, ttl))
        mail = tuple(entry.row.key for entry in self._held() if entry.row.inbox)
        return Renewal(held=True, now=now, mail=mail)

    async def drain(self) -> None:
        """Show on the worker's row that it takes nothing new."""
        worker = self._store.workers.get(self._owner)
        if worker is not None:
            self._store.workers[self._owner] = replace(worker, draining=True)

    async def retire(self) -> None:
        """End the lease at once and release what is still held."""
        now = self._clock.now()
        self._set(0)
        for entry in list(self._held()):
            row = transitions.deferred(entry.row, self._owner, 0.0, now)
            if row is not None:
                self._store.put(entry, row)
        self._store.sweep_workers(now)

    async def close(self) -> None:
        """There is no connection to close."""

    def _set(self, until: int) -> None:
        worker = self._store.workers.get(self._owner)
        if worker is not None:
            self._store.workers[self._owner] = replace(worker, lease_until=until)

    def _held(self) -> Iterator[Entry]:
        for key in self._store.owned:
            entry = self._store.entries[key]
            if entry.row.owner == self._owner:
                yield entry


class MemoryFleet(MemorySchedules):
    """The part of `MemoryJournal` that belongs to no single execution.

    Args:
        clock: journal time.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._store = MemoryStore()

    async def now(self) -> int:
        """Journal time, microseconds since the epoch."""
        return self._clock.now()

    # ---- leases ---------------------------------------------------------------------

    async def lease(self, worker: WorkerRecord, ttl: float) -> LeaseSession:
        """Register a process and open its lease, `ttl` seconds long (F7)."""
        now = self._clock.now()
        self._store.sweep_workers(now)
        known = self._store.workers.get(worker.owner)
        self._store.workers[worker.owner] = replace(
            worker,
            lease_until=transitions.after(now, ttl),
            started_at=now if known is None else known.started_at,
        )
        return MemoryLease(self._store, self._clock, worker.owner)

    async def workers(self) -> list[WorkerRecord]:
        """Processes whose lease has not lapsed, by name."""
        now = self._clock.now()
        alive = [each for each in self._store.workers.values() if each.lease_until > now]
        return sorted(alive, key=lambda each: each.owner)

    async def lapse_if_gone(self, owner: str) -> bool:
        """Whether the lease has lapsed, by its own time alone: there is no session to lose."""
        return not self._store.alive(owner, self._clock.now())

    # ---- flows ----------------------------------------------------------------------

    async def register_flows(self, flows: Sequence[FlowRecord]) -> None:
        """Make flows known; they stay known (F2)."""
        for flow in flows:
            self._store.flows[flow.flow, flow.version] = flow

    async def flows(self) -> list[FlowRecord]:
        """Flows that any worker has ever registered, by name and version."""
        return [self._store.flows[name] for name in sorted(self._store.flows)]

    # ---- sweeps ---------------------------------------------------------------------

    async def take_abandoned(
        self, *, limit: int, resend_after: float, max_recoveries: int
    ) -> list[Runnable]:
        """Detach executions from dead or wedged holders (F7, F8)."""
        now = self._clock.now()
        found = [
            entry for entry in self._store.abandoned(now) if entry.row.recoveries < max_recoveries
        ]
        found.sort(key=_by_age)
        taken = []
        for entry in found[:limit]:
            lost = entry.row.owner
            row = self._store.put(entry, transitions.detached(entry.row, resend_after, now))
            taken.append(Runnable(row, entry.start, lost))
        return taken

    async def take_unsent(
        self, *, limit: int, resend_after: float, backoff_limit: float, queues: Sequence[str] | None
    ) -> list[Runnable]:
        """Count and put off the hints that have come due and that nobody has followed."""
        now = self._clock.now()
        due: list[tuple[int, ExecutionKey]] = []
        for key in self._store.hinted:
            row = self._store.entries[key].row
            if row.hint_at is None or row.hint_at > now or row.owner is not None:
                continue
            if queues is None or row.queue in queues:
                due.append((row.hint_at, key))
        taken = []
        for _hint_at, key in sorted(due)[:limit]:
            entry = self._store.entries[key]
            row = transitions.hinted(entry.row, resend_after, backoff_limit, now)
            taken.append(Runnable(self._store.put(entry, row), entry.start))
        return taken

    async def exhausted(self, max_recoveries: int, limit: int) -> list[ExecutionRow]:
        """Executions left with their dead holder after `max_recoveries` recoveries (F8)."""
        found = [
            entry
            for entry in self._store.abandoned(self._clock.now())
            if entry.row.recoveries >= max_recoveries
        ]
        return [entry.row for entry in sorted(found, key=_by_age)[:limit]]

    # ---- timers ---------------------------------------------------------------------

    async def due_timers(self, *, limit: int, hold: float) -> list[DueTimer]:
        """Due timers, earliest first, held from other callers for `hold` seconds (F9)."""
        now = self._clock.now()
        found: list[DueTimer] = []
        for due, key in self._store.timers:
            if due > now or len(found) >= limit:
                break
            entry = self._store.entries[key]
            if entry.timers[due] <= now:
                entry.timers[due] = transitions.after(now, hold)
                self._store.put(entry, transitions.fired(entry.row, hold, now))
                found.append(DueTimer(entry.row, due))
        return found

    async def drop_timers(self, timers: Sequence[tuple[ExecutionKey, int]]) -> None:
        """Delete timers whose fire was published; one armed again meanwhile stays."""
        for key, due in timers:
            entry = self._store.entries.get(key)
            if entry is not None and entry.timers.get(due):
                self._store.disarm(entry, due)

    async def arm_timers(self, timers: Sequence[tuple[ExecutionKey, int]]) -> list[bool]:
        """Arm timers that are missing, of executions that are suspended (F9)."""
        return [self._arm(key, due) for key, due in timers]

    def _arm(self, key: ExecutionKey, due: int) -> bool:
        entry = self._store.entries.get(key)
        if entry is None or entry.row.status is not Status.SUSPENDED or due in entry.timers:
            return False
        self._store.arm(entry, due)
        return True

    async def next_timer(self) -> int | None:
        """The earliest due time, of timers and of schedules, that is not held."""
        now = self._clock.now()
        timer = next(
            (due for due, key in self._store.timers if self._store.entries[key].timers[due] <= now),
            None,
        )
        times = [due for due in (timer, self.next_schedule(now)) if due is not None]
        return min(times, default=None)

    # ---- dead letters ---------------------------------------------------------------

    async def record_dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        """Keep dead letters; the same id twice is one (F2)."""
        now = self._clock.now()
        for letter in letters:
            kept = letter if letter.at else replace(letter, at=now)
            self._store.letters.setdefault(letter.id, kept)

    async def dead_letters(self, limit: int = 50) -> list[DeadLetter]:
        """Dead letters, newest first."""
        rising = sorted(self._store.letters.values(), key=lambda each: each.at)
        return rising[::-1][:limit]

    async def drop_dead_letters(self, ids: Sequence[str]) -> list[bool]:
        """Delete dead letters; of each, whether this very call did."""
        return [self._store.letters.pop(each, None) is not None for each in ids]


def _by_age(entry: Entry) -> tuple[int, ExecutionKey]:
    return entry.row.updated_at, entry.row.key
