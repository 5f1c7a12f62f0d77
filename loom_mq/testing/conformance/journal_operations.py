"""Operations for the comparison of two journals: what is asked, in terms of what stands.

An operation says how far off it is ("one fence too old", "the last append again"), and
becomes a concrete request when it is played, from how the execution stands then. Both
journals get the very same request. What the protocol leaves open is not asked.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import msgspec

from loom_mq.journal.protocol import (
    Admission,
    Append,
    Claim,
    ClaimIntent,
    DueTimer,
    IndexUpdate,
    Journal,
    ListQuery,
    Runnable,
)
from loom_mq.model.execution import (
    DEFAULT_TENANT,
    ExecutionKey,
    ExecutionRow,
    InboxItem,
    InboxKind,
    Status,
    Waiter,
)
from loom_mq.testing.conformance.journal_rig import LONG
from loom_mq.testing.conformance.journal_world import Kinds, World

F = TypeVar("F", ExecutionRow, Runnable, DueTimer)


class Operation(Protocol):
    """Something to do to both journals."""

    async def play(self, journal: Journal, world: World) -> object:
        """Do it, and return what the journal answered."""


@dataclass(frozen=True)
class Admit:
    """A start, perhaps of what exists, perhaps another one."""

    execution: int
    digest: bytes
    waiter: int | None
    overdue: bool

    async def play(self, journal: Journal, world: World) -> object:
        """See `Operation`."""
        waiter = None if self.waiter is None else Waiter("start", str(self.waiter))
        return await journal.admit(
            [
                Admission(
                    key=world.keys[self.execution],
                    flow="flow",
                    version="1",
                    queue=world.prefix,
                    start=b"start" + self.digest,
                    input_digest=self.digest,
                    labels={"step": str(world.step)},
                    waiter=waiter,
                    resend_after=0.0 if self.overdue else LONG,
                )
            ]
        )


@dataclass(frozen=True)
class Write:
    """An append, more or less lawful."""

    execution: int
    fence_shift: int
    seq_shift: int
    count: int
    status: Status
    kind: str
    claimant: int | None
    timers: tuple[int, ...]
    consume: tuple[int, ...]

    def request(self, world: World) -> Append | None:
        """The concrete append; None where the protocol does not say what happens."""
        key = world.keys[self.execution]
        row, written = world.rows.get(key), world.written.get(key, [])
        if self.kind == Kinds.AGAIN:
            return written[-1] if written else None
        if row is not None and row.status.terminal and self.fence_shift == 0:
            return None
        expected = max(0, (0 if row is None else row.fence) + self.fence_shift)
        claim = None
        if self.claimant is not None:
            owner = world.owner(self.claimant)
            claim = ClaimIntent(owner=owner, expected_fence=expected)
        fence = expected if claim is None else expected + 1
        first = max(0, (-1 if row is None else row.last_seq) + 1 + self.seq_shift)
        if self.kind == Kinds.OTHER and written:
            first = written[-1].events[0].seq
        events = world.envelopes(first, self.count, fence)
        if self.kind == Kinds.MOVED and written:
            recorded = written[0].events[0].id
            events = (msgspec.structs.replace(events[0], id=recorded), *events[1:])
        parked = self.status is Status.SUSPENDED
        return Append(
            key=key,
            fence=fence,
            events=events,
            index=IndexUpdate(
                status=self.status,
                wake_at=min(self.timers, default=None) if parked else None,
                gates=("gate",) if parked else (),
                error="Error: e" if self.status is Status.FAILED else None,
                recoveries=self.count,
                in_doubt=("step",) if parked and self.count > 1 else (),
            ),
            claim=claim,
            release=parked or self.status.terminal,
            timers=self.timers if parked else (),
            consume=tuple(f"item-{number}" for number in self.consume),
        )


@dataclass(frozen=True)
class WriteBatch:
    """Appends of several executions in one commit (J3)."""

    writes: tuple[Write, ...]

    async def play(self, journal: Journal, world: World) -> object:
        """See `Operation`."""
        asked: dict[ExecutionKey, Append] = {}
        for write in self.writes:
            request = write.request(world)
            if request is not None:
                asked.setdefault(request.key, request)
        verdicts = await journal.append(list(asked.values()))
        for append, verdict in zip(asked.values(), verdicts, strict=True):
            accepted = world.written.setdefault(append.key, [])
            if verdict.error is None and append not in accepted:
                accepted.append(append)
        return verdicts


@dataclass(frozen=True)
class Take:
    """A claim."""

    execution: int
    owner: int
    fence_shift: int
    preempt: bool
    known_seq: int
    wedged: bool

    async def play(self, journal: Journal, world: World) -> object:
        """See `Operation`."""
        key = world.keys[self.execution]
        row = world.rows.get(key)
        return await journal.claim(
            [
                Claim(
                    key=key,
                    owner=world.owner(self.owner),
                    expected_fence=(0 if row is None else row.fence) + self.fence_shift,
                    deadline=0.0 if self.wedged else None,
                    preempt=self.preempt,
                    known_seq=self.known_seq,
                )
            ]
        )


@dataclass(frozen=True)
class Fence:
    """A fence taken by hand."""

    execution: int
    shift: int | None

    async def play(self, journal: Journal, world: World) -> object:
        """See `Operation`."""
        key = world.keys[self.execution]
        row = world.rows.get(key)
        if row is not None and row.status.terminal:
            return None
        known = 0 if row is None else row.fence
        return await journal.acquire_fence(key, None if self.shift is None else known + self.shift)


@dataclass(frozen=True)
class GiveBack:
    """Executions given back by an owner, perhaps naming their fences."""

    owner: int
    delay: float | None
    fence_shift: int | None
    trouble: str | None

    async def play(self, journal: Journal, world: World) -> object:
        """See `Operation`."""
        fences = None
        if self.fence_shift is not None:
            rows = (world.rows.get(key) for key in world.keys)
            fences = [(0 if row is None else row.fence) + self.fence_shift for row in rows]
        owner = world.owner(self.owner)
        await journal.defer(world.keys, owner, self.delay, fences, self.trouble)
        return None


@dataclass(frozen=True)
class Deliver:
    """Inbox items, perhaps the same one again."""

    execution: int
    items: tuple[int, ...]
    overdue: bool

    async def play(self, journal: Journal, world: World) -> object:
        """See `Operation`."""
        key = world.keys[self.execution]
        items = [
            InboxItem(
                tenant=key.tenant,
                execution_id=key.execution_id,
                item_id=f"item-{number}",
                kind=InboxKind.VERDICT if number else InboxKind.ANSWER,
                gate="gate",
                payload=bytes([number]),
                actor=f"actor {number}",
            )
            for number in self.items
        ]
        return await journal.deliver(items, 0.0 if self.overdue else LONG)


@dataclass(frozen=True)
class Discard:
    """A refused item, or one that is not there."""

    execution: int
    item: int

    async def play(self, journal: Journal, world: World) -> object:
        """See `Operation`."""
        await journal.discard([(world.keys[self.execution], f"item-{self.item}")])
        return None


@dataclass(frozen=True)
class Watch:
    """A waiter, or a look."""

    execution: int
    waiter: int | None

    async def play(self, journal: Journal, world: World) -> object:
        """See `Operation`."""
        waiter = None if self.waiter is None else Waiter("watch", str(self.waiter))
        return await journal.watch(world.keys[self.execution], waiter)


@dataclass(frozen=True)
class Retire:
    """A graceful stop of a process, which then begins anew."""

    owner: int

    async def play(self, journal: Journal, world: World) -> object:
        """See `Operation`."""
        session = world.sessions[id(journal)][world.owner(self.owner)]
        await session.retire()
        return (await session.renew(LONG)).held


@dataclass(frozen=True)
class Renew:
    """A lease renewed: what mail it reports."""

    owner: int

    async def play(self, journal: Journal, world: World) -> object:
        """See `Operation`."""
        renewal = await world.sessions[id(journal)][world.owner(self.owner)].renew(LONG)
        return renewal.held, sorted(renewal.mail)


@dataclass(frozen=True)
class Sweep:
    """What the dispatcher's sweeps take."""

    max_recoveries: int

    async def play(self, journal: Journal, world: World) -> object:
        """See `Operation`."""
        lost = await journal.exhausted(self.max_recoveries, 1000)
        taken = await journal.take_abandoned(
            limit=1000, resend_after=0.0, max_recoveries=self.max_recoveries
        )
        sent = await journal.take_unsent(
            limit=1000, resend_after=LONG, backoff_limit=LONG, queues=[world.prefix, "other"]
        )
        # only what was taken is promised, not in which order
        return [
            _by_key(row for row in lost if row.key in world.keys),
            _by_key(each for each in taken if each.row.key in world.keys),
            _by_key(each for each in sent if each.row.key in world.keys),
        ]


def _by_key(found: Iterable[F]) -> list[F]:
    return sorted(found, key=_key)


def _key(found: ExecutionRow | Runnable | DueTimer) -> ExecutionKey:
    return found.key if isinstance(found, ExecutionRow) else found.row.key


@dataclass(frozen=True)
class Fire:
    """What a timer service takes, and drops when `dropped`."""

    dropped: bool

    async def play(self, journal: Journal, world: World) -> object:
        """See `Operation`."""
        due = await journal.due_timers(limit=1000, hold=LONG)
        assert due == sorted(due, key=lambda each: each.due)
        mine = _by_key(each for each in due if each.row.key in world.keys)
        if self.dropped:
            await journal.drop_timers([(each.row.key, each.due) for each in mine])
        return mine


@dataclass(frozen=True)
class Arm:
    """A timer that may be missing."""

    execution: int
    dues: tuple[int, ...]

    async def play(self, journal: Journal, world: World) -> object:
        """See `Operation`."""
        return await journal.arm_timers([(world.keys[self.execution], due) for due in self.dues])


@dataclass(frozen=True)
class Look:
    """A list for people."""

    status: Status | None

    async def play(self, journal: Journal, world: World) -> object:
        """See `Operation`."""
        found = await journal.find(
            ListQuery(status=self.status, queue=world.prefix, tenant=DEFAULT_TENANT)
        )
        return _by_key(found)
