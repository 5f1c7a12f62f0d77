"""What the journal's conformance tests stand on: the stores under test and short builders."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

import msgspec

from loom_mq.clock import MICROS
from loom_mq.errors import LoomError
from loom_mq.ids import RandomIds
from loom_mq.journal.protocol import (
    Admission,
    Append,
    AppendVerdict,
    Claim,
    ClaimIntent,
    ClaimVerdict,
    DeliverVerdict,
    IndexUpdate,
    Journal,
    LeaseSession,
    Planting,
    Runnable,
)
from loom_mq.model.events import EVENT_SCHEMA, Envelope, EventKind
from loom_mq.model.execution import (
    DEFAULT_QUEUE,
    DEFAULT_TENANT,
    ExecutionKey,
    ExecutionRow,
    InboxItem,
    InboxKind,
    Status,
    Waiter,
    WorkerRecord,
)
from loom_mq.model.snapshots import FOLD_VERSION, Snapshot

E = TypeVar("E", bound=LoomError)
Refusal: TypeAlias = AppendVerdict | ClaimVerdict | DeliverVerdict | LoomError | None

LONG: Final = 3600.0
"""Seconds that no test lives to see."""
PATIENCE: Final = 10.0
"""Seconds that a test waits for journal time to pass."""
_ids = RandomIds()

RUNNING: Final = IndexUpdate(status=Status.RUNNING)
COMPLETED: Final = IndexUpdate(status=Status.COMPLETED)


@dataclass(frozen=True)
class Stores:
    """The journal under test, empty and open.

    Attributes:
        first: a handle.
        second: another handle on the same storage; the same object where one store
            has one handle only.
        advance: lets seconds of journal time pass; None waits for them.
        many_tenants: False for a journal that serves one tenant.
    """

    first: Journal
    second: Journal
    advance: Callable[[float], Awaitable[None]] | None = None
    many_tenants: bool = True


def name(hint: str) -> str:
    """A name that no other test uses."""
    return f"{hint}-{secrets.token_hex(4)}"


def events(
    first: int,
    count: int = 1,
    *,
    fence: int = 1,
    kind: str = EventKind.STEP_STARTED,
    payload: bytes = b"\x93\x01\x02\x03",
) -> tuple[Envelope, ...]:
    """New envelopes from sequence `first` on."""
    return tuple(
        Envelope(
            _ids.envelope(),
            first + at,
            kind,
            10_000 + first + at,
            fence,
            True,
            EVENT_SCHEMA,
            payload,
        )
        for at in range(count)
    )


def refused(verdict: Refusal, kind: type[E]) -> E:
    """The refusal of a verdict, which must be exactly of this kind."""
    error = verdict if isinstance(verdict, LoomError | None) else verdict.error
    assert type(error) is kind, verdict
    return error


def accepted(verdict: AppendVerdict) -> AppendVerdict:
    """A verdict that must not be a refusal."""
    assert verdict.error is None, verdict.error
    return verdict


def folded(seq: int, text: str = "state") -> Snapshot:
    """A snapshot, as a journal sees one: its state is nobody's business."""
    return Snapshot(seq, FOLD_VERSION, b"\x00\xff" + text.encode())


class Rig:
    """Short ways to say what a test is not about.

    Args:
        stores: under test.
    """

    def __init__(self, stores: Stores) -> None:
        self.stores = stores
        self.journal = stores.first
        self.second = stores.second
        self._leases: list[LeaseSession] = []

    async def close(self) -> None:
        """Close the connections of leases that a test has left open."""
        for lease in self._leases:
            await lease.close()

    # ---- executions -----------------------------------------------------------------

    async def admitted(
        self,
        hint: str = "run",
        *,
        key: ExecutionKey | None = None,
        queue: str = DEFAULT_QUEUE,
        flow: str = "flow",
        start: bytes = b"start",
        waiter: Waiter | None = None,
        resend_after: float = LONG,
    ) -> ExecutionKey:
        """A pending execution; its first package is not missed for an hour."""
        key = key or ExecutionKey(DEFAULT_TENANT, name(hint))
        admission = Admission(
            key=key,
            flow=flow,
            version="1",
            queue=queue,
            start=start,
            input_digest=b"digest",
            waiter=waiter,
            resend_after=resend_after,
        )
        (verdict,) = await self.journal.admit([admission])
        assert verdict.created
        return key

    async def started(
        self,
        owner: str = "nobody-alive",
        hint: str = "run",
        *,
        count: int = 1,
        key: ExecutionKey | None = None,
        deadline: float | None = None,
        queue: str = DEFAULT_QUEUE,
        waiter: Waiter | None = None,
    ) -> ExecutionKey:
        """An execution held by `owner` under fence 1, with `count` events."""
        key = await self.admitted(hint, key=key, queue=queue, waiter=waiter)
        claim = ClaimIntent(owner=owner, expected_fence=0, deadline=deadline)
        accepted(await self.append(key, events(0, count), claim=claim))
        return key

    async def parked(self, *, count: int = 1, timers: tuple[int, ...] = ()) -> ExecutionKey:
        """An execution that waits at the gate ``gate``, after `count` + 1 events."""
        key = await self.started(count=count)
        index = IndexUpdate(
            status=Status.SUSPENDED, gates=("gate",), wake_at=min(timers, default=None)
        )
        accepted(await self.append(key, events(count), index=index, release=True, timers=timers))
        return key

    async def ended(self, *, waiter: Waiter | None = None) -> ExecutionKey:
        """A completed execution of two events."""
        key = await self.started(waiter=waiter)
        accepted(await self.append(key, events(1), index=COMPLETED, release=True))
        return key

    async def append(
        self,
        key: ExecutionKey,
        envelopes: tuple[Envelope, ...],
        *,
        fence: int = 1,
        index: IndexUpdate = RUNNING,
        claim: ClaimIntent | None = None,
        release: bool = False,
        timers: tuple[int, ...] = (),
        consume: tuple[str, ...] = (),
    ) -> AppendVerdict:
        """One append alone."""
        append = Append(
            key=key,
            fence=fence,
            events=envelopes,
            index=index,
            claim=claim,
            release=release,
            timers=timers,
            consume=consume,
        )
        (verdict,) = await self.journal.append([append])
        return verdict

    async def claim(
        self,
        key: ExecutionKey,
        owner: str,
        expected: int,
        *,
        deadline: float | None = None,
        preempt: bool = False,
        known_seq: int = -1,
    ) -> ClaimVerdict:
        """One claim alone."""
        claim = Claim(
            key=key,
            owner=owner,
            expected_fence=expected,
            deadline=deadline,
            preempt=preempt,
            known_seq=known_seq,
        )
        (verdict,) = await self.journal.claim([claim])
        return verdict

    async def row(self, key: ExecutionKey) -> ExecutionRow:
        """The index row of an execution that exists."""
        (row,) = await self.journal.get([key])
        assert row is not None
        return row

    async def log(self, key: ExecutionKey) -> list[Envelope]:
        """The log of a short execution."""
        return await self.journal.read(key)

    # ---- whole executions --------------------------------------------------------------

    def planting(
        self,
        last_seq: int,
        *,
        key: ExecutionKey | None = None,
        first: int = 0,
        status: Status = Status.SUSPENDED,
        snapshot: Snapshot | None = None,
        timers: tuple[int, ...] = (),
    ) -> Planting:
        """An execution with the events from `first` to `last_seq`, nobody's, under fence 3;
        every other field of its row has a value of its own.
        """
        key = key or ExecutionKey(DEFAULT_TENANT, name("planted"))
        row = ExecutionRow(
            tenant=key.tenant,
            execution_id=key.execution_id,
            flow="flow",
            version="7",
            queue="q",
            status=status,
            last_seq=last_seq,
            wake_at=min(timers, default=None),
            gates=("one", "two/ü"),
            error="Error: e",
            recoveries=2,
            parent="parent",
            features=("f1", "f2"),
            labels={"a": "ü", "b": ""},
            created_at=11,
            updated_at=13,
            started_at=12,
            ended_at=13 if status.terminal else None,
            fence=3,
            owner=None,
            attempt=4,
            deadline=None,
            hint_at=None,
            hints=5,
            inbox=0,
            input_digest=b"\x00digest",
            in_doubt=("charge",),
            trouble="the code is another one",
        )
        log = events(first, last_seq + 1 - first, fence=3)
        return Planting(row=row, events=log, snapshot=snapshot, timers=timers)

    async def planted(self, planting: Planting) -> ExecutionKey:
        """One planting alone, which must be new."""
        assert await self.journal.plant([planting]) == [None]
        return planting.row.key

    # ---- inbox ------------------------------------------------------------------------

    def item(self, key: ExecutionKey, item_id: str = "item", gate: str = "gate") -> InboxItem:
        """An answer."""
        return InboxItem(
            tenant=key.tenant,
            execution_id=key.execution_id,
            item_id=item_id,
            kind=InboxKind.ANSWER,
            gate=gate,
            wait_id="/gate:0",
            payload=b"\x00answer\xff",
            reply_to="reply",
            correlation="c-1",
        )

    async def deliver(
        self, key: ExecutionKey, item_id: str = "item", *, resend_after: float = LONG
    ) -> DeliverVerdict:
        """One answer alone."""
        (verdict,) = await self.journal.deliver([self.item(key, item_id)], resend_after)
        return verdict

    async def unread(self, key: ExecutionKey) -> list[str]:
        """Ids of the unread items, in the journal's order."""
        (items,) = await self.journal.inbox([key])
        return [each.item_id for each in items]

    # ---- fleet ------------------------------------------------------------------------

    async def alive(self, owner: str, ttl: float = LONG) -> LeaseSession:
        """A process with a lease."""
        record = WorkerRecord(owner=owner, role="worker", host="here", queues=("a", "b"), slots=7)
        lease = await self.journal.lease(record, ttl)
        self._leases.append(lease)
        return lease

    async def take_unsent(
        self, queues: Sequence[str] | None = None, *, resend_after: float = LONG
    ) -> list[Runnable]:
        """What a sweep for lost packages finds."""
        return await self.journal.take_unsent(
            limit=100, resend_after=resend_after, backoff_limit=10 * LONG, queues=queues
        )

    async def take_abandoned(self, *, max_recoveries: int = 10) -> list[Runnable]:
        """What a sweep for dead holders finds."""
        return await self.journal.take_abandoned(
            limit=100, resend_after=LONG, max_recoveries=max_recoveries
        )

    async def let_pass(self, seconds: float) -> None:
        """Return when so much journal time has passed."""
        if self.stores.advance is not None:
            await self.stores.advance(seconds)
            return
        until = await self.journal.now() + int(seconds * MICROS)
        async with asyncio.timeout(PATIENCE):
            while await self.journal.now() <= until:
                await asyncio.sleep(0.005)


def untimed(row: ExecutionRow) -> ExecutionRow:
    """A row without the times of its last change, to see that nothing else changed."""
    return msgspec.structs.replace(row, hint_at=None, updated_at=0)
