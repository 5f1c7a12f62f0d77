"""Until when each process is to be left alone, by the journal's clock (F7)."""

from __future__ import annotations

from collections.abc import Callable

from loom_mq.clock import MICROS
from loom_mq.journal.protocol import Renewal
from tests.simulation.rig.known import Known
from tests.simulation.rig.observer import Applied, Happened


class Leases:
    """Holds S19: nobody's lease ends while he lives, and none that has ended goes on.

    Args:
        complain: called with a broken rule, an execution and what is wrong.
        reached: called with each rare thing that happened.
    """

    def __init__(
        self, complain: Callable[[str, str, str], None], reached: Callable[[str], None]
    ) -> None:
        self._until: dict[str, int] = {}
        self._gone: dict[str, None] = {}
        self._complain = complain
        self._reached = reached

    def holder(self, known: Known, at: int) -> str:
        """Who is to be left alone with an execution; empty for nobody."""
        wedged = known.deadline is not None and known.deadline <= at
        return known.owner if self._runs(known.owner, at) and not wedged else ""

    def _runs(self, owner: str, at: int) -> bool:
        return self._until.get(owner, 0) > at

    def befell(self, happened: Happened) -> None:
        """Somebody was killed, or is about to leave."""
        if happened.what in ("killed", "drained"):
            self._gone[happened.who] = None

    def opened(self, call: Applied) -> None:
        """`Journal.lease`."""
        worker, ttl = call.args
        self._until[worker.owner] = call.at + int(ttl * MICROS)

    def renewed(self, call: Applied) -> None:
        """`LeaseSession.renew`."""
        renewal: Renewal = call.answer
        if renewal.held is not self._runs(call.by, call.at):
            how = "had lapsed, and was renewed" if renewal.held else "runs, and was not renewed"
            self._complain("S19", "", f"the lease of {call.by} {how}")
        if renewal.held:
            self._until[call.by] = call.at + int(call.args[0] * MICROS)
        else:
            self._reached("zombie found its lease lost")

    def retired(self, call: Applied) -> None:
        """`LeaseSession.retire`."""
        self._until[call.by] = 0

    def lapsed(self, call: Applied) -> None:
        """`Journal.lapse_if_gone`."""
        owner = call.args[0]
        if call.answer is not (not self._runs(owner, call.at)) and owner not in self._gone:
            how = "who lives, was ended" if call.answer else "has lapsed, and is said to run"
            self._complain("S19", "", f"the lease of {owner}, {how}")
        if call.answer:
            self._until[owner] = 0
