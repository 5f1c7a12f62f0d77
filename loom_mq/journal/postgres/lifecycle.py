"""Snapshots, and whole executions planted, rewritten and deleted (J7, J8)."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from loom_mq.errors import ExecutionAlreadyExistsError, LoomError
from loom_mq.journal import verdicts
from loom_mq.journal.packing import slice_page
from loom_mq.journal.postgres.arguments import NEVER
from loom_mq.journal.postgres.endpoint import Connection
from loom_mq.journal.postgres.lifecycle_arguments import plant_arguments, rewrite_arguments
from loom_mq.journal.postgres.rows import execution_row, unpack_snapshot
from loom_mq.journal.postgres.store import MAX_ROUNDS, Store, loads, restless, waves
from loom_mq.journal.requests import Planting, Rewrite
from loom_mq.model.events import Envelope
from loom_mq.model.execution import ExecutionKey, ExecutionRow
from loom_mq.model.snapshots import Snapshot


class PostgresLifecycle(Store):
    """The part of `PostgresJournal` that replaces logs, or stands in for them."""

    # ---- snapshots --------------------------------------------------------------------

    async def save_snapshots(self, snapshots: Sequence[tuple[ExecutionKey, Snapshot]]) -> None:
        """Keep stored folds, one per execution, the newest (J7)."""
        sizes = [len(snapshot.state) for _key, snapshot in snapshots]
        for wave in waves([key for key, _snapshot in snapshots]):
            for places in loads(wave, sizes):
                await self._save_snapshots([snapshots[place] for place in places])

    async def _save_snapshots(self, batch: Sequence[tuple[ExecutionKey, Snapshot]]) -> None:
        await self._write_rows(
            self._sql.call("save_snapshots_v1", 5),
            [key.tenant for key, _snapshot in batch],
            [key.execution_id for key, _snapshot in batch],
            [snapshot.seq for _key, snapshot in batch],
            [snapshot.fold for _key, snapshot in batch],
            [snapshot.state for _key, snapshot in batch],
        )

    async def snapshot(self, key: ExecutionKey) -> Snapshot | None:
        """The newest snapshot (J7)."""
        records = await self._read_rows(self._sql.call("snapshot_v1", 2), *key)
        return unpack_snapshot(records[0]) if records else None

    # ---- planting ---------------------------------------------------------------------

    async def plant(self, plantings: Sequence[Planting]) -> list[LoomError | None]:
        """Create executions with ready logs (J8)."""
        answers: dict[int, LoomError | None] = {}
        sizes = [_size(each.events, each.snapshot) for each in plantings]
        for wave in waves([each.row.key for each in plantings]):
            for places in loads(wave, sizes):
                made = await self._plant([plantings[place] for place in places])
                for item, place in enumerate(places, start=1):
                    taken = ExecutionAlreadyExistsError(plantings[place].row.execution_id)
                    answers[place] = None if item in made else taken
        return [answers[place] for place in range(len(plantings))]

    async def _plant(self, batch: Sequence[Planting]) -> set[int]:
        statement = self._sql.call("plant_v1", 37, "plant_v1 AS made")

        async def work(connection: Connection) -> list[int]:
            made: list[int] = await connection.fetchval(statement, *plant_arguments(batch))
            return made

        return set(await self._pool.write(work))

    # ---- rewriting --------------------------------------------------------------------

    async def rewrite(self, rewrites: Sequence[Rewrite]) -> list[LoomError | None]:
        """Replace the logs of executions that have ended (J8).

        Each is looked at first and then written under the fence and sequence that were
        seen: what the last event is, only the client can tell.
        """
        answers: dict[int, LoomError | None] = {}
        sizes = [_size(each.events, each.snapshot) for each in rewrites]
        for wave in waves([each.key for each in rewrites]):
            for places in loads(wave, sizes):
                answers.update(await self._rewrite({place: rewrites[place] for place in places}))
        return [answers[place] for place in range(len(rewrites))]

    async def _rewrite(self, batch: dict[int, Rewrite]) -> dict[int, LoomError | None]:
        answers: dict[int, LoomError | None] = {}
        left = batch
        for _ in range(MAX_ROUNDS):
            rows: list[ExecutionRow] = []
            granted: list[int] = []
            for place, verdict in (await self._judge_rewrites(left)).items():
                if isinstance(verdict, LoomError):
                    answers[place] = verdict
                else:
                    rows.append(verdict)
                    granted.append(place)
            if granted:
                written = await self._write_logs([left[place] for place in granted], rows)
                answers.update({granted[item - 1]: None for item in written})
            left = {place: each for place, each in left.items() if place not in answers}
            if not left:
                return answers
        return answers | {place: restless(each.key) for place, each in left.items()}

    async def _judge_rewrites(
        self, batch: dict[int, Rewrite]
    ) -> dict[int, ExecutionRow | LoomError]:
        """The row of each that may be rewritten, or the refusal."""
        last = [each.events[-1].seq if each.events else NEVER for each in batch.values()]
        records = await self._standings([each.key for each in batch.values()], last, last)
        answers: dict[int, ExecutionRow | LoomError] = {}
        for item, (place, rewrite) in enumerate(batch.items(), start=1):
            record = records.get(item)
            row = None if record is None else execution_row(record)
            refusal = verdicts.judge_rewrite(
                row, rewrite, last_id=None if record is None else _id_at(record, last[item - 1])
            )
            if refusal is not None:
                answers[place] = refusal
            elif row is not None:
                answers[place] = row
        return answers

    async def _write_logs(
        self, batch: Sequence[Rewrite], rows: Sequence[ExecutionRow]
    ) -> list[int]:
        statement = self._sql.call("rewrite_v1", 15, "rewrite_v1 AS written")

        async def work(connection: Connection) -> list[int]:
            arguments = rewrite_arguments(batch, rows)
            written: list[int] = await connection.fetchval(statement, *arguments)
            return written

        return await self._pool.write(work)

    # ---- deleting ---------------------------------------------------------------------

    async def delete(self, keys: Sequence[ExecutionKey]) -> list[LoomError | None]:
        """Delete executions that have ended, with all that belongs to them (J8)."""
        answers: dict[int, LoomError | None] = {}
        for places in waves(keys):
            records = await self._write_rows(
                self._sql.call("delete_v1", 2, "item, (execution).*"),
                [keys[place].tenant for place in places],
                [keys[place].execution_id for place in places],
            )
            rows = {record["item"]: execution_row(record) for record in records}
            for item, place in enumerate(places, start=1):
                answers[place] = verdicts.judge_delete(rows.get(item), keys[place])
        return [answers[place] for place in range(len(keys))]


def _id_at(record: asyncpg.Record, seq: int) -> bytes | None:
    found = slice_page(record["recorded"], seq, seq + 1)
    return found[0].id if found else None


def _size(events: Sequence[Envelope], snapshot: Snapshot | None) -> int:
    state = 0 if snapshot is None else len(snapshot.state)
    return state + sum(len(event.payload) for event in events)
