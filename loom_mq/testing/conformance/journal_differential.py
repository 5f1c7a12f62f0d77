"""Two journals that get the same operations must give the same answers (J9).

Times are compared by what they mean (none, due, later), because the two journals may
have two clocks; everything else must be equal: refusals with all that they say, rows,
logs, snapshots and inboxes, after every operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from loom_mq.clock import JournalClock
from loom_mq.errors import LoomError
from loom_mq.journal.memory import MemoryJournal
from loom_mq.journal.protocol import Append, Claimed, IndexUpdate, Journal
from loom_mq.journal.requests import AdmitVerdict, AppendVerdict
from loom_mq.model.execution import ExecutionRow, Status, WorkerRecord
from loom_mq.model.policies import StartPolicy
from loom_mq.testing.conformance import journal_operations as ops
from loom_mq.testing.conformance import journal_operations_lifecycle as whole
from loom_mq.testing.conformance.journal_operations import Operation
from loom_mq.testing.conformance.journal_rig import LONG, Stores, name
from loom_mq.testing.conformance.journal_world import (
    ALIVE,
    EXECUTIONS,
    FUTURE,
    PAST,
    Kinds,
    World,
)

LENGTH: Final = 20
"""Operations of a run at least: short ones seldom meet what an earlier one has left."""

_executions = st.sampled_from([0, 0, 0, 0, 1, 1, 2])  # the last is seldom admitted
_owners = st.integers(0, ALIVE)
_alive = st.integers(0, ALIVE - 1)
_items = st.integers(0, 2)
_any = st.sampled_from([*[0] * 4, 1, 1, 2, EXECUTIONS])
_mostly_right = st.sampled_from([0, 0, 0, 0, 0, -1, 1])

_writes = st.builds(
    ops.Write,
    execution=_executions,
    fence_shift=_mostly_right,
    seq_shift=_mostly_right,
    count=st.integers(1, 3),
    status=st.sampled_from(
        [Status.RUNNING] * 4 + [Status.SUSPENDED] * 3 + [Status.COMPLETED, Status.FAILED]
    ),
    kind=st.sampled_from([Kinds.NEW] * 5 + [Kinds.AGAIN, Kinds.MOVED, Kinds.OTHER]),
    claimant=st.one_of(st.none(), _owners),
    timers=st.sampled_from([(), (), (PAST,), (FUTURE,), (PAST, FUTURE)]),
    consume=st.sampled_from([(), (), (0,), (0, 1), (2,)]),
)


def operations() -> st.SearchStrategy[list[Operation]]:
    """Runs of operations that begin with one execution held, one pending, one unknown."""
    admissions = st.builds(
        ops.Admit,
        execution=_executions,
        digest=st.sampled_from([b"a", b"a", b"b"]),
        waiter=st.one_of(st.none(), _items),
        overdue=st.booleans(),
    )
    writes = st.builds(ops.WriteBatch, st.tuples(_writes))
    batches = st.builds(ops.WriteBatch, st.lists(_writes, min_size=2, max_size=3).map(tuple))
    claims = st.builds(
        ops.Take,
        execution=_executions,
        owner=_owners,
        fence_shift=st.sampled_from([0, 0, 0, -1, 1]),
        preempt=st.sampled_from([False, False, True]),
        known_seq=st.integers(-1, 4),
        wedged=st.booleans(),
    )
    mail = st.builds(
        ops.Deliver, _executions, st.lists(_items, max_size=2).map(tuple), st.booleans()
    )
    sweeps = st.builds(ops.Sweep, st.integers(1, 3))
    one = st.one_of(
        *(writes, writes, writes, batches, batches, claims, claims, mail, mail, sweeps, sweeps),
        admissions,
        st.builds(ops.Fence, _executions, st.sampled_from([None, 0, 0, -1, 1])),
        st.builds(
            ops.GiveBack,
            _owners,
            st.sampled_from([None, 0.0, LONG]),
            st.sampled_from([None, None, 0, -1]),
            st.sampled_from([None, None, "trouble"]),
        ),
        st.builds(ops.Discard, _executions, _items),
        st.builds(ops.Watch, _executions, st.one_of(st.none(), _items)),
        st.builds(ops.Retire, _alive),
        st.builds(ops.Renew, _alive),
        st.builds(ops.Fire, st.booleans()),
        st.builds(ops.Arm, _executions, st.sampled_from([(), (PAST,), (PAST, FUTURE), (FUTURE,)])),
        st.builds(ops.Look, st.one_of(st.none(), st.sampled_from(Status))),
        *_whole_executions(),
    )
    begin: list[Operation] = [
        ops.Admit(0, b"a", 0, overdue=False),
        ops.Admit(1, b"a", None, overdue=True),
        # held by a live owner that has written nothing
        ops.Take(0, 0, 0, preempt=False, known_seq=-1, wedged=False),
    ]
    return st.lists(one, min_size=LENGTH, max_size=2 * LENGTH).map(lambda rest: begin + rest)


def _whole_executions() -> list[st.SearchStrategy[Operation]]:
    ended = st.sampled_from([Status.COMPLETED, Status.FAILED])
    restarts = st.builds(
        whole.Restart, _any, st.sampled_from(StartPolicy), st.one_of(st.none(), _items)
    )
    saves = st.builds(
        whole.Save,
        _executions,
        st.lists(st.sampled_from([0, 0, -1, -2, 1]), min_size=1, max_size=2).map(tuple),
    )
    plantings = st.builds(
        whole.Plant,
        execution=_any,
        count=st.integers(1, 4),
        first=st.sampled_from([0, 0, 1, 3]),
        status=st.one_of(st.sampled_from([Status.SUSPENDED, Status.RUNNING]), ended),
        timers=st.sampled_from([(), (), (PAST,), (FUTURE,)]),
    )
    recasts = st.builds(
        whole.Recast,
        execution=_any,
        cut=st.sampled_from([0, 0, 1, 2, 3]),
        end_shift=st.sampled_from([0, 0, 0, 0, -1, 1]),
        reach=st.one_of(st.none(), st.integers(0, 2)),
    )
    deletions = st.builds(whole.Delete, st.lists(_any, min_size=1, max_size=2).map(tuple))
    flags = st.sampled_from([False, False, True])
    searches = st.builds(
        whole.Search, flags, flags, flags, flags, st.sampled_from([None, None, "1", "2"])
    )
    return [restarts, restarts, saves, saves, plantings, recasts, recasts, deletions, searches]


async def differential(a: Journal, b: Journal, plan: Sequence[Operation]) -> None:
    """Play a plan on two journals and compare them after every step.

    The journals may hold other executions; this run's have names of their own, and are
    ended when it is over.

    Args:
        a: the reference.
        b: another journal.
        plan: from `operations`.

    Raises:
        AssertionError: they differ; says where.
    """
    world = World(name("diff"))
    for journal in (a, b):
        world.sessions[id(journal)] = {}
        for number in range(ALIVE):
            await _lease(journal, world, number)
    try:
        for world.step, operation in enumerate(plan, start=1):
            world.rows = dict(zip(world.keys, await a.get(world.keys), strict=True))
            written = {key: list(appends) for key, appends in world.written.items()}
            answer = await _play(operation, a, world)
            # both are asked from the same standing
            after, world.written = world.written, written
            other = await _play(operation, b, world)
            world.written = after
            where = f"step {world.step}, {operation}"
            assert other == answer, f"{where}: {other} instead of {answer}"
            shown, wanted = await _picture(b, world), await _picture(a, world)
            assert shown == wanted, f"{where}: left {shown} instead of {wanted}"
    finally:
        await _end_all(b, world)


async def _lease(journal: Journal, world: World, number: int) -> None:
    owner, sessions = world.owner(number), world.sessions[id(journal)]
    if owner in sessions:
        await sessions[owner].close()
    record = WorkerRecord(owner=owner, role="worker", host="here")
    sessions[owner] = await journal.lease(record, LONG)


async def _play(operation: Operation, journal: Journal, world: World) -> object:
    try:
        answer: object = await operation.play(journal, world)
    except LoomError as error:
        answer = error
    if isinstance(operation, ops.Retire):
        await _lease(journal, world, operation.owner)
    return plain(answer, await journal.now())


async def _picture(journal: Journal, world: World) -> object:
    """Everything that can be read about the executions of this run."""
    rows = await journal.get(world.keys)
    logs = [await journal.read(key) for key in world.keys]
    snapshots = [await journal.snapshot(key) for key in world.keys]
    inboxes = await journal.inbox(world.keys)
    return plain([rows, logs, snapshots, inboxes], await journal.now())


async def _end_all(journal: Journal, world: World) -> None:
    for sessions in world.sessions.values():
        for session in sessions.values():
            await session.retire()
            await session.close()
    for key, row in zip(world.keys, await journal.get(world.keys), strict=True):
        if row is None or row.status.terminal:
            continue
        fence = await journal.acquire_fence(key, None)
        end = world.envelopes(row.last_seq + 1, 1, fence)
        index = IndexUpdate(status=Status.CANCELLED)
        await journal.append([Append(key=key, fence=fence, events=end, index=index, release=True)])


def plain(value: object, now: int) -> object:
    """An answer as values that are equal when the answers mean the same.

    Args:
        value: what a journal answered.
        now: its time.
    """
    if isinstance(value, ExecutionRow):
        fields = msgspec.structs.asdict(value)
        for each in ("created_at", "hint_at", "deadline"):
            fields[each] = _meaning(fields[each], now)
        if value.started_at is None:
            fields["updated_at"] = None
        return fields
    if isinstance(value, LoomError):
        return type(value).__name__, {
            each: told for each, told in vars(value).items() if not each.startswith("__")
        }
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return [plain(each, now) for each in value]
    if isinstance(value, msgspec.Struct):
        fields = {each: plain(getattr(value, each), now) for each in value.__struct_fields__}
        _forgive(value, fields)
        return type(value).__name__, fields
    return value


def _forgive(value: msgspec.Struct, fields: dict[str, object]) -> None:
    """Take out what the protocol leaves open."""
    if isinstance(value, Claimed):
        del fields["now"]
    elif isinstance(value, AdmitVerdict) and value.created:
        del fields["same"]
    elif isinstance(value, AppendVerdict):
        fields["waiters"] = sorted((each.reply_to, each.correlation) for each in value.waiters)


def _meaning(time: int | None, now: int) -> str | None:
    if time is None:
        return None
    return "due" if time <= now else "later"


class DifferentialRules:
    """J9: equal to the journal in memory, under any operations."""

    @settings(
        max_examples=60,
        deadline=None,
        phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
        # a run ends what it began, so one storage serves all; and each store is a class
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.differing_executors,
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
        ],
    )
    @given(plan=operations())
    async def test_any_operations_give_equal_answers(
        self, stores: Stores, plan: list[Operation]
    ) -> None:
        """J9: refusals, rows, logs, snapshots and inboxes, after every step."""
        await differential(MemoryJournal(JournalClock()), stores.first, plan)
