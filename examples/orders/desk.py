"""The people beside the engine: they look into its journal and approve large orders.

None of this is in the engine's process: it goes on while that one is dead.
"""

from __future__ import annotations

from collections.abc import Sequence

from loom_mq import Status
from loom_mq.codec.values import codec_for
from loom_mq.journal.protocol import Journal, ListQuery
from loom_mq.model.execution import ExecutionRow, InboxItem, InboxKind

GATE = "Approval"
MICROS = 1_000_000


class Desk:
    """Approves what waits at the gate, all but one order.

    Args:
        journal: open, beside the engine's.
        refused: the order that is refused, if any.
        patience: seconds that an order waits before somebody looks at it.
    """

    def __init__(self, journal: Journal, refused: str | None, patience: float = 1.0) -> None:
        self._journal = journal
        self._refused = refused
        self._patience = patience
        self.answered: set[str] = set()

    async def waiting(self) -> list[ExecutionRow]:
        """Orders at the gate that have no answer yet."""
        parked = await self._journal.find(ListQuery(status=Status.SUSPENDED, limit=100_000))
        return [
            row for row in parked if GATE in row.gates and row.execution_id not in self.answered
        ]

    async def work(self) -> int:
        """Answer whatever has waited long enough; returns how many there were."""
        now = await self._journal.now()
        due = [
            row for row in await self.waiting() if now - row.updated_at >= self._patience * MICROS
        ]
        await self.answer(due)
        return len(due)

    async def answer(self, rows: Sequence[ExecutionRow]) -> None:
        """Put the answers into the journal: durable, whoever runs or does not."""
        items = [
            InboxItem(
                tenant=row.tenant,
                execution_id=row.execution_id,
                item_id="approval",  # the same answer twice is one
                kind=InboxKind.ANSWER,
                gate=GATE,
                payload=codec_for(bool).encode(
                    row.execution_id != self._refused, what="the approval"
                ),
            )
            for row in rows
        ]
        if items:
            await self._journal.deliver(items, resend_after=0.0)
            self.answered.update(row.execution_id for row in rows)
