"""The index beside the logs, lists, and hostile names."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest

from loom_mq.errors import InvalidIdError
from loom_mq.journal.protocol import ClaimIntent, IndexUpdate, ListQuery
from loom_mq.kernel.fold import fold
from loom_mq.model import events as ev
from loom_mq.model.events import EVENT_SCHEMA, Envelope, kind_of_type
from loom_mq.model.execution import (
    DEFAULT_TENANT,
    ExecutionKey,
    ExecutionRow,
    FlowRecord,
    InboxItem,
    InboxKind,
    Status,
    Waiter,
)
from loom_mq.model.failures import Failure
from loom_mq.testing.conformance.journal_rig import COMPLETED, LONG, Rig, accepted, events, name

HOSTILE_IDS: Final = (
    "a/b",
    "a#b?c=1",
    "x_'some/value'",
    'double " quote',
    "a b",
    " leading and trailing ",
    "100%",
    "%s",
    "{0}",
    ".",
    "..",
    "../../etc",
    "a:b@c",
    "back\\slash",
    "ünï-漢字-😀",
    "e\u0301",
    "\u00e9",
    "'; DROP TABLE executions;--",
    "trailing newline\n",
    "\ttab\rreturn\x01control",
    "NULL",
    "\u202ereversed",
    "x" * 255,
    "😀" * 63,
)
"""Lawful ids that have broken somebody's routes or queries (C53)."""

_encode = msgspec.msgpack.Encoder().encode


class IndexRules:
    """J6: the index row is what the log says."""

    async def test_index_row_is_the_fold_of_the_log(self, rig: Rig) -> None:
        """J6: after every append of a life with parks, a recovery, a doubt and a failure."""
        key = await rig.admitted()
        failure = Failure("ValueError", "builtins", "no\nmore")
        waits = (
            ev.Wait("/g:0", ev.WaitKind.GATE, "gate", 9_000),
            ev.Wait("/t:0", ev.WaitKind.TIMER, "", 7_000),
        )
        doubt = ev.Wait("/c:0?1", ev.WaitKind.VERDICT, "charge", None)
        life: list[tuple[int, list[msgspec.Struct]]] = [
            (1, [ev.ExecutionStarted("flow", "1", b"in"), ev.StepStarted("/s:0", "s", 1)]),
            (1, [ev.StepFailed("/s:0", failure)]),
            (2, [ev.ExecutionRecovered("w2", 2)]),
            (3, [ev.ExecutionRecovered("w3", 3), ev.DecisionRecorded("/d:0", "d", b"v")]),
            (3, [ev.StepStarted("/c:0", "charge", 1)]),
            (4, [ev.EffectInDoubt("/c:0", "charge", 1), ev.ExecutionSuspended((doubt,))]),
            (5, [ev.ExecutionSuspended(waits)]),
            (6, [ev.ExecutionResumed(("/t:0",)), ev.AnswerTaken("/g:0", "gate", b"a", "i")]),
            (6, [ev.ExecutionFailed(failure)]),
        ]
        state = fold(())
        for fence, payloads in life:
            written = tuple(
                Envelope(
                    events(0)[0].id,
                    state.last_seq + 1 + place,
                    kind_of_type[type(payload)],
                    1_000 + state.last_seq + place,
                    fence,
                    True,
                    EVENT_SCHEMA,
                    _encode(payload),
                )
                for place, payload in enumerate(payloads)
            )
            fold(written, state)
            row = await rig.row(key)
            claim = None if row.fence == fence else ClaimIntent(owner="w", expected_fence=fence - 1)
            index = IndexUpdate(
                status=state.status,
                wake_at=state.wake_at,
                gates=state.gates,
                error=None if state.failure is None else state.failure.headline,
                recoveries=state.recoveries,
                in_doubt=state.in_doubt,
            )
            resting = state.status is not Status.RUNNING
            accepted(
                await rig.append(
                    key, written, fence=fence, index=index, claim=claim, release=resting
                )
            )
            await self._agrees(rig, key)
        assert (await rig.row(key)).error == "ValueError: no"

    async def _agrees(self, rig: Rig, key: ExecutionKey) -> None:
        row, state = await rig.row(key), fold(await rig.log(key))
        assert (row.status, row.last_seq) == (state.status, state.last_seq)
        assert (row.wake_at, row.gates, row.recoveries, row.in_doubt) == (
            state.wake_at,
            state.gates,
            state.recoveries,
            state.in_doubt,
        )
        assert (row.started_at, row.updated_at, row.ended_at) == (
            state.started_at,
            state.updated_at,
            state.ended_at,
        )
        assert row.error == (None if state.failure is None else state.failure.headline)


class ListingRules:
    """Lists for people."""

    async def _one_of_each(self, rig: Rig) -> list[ExecutionRow]:
        """Rows of four executions, oldest first."""
        made = []
        for making in (rig.parked(), rig.ended(), rig.admitted(flow="g"), rig.started(queue="r")):
            made.append(await making)
            await rig.let_pass(0.001)
        return [await rig.row(key) for key in made]

    async def test_newest_first(self, rig: Rig) -> None:
        """F11: with every filter."""
        parked, ended, pending, running = await self._one_of_each(rig)
        newest = [running, pending, ended, parked]
        filters: list[tuple[ListQuery, list[ExecutionRow]]] = [
            (ListQuery(), newest),
            (ListQuery(tenant=DEFAULT_TENANT), newest),
            (ListQuery(status=Status.SUSPENDED), [parked]),
            (ListQuery(status=Status.FAILED), []),
            (ListQuery(flow="g"), [pending]),
            (ListQuery(queue="r"), [running]),
            (ListQuery(queue="r", status=Status.PENDING), []),
            (ListQuery(limit=2), newest[:2]),
        ]
        for query, wanted in filters:
            assert await rig.journal.find(query) == wanted, query

    async def test_filters_of_operators(self, rig: Rig) -> None:
        """F11, K3, K6, J8: by version, labels, end, doubt and trouble, alone and together."""
        made = []
        cases: tuple[tuple[Status, dict[str, Any]], ...] = (
            (Status.SUSPENDED, {"in_doubt": (), "trouble": None, "labels": {}}),
            (Status.SUSPENDED, {"trouble": None}),
            (Status.SUSPENDED, {"in_doubt": (), "version": "8"}),
            (Status.RUNNING, {"in_doubt": ("a", "b"), "labels": {"a": "ü", "c": "1"}}),
            (Status.FAILED, {"in_doubt": (), "trouble": None, "ended_at": 100}),
            (Status.COMPLETED, {"in_doubt": (), "trouble": None, "ended_at": 200}),
        )
        for number, (status, changes) in enumerate(cases):
            planting = rig.planting(0, status=status)
            row = msgspec.structs.replace(planting.row, created_at=1000 - number, **changes)
            await rig.planted(msgspec.structs.replace(planting, row=row))
            made.append(row)
        for query, wanted in (
            (ListQuery(), [0, 1, 2, 3, 4, 5]),
            (ListQuery(version="8"), [2]),
            (ListQuery(version=""), []),
            (ListQuery(labels={"a": "ü"}), [1, 2, 3, 4, 5]),
            (ListQuery(labels={"a": "ü", "b": ""}), [1, 2, 4, 5]),
            (ListQuery(labels={"a": "ü", "c": "1"}), [3]),
            (ListQuery(labels={"a": "u"}), []),
            (ListQuery(labels={"c": ""}), []),
            (ListQuery(labels={"a": "ü"}, limit=2), [1, 2]),
            (ListQuery(labels={"a": "ü"}, limit=2, before=_place(made[2])), [3, 4]),
            (ListQuery(ended_before=100), []),
            (ListQuery(ended_before=101), [4]),
            (ListQuery(ended_before=1000), [4, 5]),
            (ListQuery(ended_before=1000, status=Status.COMPLETED), [5]),
            (ListQuery(in_doubt=True), [1, 3]),
            (ListQuery(in_doubt=True, status=Status.RUNNING), [3]),
            (ListQuery(in_doubt=True, limit=1), [1]),
            (ListQuery(in_doubt=True, before=_place(made[1])), [3]),
            (ListQuery(troubled=True), [2, 3]),
            (ListQuery(troubled=True, limit=1), [2]),
            (ListQuery(troubled=True, before=_place(made[2])), [3]),
            (ListQuery(troubled=True, version="7"), [3]),
            (ListQuery(troubled=True, in_doubt=True), [3]),
            (ListQuery(troubled=True, labels={"b": ""}, before=_place(made[1])), [2]),
            (ListQuery(status=Status.SUSPENDED, labels={"b": ""}), [1, 2]),
        ):
            assert await rig.journal.find(query) == [made[place] for place in wanted], query

    async def test_filters_follow_what_is_written(self, rig: Rig) -> None:
        """K3, K6: what is judged or goes on again is no longer listed."""
        key = await rig.started("w")
        doubt, trouble = ListQuery(in_doubt=True), ListQuery(troubled=True)
        parked = IndexUpdate(status=Status.SUSPENDED, in_doubt=("charge",))
        for seq in (1, 3):
            accepted(await rig.append(key, events(seq), index=parked, release=True))
            await rig.journal.defer([key], "w", None, None, "trouble")
            row = await rig.row(key)
            assert await rig.journal.find(doubt) == await rig.journal.find(trouble) == [row]
            accepted(await rig.append(key, events(seq + 1)))
            assert await rig.journal.find(doubt) == await rig.journal.find(trouble) == []

    async def test_pages_continue_where_the_last_one_ended(self, rig: Rig) -> None:
        """F11: also among executions of one moment, and among those of one status."""
        keys = [await rig.parked() for _ in range(7)]
        wanted = await rig.journal.find(ListQuery(limit=100))
        assert {row.key for row in wanted} == set(keys)
        order = [(row.created_at, row.execution_id) for row in wanted]
        assert order == sorted(order, reverse=True)
        for status in (None, Status.SUSPENDED):
            for limit in (1, 2, 3, 7, 8):
                found: list[ExecutionRow] = []
                before = None
                while page := await rig.journal.find(
                    ListQuery(limit=limit, before=before, status=status)
                ):
                    found += page
                    before = page[-1].created_at, page[-1].execution_id
                assert found == wanted

    async def test_count_by_status(self, rig: Rig) -> None:
        """F11: statuses with none are left out."""
        assert await rig.journal.count() == {}
        await self._one_of_each(rig)
        await rig.ended()
        wanted = {
            Status.SUSPENDED: 1,
            Status.COMPLETED: 2,
            Status.PENDING: 1,
            Status.RUNNING: 1,
        }
        assert await rig.journal.count() == wanted
        assert await rig.journal.count(DEFAULT_TENANT) == wanted


def _place(row: ExecutionRow) -> tuple[int, str]:
    return row.created_at, row.execution_id


class NameRules:
    """J10, C53: any lawful name, everywhere, byte for byte."""

    async def test_hostile_ids_work_everywhere(self, rig: Rig) -> None:
        """J10: each id is itself in every method, and touches no other."""
        keys = [ExecutionKey(DEFAULT_TENANT, each) for each in HOSTILE_IDS]
        for key in keys:
            await self._live(rig, key)
        assert [row and row.key for row in await rig.journal.get(keys)] == keys
        found = await rig.journal.find(ListQuery(limit=1000))
        assert sorted(row.key for row in found) == sorted(keys)
        for key in keys:
            assert len(await rig.log(key)) == 2
            accepted(await rig.append(key, events(2), index=COMPLETED, release=True))
        assert await rig.journal.count() == {Status.COMPLETED: len(keys)}

    async def _live(self, rig: Rig, key: ExecutionKey) -> None:
        text = key.execution_id
        await rig.started(text, key=key, queue=text, waiter=Waiter(text, text))
        item = InboxItem(
            tenant=key.tenant,
            execution_id=text,
            item_id=text,
            kind=InboxKind.ANSWER,
            gate=text,
            wait_id=text,
            correlation=text,
            reply_to=text,
        )
        (verdict,) = await rig.journal.deliver([item])
        assert verdict.row is not None
        assert verdict.row.key == key
        assert await rig.journal.inbox([key]) == [(item,)]
        lease = await rig.alive(text)
        assert (await lease.renew(LONG)).mail == (key,)
        index = IndexUpdate(status=Status.SUSPENDED, gates=(text,), error=text)
        accepted(
            await rig.append(
                key, events(1), index=index, release=True, timers=(5,), consume=(text,)
            )
        )
        row = await rig.row(key)
        assert (row.gates, row.error, row.queue, row.inbox) == ((text,), text, text, 0)
        due = await rig.journal.due_timers(limit=10, hold=LONG)
        assert [(each.row.key, each.due) for each in due] == [(key, 5)]
        await rig.journal.drop_timers([(key, 5)])
        await rig.journal.defer([key], text, 0.0)
        assert [each.row.key for each in await rig.take_unsent([text])] == [key]
        await rig.journal.register_flows([FlowRecord(flow=text, version=text, queue=text)])
        assert FlowRecord(flow=text, version=text, queue=text) in await rig.journal.flows()
        watched = await rig.journal.watch(key, Waiter(text, "again"))
        assert watched.row is not None
        assert watched.row.key == key

    async def test_tenants_are_apart(self, rig: Rig) -> None:
        """J10: a key is a pair; the same id in two tenants is two executions."""
        if not rig.stores.many_tenants:
            with pytest.raises(InvalidIdError):
                await rig.journal.get([ExecutionKey("b", name("shared"))])
            return
        shared = name("shared")
        keys = [ExecutionKey(tenant, shared) for tenant in ("a", "b", "a/b")]
        keys.append(ExecutionKey("a", f"b/{shared}"))
        for key in keys:
            await rig.started(key=key)
        accepted(await rig.append(keys[0], events(1), index=COMPLETED, release=True))
        await rig.deliver(keys[1])
        assert [(await rig.row(key)).last_seq for key in keys] == [1, 0, 0, 0]
        assert [(await rig.row(key)).inbox for key in keys] == [0, 1, 0, 0]
        assert [row.key for row in await rig.journal.find(ListQuery(tenant="b"))] == [keys[1]]
        assert await rig.journal.count("a") == {Status.COMPLETED: 1, Status.RUNNING: 1}
        assert await rig.journal.count("nobody") == {}
