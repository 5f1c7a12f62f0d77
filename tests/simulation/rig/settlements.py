"""S21: who takes a message off its queue has made something durable of it (F2, F10)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from loom_mq.codec import wire
from loom_mq.model.execution import CANCEL_ID, ExecutionKey
from loom_mq.model.messages import (
    ControlItem,
    ControlMessage,
    ControlOp,
    PackageMessage,
    StartMessage,
)
from tests.simulation.rig.known import Known
from tests.simulation.rig.observer import Acked

_READS: Final = (ControlOp.STATE, ControlOp.WATCH)


class Settlements:
    """See the module's docstring.

    Args:
        known: every execution, as the shadow knows it.
        complain: called with a broken rule, an execution and what is wrong.
        once: each package comes once, so that the first to be settled is the only one.
    """

    def __init__(
        self,
        known: dict[ExecutionKey, Known],
        complain: Callable[[str, str, str], None],
        *,
        once: bool,
    ) -> None:
        self._known = known
        self._complain = complain
        self._once = once

    def acked(self, acked: Acked) -> None:
        """A delivery is settled."""
        if acked.how != "ack":
            return
        match acked.type:
            case "start":
                for start in wire.decode(StartMessage, acked.body, acked.content_type).items:
                    if ExecutionKey(start.tenant, start.id) not in self._known:
                        self._wrong(acked, start.tenant, start.id, "it was admitted")
            case "control":
                for item in wire.decode(ControlMessage, acked.body, acked.content_type).items:
                    if item.op not in _READS:
                        self._control(acked, item)
            case "packages" if self._once:
                for package in wire.decode(PackageMessage, acked.body, acked.content_type).items:
                    known = self._known.get(ExecutionKey(package.tenant, package.execution_id))
                    if known is None or known.fence <= package.fence:
                        self._wrong(acked, package.tenant, package.execution_id, "it was claimed")
            case _:
                pass

    def _control(self, acked: Acked, item: ControlItem) -> None:
        known = self._known.get(ExecutionKey(item.tenant, item.id))
        if known is None or known.ended:
            return  # it is refused
        item_id = CANCEL_ID if item.op is ControlOp.CANCEL else item.item_id or item.correlation
        if item_id not in known.received:
            self._wrong(acked, item.tenant, item.id, f"{item.op} {item_id} was in its inbox")

    def _wrong(self, acked: Acked, tenant: str, execution_id: str, what: str) -> None:
        text = f"{acked.by} let go of a message of {acked.queue} before {what}"
        self._complain("S21", f"{tenant}/{execution_id}", text)
