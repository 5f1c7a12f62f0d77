"""One tenant's view of a journal (J9).

The caller uses bare ids under `DEFAULT_TENANT`; every key that goes in is moved into
the tenant, and every key that comes out is moved back. A key under any other tenant is
refused before anything is read or written, so nothing crosses.

What belongs to the fleet and not to a tenant:

- Leases, workers and flows are the fleet's and pass through: a process and a flow have
  no tenant. A renewal reports the tenant's mail only.
- Sweeps (`take_abandoned`, `take_unsent`) answer with the tenant's executions only. The
  protocol cannot ask a store for one tenant's, so others may be taken along; they are
  given back at once and lose one round of a sweep at most.
- `due_timers` answers with the tenant's timers only; those of others that were due at
  the same moment stay held for `hold` seconds, then fire. `next_timer` may name the
  time of another tenant's timer, and nothing else about it.
- `due_schedules` likewise; what else there is to schedules is the tenant's own.
- Dead letters carry the tenant that they were recorded for in a header of their own;
  only those are listed.

So dispatchers and timer services of a shared fleet belong over the plain journal; this
view is for clients and workers of one tenant, and for a fleet that serves one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Final, Self

from msgspec.structs import replace

from loom_mq.errors import LoomError
from loom_mq.journal.protocol import (
    CLAIM_PAGE,
    Admission,
    AdmitVerdict,
    Append,
    AppendVerdict,
    Claim,
    Claimed,
    ClaimVerdict,
    DeadLetter,
    DeliverVerdict,
    DueTimer,
    LeaseSession,
    ListQuery,
    Renewal,
    Runnable,
    WatchVerdict,
)
from loom_mq.journal.tenant_lifecycle import TenantLifecycle
from loom_mq.journal.tenant_scope import Scope, own_error
from loom_mq.model.events import Envelope
from loom_mq.model.execution import (
    DEFAULT_TENANT,
    ExecutionKey,
    ExecutionRow,
    FlowRecord,
    InboxItem,
    Status,
    Waiter,
    WorkerRecord,
)

_ROUNDS: Final = 20
"""Looks at most for a sweep's `limit` among the executions of other tenants."""
_PAGE: Final = 1000
"""Rows looked through at least for the tenant's among those of all."""
_NOBODY: Final = ""
_TENANT_HEADER: Final = "loom-tenant"


class TenantLease:
    """A lease whose mail is one tenant's."""

    def __init__(self, inner: LeaseSession, scope: Scope) -> None:
        self._inner = inner
        self._scope = scope

    async def renew(self, ttl: float) -> Renewal:
        """Extend the lease."""
        renewal = await self._inner.renew(ttl)
        scope = self._scope
        mail = tuple(scope.outward(key) for key in renewal.mail if scope.own(key))
        return Renewal(held=renewal.held, now=renewal.now, mail=mail)

    async def drain(self) -> None:
        """Show on the worker's row that it takes nothing new."""
        await self._inner.drain()

    async def retire(self) -> None:
        """End the lease at once; the owner is this process, so all it holds is released."""
        await self._inner.retire()

    async def close(self) -> None:
        """Close the connection without ending the lease."""
        await self._inner.close()


class TenantScopedJournal(TenantLifecycle):
    """See the module's docstring.

    Args:
        inner: the journal, opened and closed with this view.
        tenant: the tenant within it.

    Raises:
        InvalidIdError: the tenant's name breaks the rule of J10.
    """

    async def __aenter__(self) -> Self:
        """Open the journal."""
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the journal."""
        await self._inner.__aexit__(kind, error, trace)

    async def now(self) -> int:
        """Journal time, microseconds since the epoch."""
        return await self._inner.now()

    # ---- executions -----------------------------------------------------------------

    async def admit(self, admissions: Sequence[Admission]) -> list[AdmitVerdict]:
        """See `Journal.admit`."""
        verdicts = await self._inner.admit([self._scope.request(each) for each in admissions])
        return [replace(each, row=self._scope.named(each.row)) for each in verdicts]

    async def append(self, appends: Sequence[Append]) -> list[AppendVerdict]:
        """See `Journal.append`."""
        verdicts = await self._inner.append([self._scope.request(each) for each in appends])
        return [
            replace(verdict, error=own_error(verdict.error, asked.key))
            for asked, verdict in zip(appends, verdicts, strict=True)
        ]

    async def claim(self, claims: Sequence[Claim]) -> list[ClaimVerdict]:
        """See `Journal.claim`."""
        verdicts = await self._inner.claim([self._scope.request(each) for each in claims])
        return [
            ClaimVerdict(self._claimed(verdict.claimed), own_error(verdict.error, asked.key))
            for asked, verdict in zip(claims, verdicts, strict=True)
        ]

    def _claimed(self, claimed: Claimed | None) -> Claimed | None:
        if claimed is None:
            return None
        return replace(
            claimed,
            row=self._scope.named(claimed.row),
            inbox=tuple(self._scope.named(item) for item in claimed.inbox),
        )

    async def acquire_fence(self, key: ExecutionKey, expected: int | None) -> int:
        """See `Journal.acquire_fence`."""
        try:
            return await self._inner.acquire_fence(self._scope.inward(key), expected)
        except LoomError as error:
            renamed = own_error(error, key)
            if renamed is None or renamed is error:
                raise
            raise renamed from renamed.__cause__

    async def defer(
        self,
        keys: Sequence[ExecutionKey],
        owner: str,
        delay: float | None,
        fences: Sequence[int] | None = None,
        trouble: str | None = None,
    ) -> None:
        """See `Journal.defer`."""
        inward = [self._scope.inward(key) for key in keys]
        await self._inner.defer(inward, owner, delay, fences, trouble)

    async def get(self, keys: Sequence[ExecutionKey]) -> list[ExecutionRow | None]:
        """See `Journal.get`."""
        found = await self._inner.get([self._scope.inward(key) for key in keys])
        return [self._scope.row(row) for row in found]

    async def read(
        self, key: ExecutionKey, *, first: int = 0, limit: int = CLAIM_PAGE, newest: bool = False
    ) -> list[Envelope]:
        """See `Journal.read`."""
        inward = self._scope.inward(key)
        return await self._inner.read(inward, first=first, limit=limit, newest=newest)

    # ---- inbox and waiters ------------------------------------------------------------

    async def deliver(
        self, items: Sequence[InboxItem], resend_after: float = 5.0
    ) -> list[DeliverVerdict]:
        """See `Journal.deliver`."""
        verdicts = await self._inner.deliver(
            [self._scope.item(each) for each in items], resend_after
        )
        return [
            replace(
                verdict,
                row=self._scope.row(verdict.row),
                error=own_error(verdict.error, asked.key),
            )
            for asked, verdict in zip(items, verdicts, strict=True)
        ]

    async def inbox(self, keys: Sequence[ExecutionKey]) -> list[tuple[InboxItem, ...]]:
        """See `Journal.inbox`."""
        found = await self._inner.inbox([self._scope.inward(key) for key in keys])
        return [tuple(self._scope.named(item) for item in items) for items in found]

    async def discard(self, items: Sequence[tuple[ExecutionKey, str]]) -> None:
        """See `Journal.discard`."""
        await self._inner.discard([(self._scope.inward(key), item) for key, item in items])

    async def watch(self, key: ExecutionKey, waiter: Waiter | None) -> WatchVerdict:
        """See `Journal.watch`."""
        verdict = await self._inner.watch(self._scope.inward(key), waiter)
        return replace(verdict, row=self._scope.row(verdict.row))

    # ---- fleet ------------------------------------------------------------------------

    async def lease(self, worker: WorkerRecord, ttl: float) -> LeaseSession:
        """See `Journal.lease`."""
        return TenantLease(await self._inner.lease(worker, ttl), self._scope)

    async def workers(self) -> list[WorkerRecord]:
        """The fleet's processes; see `Journal.workers`."""
        return await self._inner.workers()

    async def lapse_if_gone(self, owner: str) -> bool:
        """See `Journal.lapse_if_gone`."""
        return await self._inner.lapse_if_gone(owner)

    async def register_flows(self, flows: Sequence[FlowRecord]) -> None:
        """See `Journal.register_flows`."""
        await self._inner.register_flows(flows)

    async def flows(self) -> list[FlowRecord]:
        """The fleet's flows; see `Journal.flows`."""
        return await self._inner.flows()

    async def record_dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        """Keep dead letters as this tenant's; see `Journal.record_dead_letters`."""
        mark = {_TENANT_HEADER: self._scope.tenant}
        await self._inner.record_dead_letters(
            [replace(each, headers={**each.headers, **mark}) for each in letters]
        )

    async def dead_letters(self, limit: int = 50) -> list[DeadLetter]:
        """Dead letters that were recorded through a view of this tenant, newest first."""
        own = []
        for letter in await self._inner.dead_letters(max(limit, _PAGE)):
            headers = dict(letter.headers)
            if headers.pop(_TENANT_HEADER, None) == self._scope.tenant:
                own.append(replace(letter, headers=headers))
        return own[:limit]

    async def drop_dead_letters(self, ids: Sequence[str]) -> list[bool]:
        """Delete dead letters of this tenant; another's stay and count as missing."""
        own = {letter.id for letter in await self.dead_letters(_PAGE)}
        wanted = [each for each in ids if each in own]
        gone = dict(zip(wanted, await self._inner.drop_dead_letters(wanted), strict=True))
        return [gone.get(each, False) for each in ids]

    # ---- sweeps and timers ------------------------------------------------------------

    async def take_abandoned(
        self, *, limit: int, resend_after: float, max_recoveries: int
    ) -> list[Runnable]:
        """The tenant's; others are given back. See `Journal.take_abandoned`."""
        return await self._take(
            lambda wanted: self._inner.take_abandoned(
                limit=wanted, resend_after=resend_after, max_recoveries=max_recoveries
            ),
            limit,
        )

    async def take_unsent(
        self, *, limit: int, resend_after: float, backoff_limit: float, queues: Sequence[str] | None
    ) -> list[Runnable]:
        """The tenant's; others are given back. See `Journal.take_unsent`."""
        return await self._take(
            lambda wanted: self._inner.take_unsent(
                limit=wanted,
                resend_after=resend_after,
                backoff_limit=backoff_limit,
                queues=queues,
            ),
            limit,
        )

    async def _take(
        self, take: Callable[[int], Awaitable[list[Runnable]]], limit: int
    ) -> list[Runnable]:
        taken: dict[ExecutionKey, Runnable] = {}
        others: dict[ExecutionKey, None] = {}
        for _ in range(_ROUNDS):
            found = await take(limit - len(taken))
            known = len(taken) + len(others)
            for each in found:
                if self._scope.own(each.row.key):
                    taken[each.row.key] = replace(each, row=self._scope.named(each.row))
                else:
                    others[each.row.key] = None
            full = len(taken) >= limit
            if full or not others or len(taken) + len(others) == known:
                break
        if others:
            await self._inner.defer(list(others), _NOBODY, 0.0)
        return list(taken.values())

    async def exhausted(self, max_recoveries: int, limit: int) -> list[ExecutionRow]:
        """The tenant's; see `Journal.exhausted`."""
        found = await self._inner.exhausted(max_recoveries, max(limit, _PAGE))
        return [self._scope.named(row) for row in found if self._scope.own(row.key)][:limit]

    async def due_timers(self, *, limit: int, hold: float) -> list[DueTimer]:
        """The tenant's; see `Journal.due_timers`."""
        due: list[DueTimer] = []
        for _ in range(_ROUNDS):
            wanted = limit - len(due)
            found = await self._inner.due_timers(limit=wanted, hold=hold)
            due.extend(
                replace(each, row=self._scope.named(each.row))
                for each in found
                if self._scope.own(each.row.key)
            )
            if len(found) < wanted or len(due) >= limit:
                break
        return due

    async def drop_timers(self, timers: Sequence[tuple[ExecutionKey, int]]) -> None:
        """See `Journal.drop_timers`."""
        await self._inner.drop_timers([(self._scope.inward(key), due) for key, due in timers])

    async def arm_timers(self, timers: Sequence[tuple[ExecutionKey, int]]) -> list[bool]:
        """See `Journal.arm_timers`."""
        return await self._inner.arm_timers([(self._scope.inward(key), due) for key, due in timers])

    async def next_timer(self) -> int | None:
        """The fleet's next timer: it may be another tenant's, and then nothing is due here."""
        return await self._inner.next_timer()

    # ---- lists ------------------------------------------------------------------------

    async def count(self, tenant: str | None = None) -> dict[Status, int]:
        """The tenant's executions by status; see `Journal.count`."""
        asked = DEFAULT_TENANT if tenant is None else tenant
        return await self._inner.count(self._scope.only(asked))

    async def find(self, query: ListQuery) -> list[ExecutionRow]:
        """The tenant's executions, newest first; see `Journal.find`."""
        asked = DEFAULT_TENANT if query.tenant is None else query.tenant
        found = await self._inner.find(replace(query, tenant=self._scope.only(asked)))
        return [self._scope.named(row) for row in found]
