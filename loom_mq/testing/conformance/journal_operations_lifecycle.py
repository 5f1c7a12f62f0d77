"""Operations for the comparison of two journals: snapshots, and whole executions.

See `journal_operations`. An ended execution is put aside under the name that stands last
among the run's keys, so that it is sometimes taken.
"""

from __future__ import annotations

from dataclasses import dataclass

from loom_mq.journal.protocol import Admission, Journal, ListQuery, Planting, Rewrite
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey, ExecutionRow, Status, Waiter
from loom_mq.model.policies import StartPolicy
from loom_mq.model.snapshots import FOLD_VERSION, Snapshot
from loom_mq.testing.conformance.journal_rig import LONG
from loom_mq.testing.conformance.journal_world import World


def _folded(world: World, seq: int) -> Snapshot:
    return Snapshot(seq, FOLD_VERSION, f"step {world.step}".encode())


@dataclass(frozen=True)
class Restart:
    """A start that may take the place of what has ended."""

    execution: int
    policy: StartPolicy
    waiter: int | None

    async def play(self, journal: Journal, world: World) -> object:
        """See `Operation`."""
        waiter = None if self.waiter is None else Waiter("restart", str(self.waiter))
        return await journal.admit(
            [
                Admission(
                    key=world.keys[self.execution],
                    flow="flow",
                    version="2",
                    queue=world.prefix,
                    start=f"start {world.step}".encode(),
                    input_digest=b"a",
                    labels={"step": str(world.step)},
                    waiter=waiter,
                    resend_after=LONG,
                    policy=self.policy,
                    retire_as=world.keys[-1].execution_id,
                )
            ]
        )


@dataclass(frozen=True)
class Save:
    """Snapshots, at some distance from the ends of their logs."""

    execution: int
    shifts: tuple[int, ...]

    async def play(self, journal: Journal, world: World) -> object:
        """See `Operation`."""
        key = world.keys[self.execution]
        row = world.rows.get(key)
        last = -1 if row is None else row.last_seq
        await journal.save_snapshots(
            [(key, _folded(world, last + shift)) for shift in self.shifts if last + shift >= 0]
        )
        return None


@dataclass(frozen=True)
class Plant:
    """An execution with a log, which may be cut."""

    execution: int
    count: int
    first: int
    status: Status
    timers: tuple[int, ...]

    async def play(self, journal: Journal, world: World) -> object:
        """See `Operation`."""
        key = world.keys[self.execution]
        planting = Planting(
            row=self._row(world, key),
            events=world.envelopes(self.first, self.count, 2),
            snapshot=_folded(world, self.first - 1) if self.first else None,
            timers=self.timers,
        )
        return await journal.plant([planting])

    def _row(self, world: World, key: ExecutionKey) -> ExecutionRow:
        at = 10_000 + world.step
        return ExecutionRow(
            tenant=key.tenant,
            execution_id=key.execution_id,
            flow="planted",
            version="1",
            queue=world.prefix,
            status=self.status,
            last_seq=self.first + self.count - 1,
            wake_at=min(self.timers, default=None),
            gates=("gate",),
            error=None,
            recoveries=0,
            parent=None,
            features=(),
            labels={"step": str(world.step)},
            created_at=at,
            updated_at=at,
            started_at=at,
            ended_at=at if self.status.terminal else None,
            fence=2,
            owner=None,
            attempt=1,
            deadline=None,
            hint_at=None,
            hints=0,
            inbox=0,
            input_digest=b"a",
        )


@dataclass(frozen=True)
class Recast:
    """Another log, made from what is there: cut, and perhaps not lawful."""

    execution: int
    cut: int
    end_shift: int
    reach: int | None

    async def play(self, journal: Journal, world: World) -> object:
        """See `Operation`."""
        key = world.keys[self.execution]
        log = await journal.read(key, first=self.cut)
        if self.end_shift < 0:
            log = log[:-1]
        elif self.end_shift > 0:
            log += world.envelopes(log[-1].seq + 1 if log else 0, 1, 9)
        row = world.rows.get(key)
        reach = self.reach
        if row is not None and reach is not None:
            reach = min(reach, row.last_seq)
        return await journal.rewrite(
            [
                Rewrite(
                    key=key,
                    events=tuple(log),
                    snapshot=None if reach is None else _folded(world, reach),
                    error=f"step {world.step}",
                    labels={} if row is None else {**row.labels, "recast": "yes"},
                    input_digest=b"b" if self.cut else None,
                )
            ]
        )


@dataclass(frozen=True)
class Delete:
    """Executions deleted, or not."""

    executions: tuple[int, ...]

    async def play(self, journal: Journal, world: World) -> object:
        """See `Operation`."""
        return await journal.delete([world.keys[number] for number in self.executions])


@dataclass(frozen=True)
class Search:
    """A list for operators."""

    in_doubt: bool
    troubled: bool
    labelled: bool
    ended: bool
    version: str | None

    async def play(self, journal: Journal, world: World) -> object:
        """See `Operation`."""
        found = await journal.find(
            ListQuery(
                tenant=DEFAULT_TENANT,
                queue=world.prefix,
                version=self.version,
                labels={"recast": "yes"} if self.labelled else {},
                ended_before=10_000 + world.step if self.ended else None,
                in_doubt=self.in_doubt,
                troubled=self.troubled,
            )
        )
        return sorted(found, key=lambda row: row.key)
