"""Opening an attempt from a claim, running it, and letting go of what it leaves (F3, F5).

The fleet's driver and the workers of `loom_mq.dispatch` drive through this one door.
"""

from __future__ import annotations

import msgspec
import structlog

from loom_mq.engine.drive import Drive
from loom_mq.engine.giveback import GiveBack
from loom_mq.engine.hands import Hand
from loom_mq.engine.home import DriveEnd, Home
from loom_mq.engine.policy import ENDLESS, Action, next_action, threw
from loom_mq.errors import (
    ExecutionAlreadyExistsError,
    JournalError,
    JournalUnreachableError,
    LoomError,
    SchemaVersionError,
    StartFencedOutError,
)
from loom_mq.flows.registry import AnyFlow
from loom_mq.journal.protocol import Claimed, Journal
from loom_mq.kernel.fold import fold
from loom_mq.kernel.snapshots import decode_snapshot
from loom_mq.model import events as ev
from loom_mq.model.execution import ExecutionKey

_log = structlog.get_logger(__name__)
decode_start = msgspec.msgpack.Decoder(ev.ExecutionStarted).decode

CRASH_DELAY = 1.0
"""Seconds before an execution whose attempt crashed in the engine is sent again."""


class Attempts:
    """See the module's docstring.

    Args:
        home: what all attempts share.
        journal: read for logs longer than a claim brings along.
        give_back: lets go of executions.
        mismatch_delay: seconds before an execution whose log the code does not fit is
            sent again (K3).

    Attributes:
        draining: give every attempt back as soon as it begins.
    """

    def __init__(
        self, home: Home, journal: Journal, give_back: GiveBack, *, mismatch_delay: float
    ) -> None:
        self.draining = False
        self._home = home
        self._journal = journal
        self._give_back = give_back
        self._mismatch_delay = mismatch_delay

    async def open(
        self, key: ExecutionKey, flow: AnyFlow, claimed: Claimed, *, bereaved: bool
    ) -> Drive:
        """The attempt that goes on from what a claim found.

        Raises:
            SchemaVersionError: only a newer release can read it.
        """
        shot = claimed.snapshot
        base = None if shot is None else decode_snapshot(shot)
        if shot is not None and base is None:
            # written by a newer fold: the log itself tells all
            state, more = fold(()), True
        else:
            state = fold(claimed.events, base)
            more = claimed.more
        while more:
            page = await self._journal.read(key, first=state.last_seq + 1)
            fold(page, state)
            more = bool(page) and state.last_seq < claimed.row.last_seq
        if claimed.row.last_seq >= 0 and state.started_at is None:
            raise SchemaVersionError(
                f"execution {key.execution_id!r} begins with a snapshot that a newer release "
                "wrote, and this one cannot read it; upgrade this worker",
                execution_id=key.execution_id,
            )
        return Drive(
            self._home,
            key,
            flow,
            state,
            fence=claimed.row.fence,
            attempt=claimed.row.attempt,
            start=None if claimed.start is None else decode_start(claimed.start),
            mail=claimed.inbox,
            now=claimed.now,
            bereaved=bereaved,
            snapshot_seq=-1 if shot is None else shot.seq,
        )

    def set_aside(self, key: ExecutionKey, fence: int, why: str) -> None:
        """Let go of what nothing can be done with here, for a while, and say why."""
        self._give_back.add(key, self._mismatch_delay, fence, why)

    async def run(
        self, drive: Drive, flow: AnyFlow, hand: Hand
    ) -> tuple[DriveEnd, LoomError | None]:
        """Drive to the attempt's end; returns it, and the refusal that ended it."""
        hand.driving(drive)
        if self.draining:
            drive.give_back()
        try:
            end = await drive.run()
        finally:
            hand.driving(None)
        if end in (DriveEnd.COMPLETED, DriveEnd.FAILED, DriveEnd.CANCELLED):
            self._home.around.metrics.execution_finished(flow.name, end.value, drive.age)
        match end:
            case DriveEnd.IDLE:
                self._give_back.add(drive.key, None, drive.fence)
            case DriveEnd.GIVEN_BACK:
                self._give_back.add(drive.key, 0.0, drive.fence)
            case DriveEnd.MISMATCH:
                self._give_back.add(drive.key, self._mismatch_delay, drive.fence, drive.mismatch)
            case DriveEnd.REFUSED:
                self._note_loss(drive)
            case _:
                pass
        return end, drive.refusal

    def _note_loss(self, drive: Drive) -> None:
        """An append was refused in the middle of an attempt."""
        key, error = drive.key, drive.refusal
        if isinstance(error, ExecutionAlreadyExistsError | StartFencedOutError):
            self._home.around.metrics.superseded("start")  # a package that came twice, most likely
            _log.debug("attempt.superseded", execution_id=key.execution_id, why=str(error))
            return
        if next_action(threw(error), ENDLESS, key.execution_id) is Action.SETTLE:
            self._home.around.metrics.superseded("append")
            _log.info("attempt.superseded", execution_id=key.execution_id, why=str(error))
            return
        _log.error("execution.write_failed", execution_id=key.execution_id, error=str(error))
        if isinstance(error, JournalError | JournalUnreachableError):
            self._give_back.add(key, CRASH_DELAY, drive.fence)
