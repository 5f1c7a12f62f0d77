"""Appends, admissions and takeovers: the writes under compare-and-set (J2 to J5)."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from loom_mq.errors import LoomError, StorageWriteError
from loom_mq.journal import verdicts
from loom_mq.journal.packing import slice_page
from loom_mq.journal.postgres.arguments import (
    NEVER,
    admit_arguments,
    append_arguments,
    shown,
)
from loom_mq.journal.postgres.endpoint import Connection
from loom_mq.journal.postgres.rows import (
    execution_row,
    unpack_item,
    unpack_snapshot,
    unpack_waiters,
)
from loom_mq.journal.postgres.store import MAX_ROUNDS, Store, loads, micros, restless, waves
from loom_mq.journal.requests import (
    CLAIM_PAGE,
    Admission,
    AdmitVerdict,
    Append,
    AppendVerdict,
    Claim,
    Claimed,
    ClaimVerdict,
)
from loom_mq.journal.transitions import REPAIR_GRACE, admitted
from loom_mq.journal.verdicts import Grant, Standing
from loom_mq.model.execution import ExecutionKey, Waiter


class PostgresWrites(Store):
    """The part of `PostgresJournal` that moves executions on."""

    # ---- admissions -------------------------------------------------------------------

    async def admit(self, admissions: Sequence[Admission]) -> list[AdmitVerdict]:
        """Create pending executions; the same id twice is one execution (F2)."""
        answers: dict[int, AdmitVerdict] = {}
        sizes = [len(each.start) for each in admissions]
        for wave in waves([each.key for each in admissions]):
            for places in loads(wave, sizes):
                answers.update(await self._admit({place: admissions[place] for place in places}))
        return [answers[place] for place in range(len(admissions))]

    async def _admit(self, batch: dict[int, Admission]) -> dict[int, AdmitVerdict]:
        answers: dict[int, AdmitVerdict] = {}
        left = batch
        for _ in range(MAX_ROUNDS):
            answers.update(await self._write_admissions(left))
            left = {place: each for place, each in left.items() if place not in answers}
            if not left:
                return answers
        raise restless(next(iter(left.values())).key)

    async def _write_admissions(self, batch: dict[int, Admission]) -> dict[int, AdmitVerdict]:
        """Verdicts on all but those that were there and are gone (K16, J8)."""
        statement = self._sql.call("admit_v2", 14, "item, moment, made, (execution).*")
        admissions = list(batch.values())

        async def work(connection: Connection) -> list[asyncpg.Record]:
            return await connection.fetch(statement, *admit_arguments(admissions))

        head, *records = await self._pool.write(work)
        if head["made"] + len(records) != len(batch):
            raise StorageWriteError("the journal lost count of a batch of starts; send it again")
        there = {record["item"]: record for record in records}
        answers = {}
        for item, (place, admission) in enumerate(batch.items(), start=1):
            record = there.get(item)
            if record is None:
                row = admitted(admission, head["moment"])
            elif record["execution_id"] is None:
                continue
            else:
                row = execution_row(record)
            created = record is None or record["made"] == 1
            same = row.input_digest == admission.input_digest
            answers[place] = AdmitVerdict(row, created, same)
        return answers

    # ---- appends ----------------------------------------------------------------------

    async def append(self, appends: Sequence[Append]) -> list[AppendVerdict]:
        """Append under fence and sequence (J2, J3, J4)."""
        answers: dict[int, AppendVerdict] = {}
        sizes = [sum(len(event.payload) for event in each.events) for each in appends]
        for wave in waves([each.key for each in appends]):
            for places in loads(wave, sizes):
                answers.update(await self._append({place: appends[place] for place in places}))
        return [answers[place] for place in range(len(appends))]

    async def _append(self, batch: dict[int, Append]) -> dict[int, AppendVerdict]:
        answers: dict[int, AppendVerdict] = {}
        left = batch
        for _ in range(MAX_ROUNDS):
            try:
                answers.update(await self._write_appends(left))
            except StorageWriteError as error:
                if not isinstance(error.__cause__, asyncpg.UniqueViolationError):
                    raise
                return answers | await self._append_apart(left)
            left = {place: append for place, append in left.items() if place not in answers}
            if not left:
                return answers
            answers.update(await self._judge_appends(left))
            left = {place: append for place, append in left.items() if place not in answers}
            if not left:
                return answers
        return answers | {place: AppendVerdict(error=restless(left[place].key)) for place in left}

    async def _append_apart(self, batch: dict[int, Append]) -> dict[int, AppendVerdict]:
        """Find the append whose first id stands elsewhere, and write the others (J3)."""
        if len(batch) == 1:
            ((place, append),) = batch.items()
            return {place: AppendVerdict(error=verdicts.duplicate_id(append))}
        items = list(batch.items())
        middle = len(items) // 2
        first = await self._append(dict(items[:middle]))
        return first | await self._append(dict(items[middle:]))

    async def _write_appends(self, batch: dict[int, Append]) -> dict[int, AppendVerdict]:
        statement = self._sql.call("append_v2", 23)
        appends = list(batch.values())

        async def work(connection: Connection) -> asyncpg.Record | None:
            return await connection.fetchrow(statement, *append_arguments(appends))

        record = await self._pool.write(work)
        if record is None or record["written"] is None:
            return {}
        waiters: dict[int, list[bytes]] = {}
        for item, waiter in zip(record["awaited"] or (), record["waiters"] or (), strict=True):
            waiters.setdefault(item, []).append(waiter)
        places = list(batch)
        return {
            places[item - 1]: AppendVerdict(
                inbox=unread, waiters=unpack_waiters(waiters.get(item, ()))
            )
            for item, unread in zip(record["written"], record["unread"], strict=True)
        }

    async def _judge_appends(self, batch: dict[int, Append]) -> dict[int, AppendVerdict]:
        """Verdicts on what was not written; none for what could be written now."""
        places = list(batch)
        records = await self._standings(
            [batch[place].key for place in places],
            [batch[place].events[0].seq for place in places],
            [batch[place].events[-1].seq for place in places],
        )
        answers: dict[int, AppendVerdict] = {}
        for at, place in enumerate(places, start=1):
            append = batch[place]
            record = records.get(at)
            low, high = append.events[0].seq, append.events[-1].seq + 1
            grant = verdicts.judge_append(
                None if record is None else _standing(record),
                append,
                recorded=()
                if record is None
                else tuple(event.id for event in slice_page(record["recorded"], low, high)),
                first_id_known=False,
                now=0 if record is None else record["moment"],
            )
            if isinstance(grant, LoomError):
                answers[place] = AppendVerdict(error=grant)
            elif grant is Grant.REPEATED and record is not None:
                waiters: tuple[Waiter, ...] = ()
                if append.index.status.terminal:
                    waiters = unpack_waiters(record["waiters"])
                answers[place] = AppendVerdict(inbox=record["inbox"], waiters=waiters)
        return answers

    # ---- takeovers --------------------------------------------------------------------

    async def claim(self, claims: Sequence[Claim]) -> list[ClaimVerdict]:
        """Take over by compare-and-set (J5, F7)."""
        answers: dict[int, ClaimVerdict] = {}
        for places in waves([each.key for each in claims]):
            answers.update(await self._claim({place: claims[place] for place in places}))
        return [answers[place] for place in range(len(claims))]

    async def _claim(self, batch: dict[int, Claim]) -> dict[int, ClaimVerdict]:
        answers: dict[int, ClaimVerdict] = {}
        left = batch
        for _ in range(MAX_ROUNDS):
            answers.update(await self._write_claims(left))
            left = {place: claim for place, claim in left.items() if place not in answers}
            if not left:
                return answers
            answers.update(await self._judge_claims(left))
            left = {place: claim for place, claim in left.items() if place not in answers}
            if not left:
                return answers
        return answers | {place: ClaimVerdict(error=restless(left[place].key)) for place in left}

    async def _write_claims(self, batch: dict[int, Claim]) -> dict[int, ClaimVerdict]:
        places = list(batch)
        claims = list(batch.values())
        records = await self._write_rows(
            self._sql.call(
                "claim_v2",
                8,
                "item, moment, start, appends, mail, seq, fold, state, (execution).*",
            ),
            [each.key.tenant for each in claims],
            [each.key.execution_id for each in claims],
            [each.owner for each in claims],
            [each.expected_fence for each in claims],
            [None if each.deadline is None else micros(each.deadline) for each in claims],
            [each.preempt for each in claims],
            [each.known_seq for each in claims],
            CLAIM_PAGE,
        )
        return {
            places[record["item"] - 1]: ClaimVerdict(
                _claimed(record, claims[record["item"] - 1].known_seq)
            )
            for record in records
        }

    async def _judge_claims(self, batch: dict[int, Claim]) -> dict[int, ClaimVerdict]:
        """Refusals of what was not claimed; none for what could be claimed now."""
        places = list(batch)
        nothing = [NEVER] * len(places)
        records = await self._standings([batch[place].key for place in places], nothing, nothing)
        answers: dict[int, ClaimVerdict] = {}
        for at, place in enumerate(places, start=1):
            record = records.get(at)
            grant = verdicts.judge_claim(
                None if record is None else _standing(record),
                batch[place],
                now=0 if record is None else record["moment"],
            )
            if isinstance(grant, LoomError):
                answers[place] = ClaimVerdict(error=grant)
        return answers

    async def acquire_fence(self, key: ExecutionKey, expected: int | None) -> int:
        """Take the next fence, whoever holds the execution (J5); for repair and tests.

        Raises:
            StaleFenceError: another moved it first.
            UnknownExecutionError: no such execution.
        """
        record = await self._write_row(
            self._sql.call("fence_v1", 4, "fence_v1 AS fence"), *key, expected, micros(REPAIR_GRACE)
        )
        if record["fence"] is not None:
            return int(record["fence"])
        found = await self._read_rows(
            self._sql.call("rows_v1", 2, "item, (execution).*"), [key.tenant], [key.execution_id]
        )
        verdicts.judge_fence(execution_row(found[0]) if found else None, key, expected)
        raise restless(key)

    async def defer(
        self,
        keys: Sequence[ExecutionKey],
        owner: str,
        delay: float | None,
        fences: Sequence[int] | None = None,
        trouble: str | None = None,
    ) -> None:
        """Give executions back; a hint set by mail since the claim stays."""
        fence_of = dict(zip(keys, [None] * len(keys) if fences is None else fences, strict=True))
        ordered = sorted(fence_of)
        if ordered:
            await self._write_rows(
                self._sql.call("defer_v2", 6),
                [key.tenant for key in ordered],
                [key.execution_id for key in ordered],
                [fence_of[key] for key in ordered],
                owner,
                None if delay is None else micros(delay),
                shown(trouble),
            )


def _standing(record: asyncpg.Record) -> Standing:
    return Standing(execution_row(record), record["alive"])


def _claimed(record: asyncpg.Record, known_seq: int) -> Claimed:
    row = execution_row(record)
    snapshot = unpack_snapshot(record)
    if snapshot is not None:
        known_seq = snapshot.seq
    events = slice_page(record["appends"], known_seq + 1, known_seq + 1 + CLAIM_PAGE)
    newest = events[-1].seq if events else known_seq
    return Claimed(
        row=row,
        events=tuple(events),
        more=newest < row.last_seq,
        start=record["start"],
        inbox=tuple(unpack_item(row.key, each) for each in record["mail"]),
        now=record["moment"],
        snapshot=snapshot,
    )
