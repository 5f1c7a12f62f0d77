"""What statements cost follows what is due, not what is stored, whenever they were planned."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from loom_mq.journal.postgres import PostgresJournal, migrate
from loom_mq.journal.postgres.endpoint import Connection
from loom_mq.journal.protocol import Admission, ListQuery, Rewrite
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey, Status, Waiter
from loom_mq.model.policies import StartPolicy
from loom_mq.testing.conformance.journal_rig import (
    COMPLETED,
    LONG,
    Rig,
    Stores,
    events,
    folded,
    name,
)
from loom_mq.testing.conformance.journal_schedules import a_schedule
from loom_mq.testing.servers import PostgresServer
from tests.conformance.postgres_support import connected

PARKED = 100_000
RUNNING = 1_000
DUE = 20
"""How much of each kind is due in the database below."""
TABLES = {"executions", "events", "snapshots", "inbox", "timers", "schedules"}

FILL = """
INSERT INTO loom.executions (fence, last_seq, attempt, hints, inbox, recoveries, created_at,
    updated_at, wake_at, hint_at, littered, tenant, execution_id, status, queue, owner, flow,
    version, input_digest, waiters, snapshot_seq, in_doubt, trouble)
SELECT 1, 1, 1, 0, 0, 0, n, n, CASE WHEN n % 2 = 0 THEN 4102444800000000 + n END,
    CASE WHEN n < $4 THEN 5 WHEN n % 5 = 0 THEN 4102444800000000 + n END,
    true, 'default', $1 || '-' || n, $2, 'q' || n % 7, $3, 'flow', '1', '\\x00', '{}',
    CASE WHEN n % 2 = 0 THEN 1 END,
    CASE WHEN n % 5000 = 0 THEN '["step"]' END, CASE WHEN n % 5000 = 1 THEN 'mismatch' END
FROM generate_series(1, $5::bigint) AS n
"""
LOGS = """
INSERT INTO loom.events (tenant, execution_id, seq, last_seq, first_id, body)
SELECT tenant, execution_id, 0, 1, decode(md5(execution_id), 'hex'), '\\x90' FROM loom.executions
ON CONFLICT DO NOTHING
"""
SNAPSHOTS = """
INSERT INTO loom.snapshots (tenant, execution_id, seq, fold, state)
SELECT tenant, execution_id, snapshot_seq, 2, '\\x80' FROM loom.executions
WHERE snapshot_seq IS NOT NULL
ON CONFLICT DO NOTHING
"""
TIMERS = """
INSERT INTO loom.timers (tenant, execution_id, due, visible_at)
SELECT tenant, execution_id, due, due
FROM (
    SELECT e.*, CASE WHEN created_at <= $1 THEN created_at ELSE 4102444800000000 + created_at END
        AS due
    FROM loom.executions AS e WHERE status = 'suspended'
) AS parked
"""
SCHEDULES = """
INSERT INTO loom.schedules (revision, due, visible_at, created_at, updated_at, paused, tenant,
    schedule_id, flow, definition, state)
SELECT 1, due, due, n, n, false, 'default', 'schedule-' || n, 'flow', '\\x80', '\\x80'
FROM (
    SELECT n, CASE WHEN n <= $1 THEN n ELSE 4102444800000000 + n END AS due
    FROM generate_series(1, $2::bigint) AS n
) AS planned
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server() -> AsyncIterator[PostgresServer]:
    """A server that looks after nothing by itself: no statistics come between."""
    settings = {"autovacuum": "off", "session_preload_libraries": "auto_explain"}
    async with PostgresServer(fsync=False, settings=settings) as server:
        yield server


class Plans:
    """The plans of everything that a journal does.

    Args:
        journal: open, with one connection.
    """

    def __init__(self, journal: PostgresJournal) -> None:
        self._journal = journal
        self.found: list[dict[str, Any]] = []

    async def watch(self) -> None:
        """Note every plan from now on."""
        await self._journal._pool.read(self._turn_on)

    async def _turn_on(self, connection: Connection) -> None:
        connection.add_log_listener(self._note)
        await connection.execute(
            "SET client_min_messages = log; SET auto_explain.log_format = json;"
            "SET auto_explain.log_analyze = on; SET auto_explain.log_timing = off;"
            "SET auto_explain.log_nested_statements = on; SET auto_explain.log_min_duration = 0"
        )

    def _note(self, _connection: object, message: Any) -> None:
        head, _, plan = message.message.partition("plan:\n")
        if head.startswith("duration"):
            self.found.append(json.loads(plan))

    def check(self, most: int) -> set[str]:
        """Nothing looked at more than `most` rows of a table; which indexes were used."""
        used = set()
        for plan in self.found:
            for node in _nodes(plan["Plan"]):
                if node.get("Relation Name") not in TABLES or "Scan" not in node["Node Type"]:
                    continue
                loops = node["Actual Loops"]
                if loops == 0:
                    continue
                passed_by = node.get("Rows Removed by Filter", 0)
                looked_at = loops * (node["Actual Rows"] + passed_by)
                where = f"{node['Node Type']} on {node['Relation Name']} in {plan['Query Text']}"
                assert node["Node Type"] != "Seq Scan", where
                assert looked_at <= most, f"{looked_at} rows: {where}"
                used.add(node.get("Index Name", node["Node Type"]))
        self.found.clear()
        return used


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


async def everything(journal: PostgresJournal) -> None:
    """Call every method that a running fleet calls."""
    rig = Rig(Stores(journal, journal))
    key = await rig.started("w")
    lease = await rig.alive("w")
    await journal.get([key])
    await journal.read(key)
    await journal.read(key, newest=True, limit=1)
    await rig.deliver(key)
    await journal._write_rows("SELECT * FROM loom.renew_v1('w', 1000000000, NULL)")
    await journal.inbox([key])
    await rig.append(key, events(1), consume=("item",))
    await rig.append(key, events(7))
    await rig.deliver(key, "refused")
    await journal.discard([(key, "refused")])
    await rig.claim(key, "w", 1)
    await rig.claim(key, "other", 1)
    await journal.acquire_fence(key, 2)
    await journal.defer([key], "w", LONG)
    await journal.watch(key, Waiter("r", "c"))
    await rig.append(key, events(2, fence=3), fence=3, index=COMPLETED, release=True)
    await rig.parked(timers=(6,))
    await journal.take_abandoned(limit=100, resend_after=LONG, max_recoveries=10)
    await journal.exhausted(10, 100)
    await journal.take_unsent(limit=100, resend_after=LONG, backoff_limit=LONG, queues=None)
    await journal.take_unsent(limit=100, resend_after=LONG, backoff_limit=LONG, queues=["q1"])
    due = await journal.due_timers(limit=100, hold=LONG)
    await journal.drop_timers([(each.row.key, each.due) for each in due])
    await journal.arm_timers([(each.row.key, each.due) for each in due])
    await journal.next_timer()
    await schedules(journal)
    await journal.find(ListQuery(limit=20))
    await journal.find(ListQuery(limit=20, status=Status.RUNNING))
    for status in (None, Status.SUSPENDED):
        await journal.find(ListQuery(status=status, in_doubt=True))
        await journal.find(ListQuery(status=status, troubled=True, labels={"a": "b"}))
    await whole_executions(rig)
    await journal._write_rows("SELECT * FROM loom.retire_v1('w')")
    await lease.close()


async def schedules(journal: PostgresJournal) -> None:
    """Call every method that has to do with schedules."""
    new = await journal.put_schedule(a_schedule(due=7), None)
    await journal.put_schedule(new, 1)
    await journal.put_schedule(new, 1)
    assert await journal.schedule(new.key) is not None
    await journal.schedules(DEFAULT_TENANT, limit=20)
    await journal.schedules(limit=20, after=new.key)
    await journal.due_schedules(limit=2 * DUE, hold=LONG)
    assert await journal.drop_schedule(new.key, 2)


async def whole_executions(rig: Rig) -> None:
    """Call every method that has to do with logs as a whole."""
    journal = rig.journal
    key = await rig.started("w", count=3)
    await journal.save_snapshots([(key, folded(1))])
    await journal.snapshot(key)
    claimed = (await rig.claim(key, "w", 1)).claimed
    assert claimed is not None
    assert claimed.snapshot == folded(1)
    planting = rig.planting(80, status=Status.FAILED, snapshot=folded(3), timers=(5,))
    await rig.planted(planting)
    start = Admission(
        key=planting.row.key,
        flow="flow",
        version="1",
        queue="q",
        start=b"",
        input_digest=b"",
        policy=StartPolicy.AFTER_FAILURE,
        retire_as=name("retired"),
    )
    (verdict,) = await journal.admit([start])
    assert verdict.created
    aside = ExecutionKey(DEFAULT_TENANT, start.retire_as)
    log = await journal.read(aside, newest=True, limit=10)
    rewrite = Rewrite(key=aside, events=tuple(log), snapshot=folded(79))
    assert await journal.rewrite([rewrite]) == [None]
    assert await journal.read(aside) == log
    assert await journal.delete([aside]) == [None]


async def fill(dsn: str) -> None:
    """Many parked, some running, a few of everything due."""
    async with connected(dsn) as connection:
        for name, status, owner, due, number in (
            ("parked", "suspended", None, 1, PARKED),
            ("running", "running", "alive", 1, RUNNING),
            ("dead", "running", "dead", 1, DUE),
            ("unsent", "pending", None, DUE + 1, DUE),
        ):
            await connection.execute(FILL, name, status, owner, due, number)
        await connection.execute(LOGS)
        await connection.execute(SNAPSHOTS)
        await connection.execute(TIMERS, DUE)
        await connection.execute(SCHEDULES, DUE, PARKED)


@pytest.mark.parametrize("analyzed", [False, True])
async def test_cost_follows_what_is_due(server: PostgresServer, analyzed: bool) -> None:
    """F7, F9: with plans from when the tables were empty, and with new ones over full tables."""
    dsn = await server.create_database(f"plans_{analyzed}".lower())
    await migrate(dsn)
    async with PostgresJournal(dsn, pool_size=1) as journal:
        rig, plans = Rig(Stores(journal, journal)), Plans(journal)
        if not analyzed:
            for _ in range(2):
                await everything(journal)
        await fill(dsn)
        if analyzed:
            async with connected(dsn) as connection:
                await connection.execute("ANALYZE")
        lease = await rig.alive("alive")
        await plans.watch()
        await everything(journal)
        await lease.close()
        used = plans.check(most=6 * DUE)
        assert used >= {
            "executions_pkey",
            "executions_owned",
            "executions_hinted",
            "executions_listed",
            "executions_mail",
            "executions_in_doubt",
            "executions_troubled",
            "snapshots_pkey",
            "events_pkey",
            "inbox_unread",
            "timers_visible",
            "timers_pkey",
            "schedules_pkey",
            "schedules_visible",
            "Tid Scan",
        }


async def test_claim_looks_for_no_snapshot_where_there_is_none(server: PostgresServer) -> None:
    """J7: the row says so; and a claimant that knows as much gets none either."""
    dsn = await server.create_database("claims")
    await migrate(dsn)
    async with PostgresJournal(dsn, pool_size=1) as journal:
        rig, plans = Rig(Stores(journal, journal)), Plans(journal)
        without, known, wanted = [await rig.started(count=3) for _ in range(3)]
        await journal.save_snapshots([(known, folded(1)), (wanted, folded(1))])
        await plans.watch()
        await rig.claim(without, "w", 1)
        await rig.claim(known, "w", 1, known_seq=1)
        assert "snapshots_pkey" not in plans.check(most=10)
        await rig.claim(wanted, "w", 1, known_seq=0)
        assert "snapshots_pkey" in plans.check(most=10)


async def test_sweeps_find_what_is_due_among_many(server: PostgresServer) -> None:
    """F7, F9: all of it and nothing else."""
    dsn = await server.create_database("sweeps")
    await migrate(dsn)
    await fill(dsn)
    async with PostgresJournal(dsn) as journal:
        rig = Rig(Stores(journal, journal))
        lease = await rig.alive("alive")
        abandoned = await rig.take_abandoned()
        assert {each.row.execution_id for each in abandoned} == {
            f"dead-{n}" for n in range(1, DUE + 1)
        }
        unsent = await rig.take_unsent()
        assert {each.row.execution_id for each in unsent} == {
            f"unsent-{n}" for n in range(1, DUE + 1)
        }
        due = await journal.due_timers(limit=100, hold=LONG)
        assert [each.row.key for each in due] == [
            ExecutionKey(DEFAULT_TENANT, f"parked-{n}") for n in range(1, DUE + 1)
        ]
        await lease.close()
