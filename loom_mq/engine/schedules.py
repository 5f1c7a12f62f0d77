"""Fires schedules (F9), as a part of the timer service.

A look decides (`loom_mq.schedules.policy`), makes the decision durable by
compare-and-set, and then sends the starts. So of two services that look at once one
sends, nothing is sent that a pause came before, and what is lost on its way is sent
again by a later look, under the same id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

import structlog
from msgspec.structs import replace

from loom_mq.broker import topology
from loom_mq.broker.protocol import Broker
from loom_mq.clock import MICROS
from loom_mq.engine.outbox import Outbox
from loom_mq.engine.schedule_rows import Open, opened, run_key, start_of
from loom_mq.errors import (
    BrokerError,
    CommitOutcomeUnknownError,
    InvalidScheduleError,
    LoomError,
    StaleScheduleError,
    UnknownScheduleError,
    UnroutableError,
)
from loom_mq.journal.protocol import Journal
from loom_mq.model.execution import ExecutionKey, ExecutionRow
from loom_mq.model.messages import ControlItem, ControlOp
from loom_mq.model.schedules import ScheduleRow
from loom_mq.observe.metrics import Metrics
from loom_mq.schedules.policy import Plan, Standing, look, wanted

_log = structlog.get_logger(__name__)

LOOK_AGAIN: Final = 60 * MICROS
"""Until the next look at a schedule that cannot be read."""
PAGE: Final = 500
AT_ONCE: Final = 10
"""Decisions that may take the event loop one after the other."""
SENDINGS: Final = 3
"""Tries to write a decision whose commit was not answered."""


class ScheduleRunner:
    """See the module's docstring.

    Args:
        journal: where the schedules are.
        broker: where starts go.
        outbox: how they get there.
        limit: schedules per look.
        hold: seconds that a due schedule is kept from the other services.
        metrics: what is counted.
    """

    def __init__(
        self,
        journal: Journal,
        broker: Broker,
        outbox: Outbox,
        *,
        limit: int,
        hold: float,
        metrics: Metrics,
    ) -> None:
        self._journal = journal
        self._broker = broker
        self._outbox = outbox
        self._limit = limit
        self._hold = hold
        self._metrics = metrics

    async def once(self) -> int:
        """Look at the schedules that are due; returns how many there were.

        Raises:
            LoomError: the journal cannot be read.
        """
        rows = await self._journal.due_schedules(limit=self._limit, hold=self._hold)
        if not rows:
            return 0
        now = await self._journal.now()
        known = await self._known(rows)
        for first in range(0, len(rows), AT_ONCE):
            part = rows[first : first + AT_ONCE]
            await asyncio.gather(*(self._look(row, now, known) for row in part))
        return len(rows)

    async def _known(self, rows: Sequence[ScheduleRow]) -> Mapping[ExecutionKey, ExecutionRow]:
        """The executions that the decisions depend on."""
        keys: list[ExecutionKey] = []
        for row in rows:
            try:
                keys += [run_key(row.key, nominal) for nominal in wanted(opened(row).state)]
            except InvalidScheduleError:
                continue  # the look itself tells of it
        found: dict[ExecutionKey, ExecutionRow] = {}
        for first in range(0, len(keys), PAGE):
            executions = await self._journal.get(keys[first : first + PAGE])
            found.update((each.key, each) for each in executions if each is not None)
        return found

    async def _look(
        self, row: ScheduleRow, now: int, known: Mapping[ExecutionKey, ExecutionRow]
    ) -> None:
        """Look at one schedule; whatever is the matter with it is its own affair."""

        def standing(nominal: int) -> Standing:
            execution = known.get(run_key(row.key, nominal))
            if execution is None:
                return Standing.UNKNOWN
            return Standing.ENDED if execution.status.terminal else Standing.OPEN

        try:
            try:
                there = opened(row)
                plan = look(
                    row.key,
                    there.schedule,
                    there.state,
                    paused=row.paused,
                    now=now,
                    standing=standing,
                )
            except InvalidScheduleError as error:
                await self._shelve(row, now, error)
                return
            await self._write(replace(there, state=plan.state).closed(due=plan.due), row.revision)
            await self._carry_out(there, plan)
        except (StaleScheduleError, UnknownScheduleError):
            pass  # somebody changed it meanwhile, and its timer is theirs
        except LoomError as error:
            _log.warning(
                "schedule.look_failed",
                tenant=row.tenant,
                schedule_id=row.schedule_id,
                code=error.code,
                error=error.message,
            )
        except Exception:  # a fault of ours about one schedule must not stop the others
            _log.exception("schedule.look_crashed", tenant=row.tenant, schedule_id=row.schedule_id)

    async def _write(self, row: ScheduleRow, expected: int) -> None:
        for left in reversed(range(SENDINGS)):
            try:
                await self._journal.put_schedule(row, expected)
                return
            except CommitOutcomeUnknownError:
                if not left:
                    raise

    async def _carry_out(self, there: Open, plan: Plan) -> None:
        row = there.row
        if plan.lost:
            _log.warning(
                "schedule.missed",
                tenant=row.tenant,
                schedule_id=row.schedule_id,
                moments=plan.lost,
            )
        if plan.starts:
            _log.info(
                "schedule.fired",
                tenant=row.tenant,
                schedule_id=row.schedule_id,
                starts=len(plan.starts),
            )
        for outcome, count in (
            ("started", len(plan.starts)),
            ("missed", plan.lost),
            ("skipped", plan.skipped),
        ):
            self._metrics.scheduled(outcome, count)
        verdicts = await asyncio.gather(
            *(self._start(there, nominal) for nominal in plan.starts),
            *(self._cancel(there, nominal) for nominal in plan.cancels),
        )
        problem = next((verdict for verdict in verdicts if verdict is not None), None)
        if problem is not None:  # a later look sends it again
            _log.warning(
                "schedule.not_published",
                tenant=row.tenant,
                schedule_id=row.schedule_id,
                code=problem.code,
                error=problem.message,
            )

    async def _start(self, there: Open, nominal: int) -> BrokerError | None:
        item = start_of(there.row.key, there.schedule, nominal)
        error = await self._outbox.starts.send(topology.START.name, item)
        if not isinstance(error, UnroutableError):
            return error
        try:  # no dispatcher has ever run here; the first one finds it
            await self._broker.declare([topology.DEAD, topology.START, topology.CONTROL])
        except BrokerError as problem:
            return problem
        return await self._outbox.starts.send(topology.START.name, item)

    async def _cancel(self, there: Open, nominal: int) -> BrokerError | None:
        key = run_key(there.row.key, nominal)
        item = ControlItem(
            op=ControlOp.CANCEL,
            id=key.execution_id,
            tenant=key.tenant,
            reason=f"a newer run of schedule {there.row.schedule_id!r} is due",
        )
        return await self._outbox.controls.send(topology.CONTROL.name, item)

    async def _shelve(self, row: ScheduleRow, now: int, error: InvalidScheduleError) -> None:
        """Leave a schedule alone for a while, and show on it why."""
        _log.error(
            "schedule.unreadable",
            tenant=row.tenant,
            schedule_id=row.schedule_id,
            error=error.message,
        )
        self._metrics.scheduled("unreadable", 1)
        try:
            there = opened(row)
        except InvalidScheduleError:
            shelved = replace(row, due=now + LOOK_AGAIN)
        else:
            state = replace(there.state, trouble=error.message)
            shelved = replace(there, state=state).closed(due=now + LOOK_AGAIN)
        await self._write(shelved, row.revision)
