"""A tenant's view of a journal is held to the kit, and lets nothing cross (J9)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from msgspec.structs import replace

from loom_mq.errors import (
    DuplicateSequenceError,
    ExecutionAlreadyExistsError,
    ExecutionEndedError,
    ExecutionNotEndedError,
    InvalidIdError,
    StaleFenceError,
    StorageWriteError,
    UnknownExecutionError,
    is_superseded_refusal,
)
from loom_mq.journal.memory import MemoryJournal
from loom_mq.journal.protocol import Admission, Journal, ListQuery, Rewrite
from loom_mq.journal.sqlite import SqliteJournal
from loom_mq.journal.tenant import TenantScopedJournal
from loom_mq.journal.tenant_scope import own_error
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey, Status
from loom_mq.model.policies import StartPolicy
from loom_mq.model.schedules import ScheduleKey
from loom_mq.testing.conformance.journal import JournalConformance, Rig, Stores
from loom_mq.testing.conformance.journal_rig import (
    LONG,
    accepted,
    events,
    folded,
    refused,
)
from loom_mq.testing.conformance.journal_schedules import a_schedule
from tests.conformance.test_journal_memory import HandClock


class TestTenantOverMemory(JournalConformance):
    """J9: over the journal in memory."""

    @pytest_asyncio.fixture
    async def stores(self) -> AsyncIterator[Stores]:
        clock = HandClock()
        inner = MemoryJournal(clock)
        async with TenantScopedJournal(inner, "acme/ü") as first:
            second = TenantScopedJournal(inner, "acme/ü")
            yield Stores(first, second, advance=clock.advance, many_tenants=False)


class TestTenantOverSqlite(JournalConformance):
    """J9: over the embedded journal."""

    @pytest_asyncio.fixture
    async def stores(self, tmp_path: Path) -> AsyncIterator[Stores]:
        inner = SqliteJournal(tmp_path / "journal.db")
        async with TenantScopedJournal(inner, "acme/ü") as first:
            second = TenantScopedJournal(inner, "acme/ü")
            yield Stores(first, second, many_tenants=False)


class Shared:
    """One journal, seen plainly and by two tenants."""

    def __init__(self) -> None:
        clock = HandClock()
        self.inner = MemoryJournal(clock)
        self.plain, self.a, self.b = (
            Rig(Stores(journal, journal, advance=clock.advance))
            for journal in (self.inner, self._view("a"), self._view("b"))
        )

    def _view(self, tenant: str) -> Journal:
        return TenantScopedJournal(self.inner, tenant)


@pytest.fixture
def shared() -> Shared:
    return Shared()


async def test_same_bare_id_in_two_tenants(shared: Shared) -> None:
    """J10, S24: two executions, each under its own tenant in the journal."""
    key = ExecutionKey(DEFAULT_TENANT, "same")
    await shared.a.started(key=key)
    await shared.b.parked()
    await shared.b.started(key=key)
    accepted(await shared.a.append(key, events(1)))
    await shared.b.deliver(key)
    assert (await shared.a.row(key)).last_seq == 1
    assert (await shared.b.row(key)).last_seq == 0
    assert await shared.a.unread(key) == []
    inside = [(await shared.plain.row(ExecutionKey(tenant, "same"))).last_seq for tenant in "ab"]
    assert inside == [1, 0]
    assert await shared.inner.get([key]) == [None]
    assert [row.key for row in await shared.a.journal.find(ListQuery())] == [key]
    assert await shared.a.journal.count() == {Status.RUNNING: 1}
    assert await shared.b.journal.count() == {Status.RUNNING: 1, Status.SUSPENDED: 1}


async def test_foreign_keys_are_refused_before_anything_happens(shared: Shared) -> None:
    """S24: a key that names a tenant reaches nothing, not even the caller's own."""
    await shared.plain.started(key=ExecutionKey("b", "x"))
    for tenant in ("a", "b", ""):
        key = ExecutionKey(tenant, "x")
        journal, rig = shared.a.journal, shared.a
        calls = [
            journal.get([key]),
            journal.read(key),
            journal.watch(key, None),
            journal.inbox([key]),
            journal.defer([key], "w", 0.0),
            journal.discard([(key, "i")]),
            journal.drop_timers([(key, 1)]),
            journal.acquire_fence(key, None),
            journal.deliver([rig.item(key)]),
            journal.find(ListQuery(tenant=tenant)),
            journal.count(tenant),
            journal.snapshot(key),
            journal.save_snapshots([(key, folded(0))]),
            journal.plant([rig.planting(0, key=key)]),
            journal.rewrite([Rewrite(key=key, events=())]),
            journal.delete([key]),
            rig.admitted(key=key),
            rig.append(key, events(1)),
            rig.claim(key, "w", 1, preempt=True),
        ]
        for call in calls:
            with pytest.raises(InvalidIdError):
                await call
    (row,) = await shared.inner.get([ExecutionKey("b", "x")])
    assert row is not None
    assert (row.fence, row.last_seq, row.inbox) == (1, 0, 0)
    assert await shared.inner.count() == {Status.RUNNING: 1}


async def test_refusals_name_the_callers_own_id(shared: Shared) -> None:
    """J9: same class, the original as its cause, and still superseded (F5)."""
    key = await shared.a.started()
    await shared.a.journal.acquire_fence(key, 1)
    verdict = await shared.a.append(key, events(1))
    error = refused(verdict, StaleFenceError)
    assert is_superseded_refusal(error, key.execution_id)
    assert isinstance(error.__cause__, StaleFenceError)
    assert error.__cause__ is not error
    assert (error.held, error.current, error.message) == (1, 2, error.__cause__.message)
    with pytest.raises(StaleFenceError) as raised:
        await shared.a.journal.acquire_fence(key, 1)
    assert raised.value.execution_id == key.execution_id
    assert isinstance(raised.value.__cause__, StaleFenceError)
    ended = await shared.a.ended()
    assert refused(await shared.a.claim(ended, "w", 1), ExecutionEndedError).__cause__ is not None


async def test_refusals_of_whole_executions_name_the_callers_own_id(shared: Shared) -> None:
    """J8, J9: same class, the original as its cause."""
    running, ended = await shared.a.started(), await shared.a.ended()
    unknown = ExecutionKey(DEFAULT_TENANT, "unknown")
    journal = shared.a.journal
    refusals = [
        *await journal.plant([shared.a.planting(0, key=running)]),
        *await journal.rewrite([Rewrite(key=key, events=()) for key in (running, unknown, ended)]),
        *await journal.delete([running, unknown]),
    ]
    wanted = [
        (ExecutionAlreadyExistsError, running),
        (ExecutionNotEndedError, running),
        (UnknownExecutionError, unknown),
        (DuplicateSequenceError, ended),
        (ExecutionNotEndedError, running),
        (UnknownExecutionError, unknown),
    ]
    for refusal, (kind, key) in zip(refusals, wanted, strict=True):
        assert refusal is not None
        assert refusal.execution_id == key.execution_id
        assert type(refusal) is type(refusal.__cause__) is kind
        assert refusal.__cause__ is not refusal


async def test_whole_executions_stay_within_the_tenant(shared: Shared) -> None:
    """S24, J8, K16: whatever is planted, folded, put aside or deleted under the same ids."""
    key, aside = (ExecutionKey(DEFAULT_TENANT, each) for each in ("same", "aside"))
    for rig in (shared.plain, shared.a, shared.b):
        planting = rig.planting(2, key=key, status=Status.FAILED)
        assert await rig.planted(planting) == key
        assert await rig.row(key) == planting.row
    await shared.a.journal.save_snapshots([(key, folded(1))])
    start = Admission(
        key=key,
        flow="f",
        version="1",
        queue="q",
        start=b"",
        input_digest=b"",
        policy=StartPolicy.AFTER_CLOSE,
        retire_as=aside.execution_id,
    )
    (verdict,) = await shared.a.journal.admit([start])
    assert (verdict.created, verdict.row.key) == (True, key)
    assert await shared.a.journal.snapshot(aside) == folded(1)
    for rig in (shared.plain, shared.b):
        assert await rig.journal.get([aside]) == [None]
        assert await rig.journal.snapshot(key) is None
        assert (await rig.row(key)).status is Status.FAILED
    assert await shared.b.journal.delete([key]) == [None]
    assert await shared.a.journal.delete([aside]) == [None]
    assert await shared.inner.count() == {Status.FAILED: 1, Status.PENDING: 1}


def test_refusal_within_a_storage_error_is_renamed_too() -> None:
    """J9, F5: what a storage error means stands in its cause."""
    original = StorageWriteError("the write was refused")
    original.__cause__ = StaleFenceError("scoped/id", held=1, current=2)
    renamed = own_error(original, ExecutionKey(DEFAULT_TENANT, "id"))
    assert type(renamed) is StorageWriteError
    assert is_superseded_refusal(renamed, "id")
    assert not is_superseded_refusal(original, "id")
    plain = StorageWriteError("the disk is full")
    plain.__cause__ = OSError("no space")
    assert own_error(plain, None) is plain
    assert own_error(None, None) is None


async def test_sweeps_take_the_tenants_and_give_the_others_back(shared: Shared) -> None:
    """S24: a view never keeps what belongs to others, and limits count its own."""
    others = [await shared.b.admitted(resend_after=0.0) for _ in range(5)]
    mine = [await shared.a.admitted(resend_after=0.0) for _ in range(3)]
    found = await shared.a.journal.take_unsent(
        limit=2, resend_after=LONG, backoff_limit=LONG, queues=None
    )
    assert [each.row.key for each in found] == mine[:2]
    assert [each.row.key for each in await shared.a.take_unsent()] == mine[2:]
    assert {each.row.key for each in await shared.b.take_unsent()} == set(others)
    dead = {tenant: await getattr(shared, tenant).started("dead") for tenant in "ab"}
    (row,) = await shared.a.journal.exhausted(0, 10)
    assert row.key == dead["a"]
    assert [each.row.key for each in await shared.a.take_abandoned()] == [dead["a"]]
    assert [each.row.key for each in await shared.b.take_unsent()] == [dead["b"]]


async def test_schedules_are_the_tenants(shared: Shared) -> None:
    """F9, S24: the same id in two tenants is two schedules, and limits count the caller's own."""
    key = ScheduleKey(DEFAULT_TENANT, "same")
    for number in range(5):
        await shared.b.journal.put_schedule(a_schedule(str(number), due=5), None)
    theirs = await shared.b.journal.put_schedule(a_schedule(key=key, due=5), None)
    mine = await shared.a.journal.put_schedule(a_schedule(key=key, due=6), None)
    assert (mine.key, mine.revision) == (key, 1)
    mine = await shared.a.journal.put_schedule(replace(mine, state=b"mine"), 1)
    assert await shared.b.journal.schedule(key) == theirs
    assert await shared.inner.schedule(key) is None
    inside = await shared.inner.schedule(ScheduleKey("a", "same"))
    assert inside == replace(mine, tenant="a")
    assert await shared.a.journal.schedules() == [mine]
    assert await shared.a.journal.schedules(DEFAULT_TENANT, after=key) == []
    assert len(await shared.b.journal.schedules(limit=4)) == 4
    assert await shared.a.journal.due_schedules(limit=1, hold=LONG) == [mine]
    assert await shared.a.journal.drop_schedule(key)
    assert await shared.b.journal.schedule(key) == theirs
    for call in (
        shared.a.journal.schedule(ScheduleKey("b", "same")),
        shared.a.journal.schedules("b"),
        shared.a.journal.schedules(after=ScheduleKey("b", "a")),
        shared.a.journal.drop_schedule(ScheduleKey("b", "same")),
        shared.a.journal.put_schedule(replace(theirs, tenant="b"), 1),
    ):
        with pytest.raises(InvalidIdError):
            await call
    assert await shared.b.journal.schedule(key) == theirs


async def test_timers_mail_and_letters_are_the_tenants(shared: Shared) -> None:
    """S24: what others have is not shown."""
    mine = await shared.a.parked(timers=(6,))
    for _ in range(5):
        await shared.b.parked(timers=(5,))
    due = await shared.a.journal.due_timers(limit=1, hold=LONG)
    assert [(each.row.key, each.due) for each in due] == [(mine, 6)]
    lease = await shared.a.alive("w")
    held = {tenant: await getattr(shared, tenant).started("w") for tenant in "ab"}
    for tenant, key in held.items():
        await getattr(shared, tenant).deliver(key)
    assert (await lease.renew(LONG)).mail == (held["a"],)
