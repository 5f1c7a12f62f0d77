"""Who holds what: fences, takeovers and givings back (S2, S19, S20)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loom_mq.clock import MICROS
from loom_mq.errors import StaleFenceError
from loom_mq.journal.protocol import Claim, Claimed, ClaimVerdict, Runnable
from loom_mq.model.execution import ExecutionKey, Status
from tests.simulation.rig.answers import Yes, to_claim
from tests.simulation.rig.grants import Grants
from tests.simulation.rig.known import Known, Parting
from tests.simulation.rig.leases import Leases
from tests.simulation.rig.observer import Applied


class Owners:
    """See the module's docstring.

    Args:
        known: every execution.
        leases: says who lives.
        grants: judges what is granted.
        complain: called with a broken rule, an execution and what is wrong.
        reached: called with each rare thing that happened.

    Attributes:
        abandoned: how often an execution was taken from a dead or wedged holder.
    """

    def __init__(
        self,
        known: dict[ExecutionKey, Known],
        leases: Leases,
        grants: Grants,
        complain: Callable[[str, str, str], None],
        reached: Callable[[str], None],
    ) -> None:
        self.abandoned = 0
        self._known = known
        self._leases = leases
        self._grants = grants
        self._complain = complain
        self._reached = reached

    def claim(self, call: Applied) -> list[Known]:
        """`Journal.claim`."""
        claims: Sequence[Claim] = call.args[0]
        verdicts: Sequence[ClaimVerdict] = call.answer
        touched: list[Known] = []
        for claim, verdict in zip(claims, verdicts, strict=True):
            known = self._known.get(claim.key)
            holder = "" if known is None else self._leases.holder(known, call.at)
            right = to_claim(known, claim, holder)
            fence = claim.expected_fence + 1
            self._grants.judge(claim.key, right, verdict.error, f"fence {fence} for {claim.owner}")
            if known is None or verdict.claimed is None:
                if isinstance(verdict.error, StaleFenceError):
                    self._reached("claim superseded")
                continue
            touched.append(known)
            if right is Yes.AGAIN:
                self._reached("claim repeated after an unknown outcome")
            else:
                self.take(known, claim.owner, fence, call, claim.deadline)
            self._told(known, claim, verdict.claimed)
        return touched

    def take(
        self, known: Known, owner: str, fence: int, call: Applied, deadline: float | None
    ) -> None:
        """S2, S7, S20: a new fence, for a reason, and the end of whoever had it before."""
        if known.ended:
            self._wrong("S7", known, f"{owner} took it after its end")
        if fence <= known.fence:
            self._wrong("S2", known, f"{owner} took fence {fence} after {known.fence}")
        if known.owner:
            known.calls += 1  # a holder who is dead or wedged is reason enough
            known.let_go(Parting.LOST)
        known.claims += 1
        if known.claims > known.calls:
            self._wrong("S20", known, f"taken {known.claims} times for {known.calls} reasons")
        known.fence = fence
        known.owner = owner
        known.holders[fence] = owner
        known.tenures[owner] = fence
        known.deadline = None if deadline is None else call.at + int(deadline * MICROS)

    def _told(self, known: Known, claim: Claim, claimed: Claimed) -> None:
        """S6, S14: who takes it is told what there is: snapshot and tail, mail, and the start."""
        snapshot = claimed.snapshot
        base = claim.known_seq if snapshot is None else snapshot.seq
        if snapshot is not None and known.status is Status.RUNNING:
            self._reached("recovered from a snapshot")
        page = list(claimed.events)
        tail = known.log[base + 1 :]
        if page != tail[: len(page)] or claimed.more is not (len(page) < len(tail)):
            self._wrong("S6", known, f"told of {page} after {base}, more: {claimed.more}")
        if (claimed.start is None) is not bool(known.log):
            self._wrong("S6", known, f"told the start {claimed.start!r}, {len(known.log)} events")
        if [item.item_id for item in claimed.inbox] != list(known.mail):
            self._wrong("S14", known, f"told of the mail {claimed.inbox}, not {list(known.mail)}")

    def acquire_fence(self, call: Applied) -> list[Known]:
        """S2: an operator's fence; whoever held the execution does so no longer (J5)."""
        known = self._known[call.args[0]]
        if call.answer != known.fence + 1:
            self._wrong("S2", known, f"fence {call.answer} after {known.fence}")
        known.calls += bool(known.owner)
        known.let_go(Parting.LOST)
        known.fence = call.answer
        return [known]

    def defer(self, call: Applied) -> list[Known]:
        """`Journal.defer`: who holds it gives it back, unless a newer fence has been taken."""
        keys, owner = call.args[0], call.args[1]
        fences = call.args[3] if len(call.args) > 3 else call.kwargs.get("fences")
        touched: list[Known] = []
        for index, key in enumerate(keys):
            known = self._known.get(key)
            fence = None if fences is None else fences[index]
            if known is None:
                continue
            touched.append(known)
            if known.owner == owner and fence in (None, known.fence):
                known.let_go(Parting.LEFT)
        return touched

    def retire(self, call: Applied) -> list[Known]:
        """`LeaseSession.retire`: whatever he held is given back."""
        self._leases.retired(call)
        touched = [known for known in self._known.values() if known.owner == call.by]
        for known in touched:
            known.let_go(Parting.LEFT)
        return touched

    def take_abandoned(self, call: Applied) -> list[Known]:
        """`Journal.take_abandoned`: only from the dead and the wedged."""
        taken: Sequence[Runnable] = call.answer
        touched = [self._known[each.row.key] for each in taken]
        for known in touched:
            self.abandoned += 1
            if not known.owner or self._leases.holder(known, call.at):
                self._wrong("S19", known, f"it was taken from {known.owner or 'nobody'}")
            known.let_go(Parting.LOST)
            known.calls += 1
        return touched

    def take_unsent(self, call: Applied) -> list[Known]:
        """`Journal.take_unsent`: somebody is sent."""
        taken: Sequence[Runnable] = call.answer
        touched = [self._known[each.row.key] for each in taken]
        for known in touched:
            known.calls += 1
        return touched

    def _wrong(self, rule: str, known: Known, text: str) -> None:
        self._complain(rule, known.name, text)
