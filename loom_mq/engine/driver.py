"""From a package to the end of an attempt: claim, drive, and what a refusal means (F3, F5)."""

from __future__ import annotations

import structlog

from loom_mq.engine.attempts import CRASH_DELAY, Attempts, decode_start
from loom_mq.engine.drive import Drive
from loom_mq.engine.giveback import GiveBack
from loom_mq.engine.hands import Hand, Hands
from loom_mq.engine.home import DriveEnd, Home
from loom_mq.engine.intake import Once, Settlement
from loom_mq.engine.policy import ENDLESS, Action, next_action, threw
from loom_mq.errors import LoomError, SchemaVersionError, StartFencedOutError
from loom_mq.flows.registry import AnyFlow, Registry
from loom_mq.journal.patience import patient
from loom_mq.journal.protocol import Claim, ClaimIntent, ClaimVerdict, Journal
from loom_mq.kernel.fold import fold
from loom_mq.lane import Lane, LaneClosedError
from loom_mq.model.execution import ExecutionKey
from loom_mq.model.messages import Cause, Package

_log = structlog.get_logger(__name__)


class Driver:
    """See the module's docstring.

    Args:
        home: what all attempts share.
        journal: where claims are made.
        registry: the flows served.
        hands: what the worker has in hand.
        give_back: lets go of executions.
        patience: seconds with a journal that is away.
        unknown_flow_delay: see `WorkerOptions`.
        mismatch_delay: see `WorkerOptions`.
    """

    def __init__(
        self,
        home: Home,
        journal: Journal,
        registry: Registry,
        hands: Hands,
        give_back: GiveBack,
        *,
        patience: float,
        unknown_flow_delay: float,
        mismatch_delay: float,
    ) -> None:
        self.hands = hands
        self._home = home
        self._journal = journal
        self._registry = registry
        self._give_back = give_back
        self._attempts = Attempts(home, journal, give_back, mismatch_delay=mismatch_delay)
        self._unknown_flow_delay = unknown_flow_delay
        self._claims: Lane[Claim, ClaimVerdict] = Lane(
            patient(
                journal.claim,
                lambda error: ClaimVerdict(error=error),
                clock=home.around.clock,
                give_up_after=patience,
            ),
            max_batch=200,
        )

    @property
    def draining(self) -> bool:
        """Whether every attempt is given back as soon as it begins."""
        return self._attempts.draining

    @draining.setter
    def draining(self, draining: bool) -> None:
        self._attempts.draining = draining

    def abort(self) -> None:
        """Drop claims that are not under way."""
        self._claims.abort()

    async def take(self, package: Package, settlement: Settlement) -> None:
        """Do all that a package asks for. Raises nothing but cancellation."""
        settled = Once(settlement)
        key = ExecutionKey(package.tenant, package.execution_id)
        try:
            await self._drive_package(key, package, settled)
        except LaneClosedError:
            settled.done(requeue=True)
        except Exception:  # one package must never take the worker down
            _log.exception("package.crashed", **_names(package))
            self._give_back.add(key, CRASH_DELAY, package.fence + 1)  # claimed by now, perhaps
            settled.done(requeue=True)
        finally:
            settled.done()

    async def _drive_package(self, key: ExecutionKey, package: Package, settled: Once) -> None:
        flow = self._registry.get(package.flow, package.version)
        if flow is None:
            _log.warning("package.flow_not_served", **_names(package), owner=self._home.owner)
            await self._journal.defer(
                [key],
                self._home.owner,
                self._unknown_flow_delay * (1 + self._home.around.ids.fraction()),
                [package.fence],
            )
            return
        hand = await self.hands.take(key, package.fence)
        if hand is None:
            return  # a duplicate of what is in hand
        try:
            await self._drive_in_hand(key, flow, package, hand, settled)
        finally:
            self.hands.drop(key)

    async def _drive_in_hand(
        self, key: ExecutionKey, flow: AnyFlow, package: Package, hand: Hand, settled: Once
    ) -> None:
        fence = package.fence
        if package.start is not None and fence == 0:
            end, refusal = await self._drive_fresh(key, flow, package.start, hand, settled)
            if isinstance(refusal, StartFencedOutError):
                fence = refusal.current  # by a holder that wrote nothing (F6)
            elif end is DriveEnd.PARKED_WITH_MAIL and not self.draining:
                fence = 1
            else:
                return
        await self._drive_claimed(key, flow, fence, package.cause, hand, settled)

    async def _drive_fresh(
        self, key: ExecutionKey, flow: AnyFlow, start: bytes, hand: Hand, settled: Once
    ) -> tuple[DriveEnd, LoomError | None]:
        """Start with the claim inside the first append: nothing is read before."""
        self._home.around.metrics.execution_started(flow.name)
        drive = Drive(
            self._home,
            key,
            flow,
            fold(()),
            fence=1,
            start=decode_start(start),
            claim=ClaimIntent(
                owner=self._home.owner, expected_fence=0, deadline=flow.attempt_timeout
            ),
            bereaved=settled.redelivered,
            claimed=settled.done,
        )
        return await self._attempts.run(drive, flow, hand)

    async def _drive_claimed(
        self,
        key: ExecutionKey,
        flow: AnyFlow,
        fence: int,
        cause: Cause,
        hand: Hand,
        settled: Once,
    ) -> None:
        """Take over by compare-and-set, and again while mail comes in during the park."""
        while True:
            verdict = await self._claims.submit(
                Claim(
                    key=key,
                    owner=self._home.owner,
                    expected_fence=fence,
                    deadline=flow.attempt_timeout,
                )
            )
            if verdict.claimed is None:
                self._note_refusal(key, fence + 1, verdict.error, settled)
                return
            settled.done()
            claimed = verdict.claimed
            if claimed.row.flow != flow.name or claimed.row.version != flow.version:
                self._give_back.add(key, self._unknown_flow_delay, claimed.row.fence)
                return
            try:
                drive = await self._attempts.open(
                    key, flow, claimed, bereaved=cause is Cause.RECOVER
                )
                if cause is Cause.RECOVER:
                    self._home.around.metrics.recovered("claimed")
                end, _refusal = await self._attempts.run(drive, flow, hand)
                if end is not DriveEnd.PARKED_WITH_MAIL or self.draining:
                    return
            except SchemaVersionError as error:
                _log.error(
                    "execution.code_mismatch", execution_id=key.execution_id, error=error.message
                )
                self._attempts.set_aside(key, claimed.row.fence, error.message)
                return
            except Exception:
                # nobody else drives what a live owner holds
                self._give_back.add(key, CRASH_DELAY, claimed.row.fence)
                raise
            fence = claimed.row.fence

    # ---- refusals -------------------------------------------------------------------

    def _note_refusal(
        self, key: ExecutionKey, wanted: int, error: LoomError | None, settled: Once
    ) -> None:
        """A claim was refused: whoever holds the execution goes on with it (F5)."""
        if next_action(threw(error), ENDLESS, key.execution_id) is Action.SETTLE:
            self._home.around.metrics.superseded("claim")
            _log.debug("attempt.superseded", execution_id=key.execution_id, why=str(error))
        else:
            _log.warning("execution.claim_failed", execution_id=key.execution_id, error=str(error))
            # the claim may have been committed all the same (J4)
            self._give_back.add(key, CRASH_DELAY, wanted)
            settled.done(requeue=True)


def _names(package: Package) -> dict[str, str]:
    return {
        "tenant": package.tenant,
        "execution_id": package.execution_id,
        "flow": package.flow,
        "version": package.version,
    }
