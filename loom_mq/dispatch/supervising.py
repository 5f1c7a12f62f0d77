"""A supervisor around a dispatcher: restarts, and a circuit that opens (F5)."""

from __future__ import annotations

import enum

import structlog

from loom_mq.clock import Clock, JournalClock
from loom_mq.dispatch.protocol import ExecutionDispatcher, FoldedState
from loom_mq.engine.policy import Action, next_action, threw
from loom_mq.errors import CircuitOpenError, ConfigurationError
from loom_mq.model.messages import Package

_log = structlog.get_logger(__name__)


class CircuitState(enum.StrEnum):
    """Whether a target may be asked."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"
    """One dispatch is let through, to see whether the target has come back."""


class Circuit:
    """Leaves a target alone that fails again and again.

    Args:
        threshold: failures in a row that open it.
        cool_down: seconds that it stays open before one dispatch is let through.
        clock: measures them.

    Raises:
        ConfigurationError: `threshold` below 1, or `cool_down` below 0.
    """

    def __init__(
        self, threshold: int = 5, cool_down: float = 30.0, *, clock: Clock | None = None
    ) -> None:
        if threshold < 1 or cool_down < 0:
            raise ConfigurationError(
                "a circuit needs a threshold of at least 1 and a cool-down of at least 0, not "
                f"{threshold} and {cool_down:g}"
            )
        self.failures = 0
        self._threshold = threshold
        self._cool_down = cool_down
        self._clock: Clock = JournalClock() if clock is None else clock
        self._opened_at: float | None = None
        self._probing = False

    @property
    def state(self) -> CircuitState:
        """Whether the target may be asked now."""
        if self._opened_at is None:
            return CircuitState.CLOSED
        if self._clock.monotonic() - self._opened_at < self._cool_down:
            return CircuitState.OPEN
        return CircuitState.HALF_OPEN

    def enter(self, execution_id: str) -> None:
        """Ask for leave to dispatch.

        Raises:
            CircuitOpenError: the target is left alone for now.
        """
        state = self.state
        if state is CircuitState.OPEN or (state is CircuitState.HALF_OPEN and self._probing):
            raise CircuitOpenError(
                f"execution {execution_id!r} was not dispatched: the target failed "
                f"{self.failures} times in a row and is left alone; dispatch it again later",
                execution_id=execution_id,
            )
        self._probing = state is CircuitState.HALF_OPEN

    def succeeded(self) -> None:
        """A dispatch came to an outcome: the target works."""
        self.failures = 0
        self._opened_at = None
        self._probing = False

    def failed(self) -> None:
        """A dispatch really failed."""
        self.failures += 1
        self._probing = False
        if self.failures >= self._threshold:
            self._opened_at = self._clock.monotonic()

    def left(self) -> None:
        """A dispatch said nothing about the target: it was superseded, or given up."""
        self._probing = False


class SupervisingDispatcher:
    """Restarts a dispatch that failed, and leaves a target alone that always does.

    A superseded refusal is rethrown without a restart, and the circuit does not hear of
    it: losing to another holder is not the target's fault. A real failure earlier in the
    same dispatch has been counted by then, and stays so (F5).

    Args:
        dispatcher: what is supervised.
        max_restarts: further dispatches after the first one failed.
        circuit: counts failures; one of its own by default.

    Attributes:
        circuit: see there.

    Raises:
        ConfigurationError: `max_restarts` below 0.
    """

    def __init__(
        self,
        dispatcher: ExecutionDispatcher,
        *,
        max_restarts: int = 0,
        circuit: Circuit | None = None,
    ) -> None:
        if max_restarts < 0:
            raise ConfigurationError(f"max_restarts must be at least 0, not {max_restarts}")
        self.circuit = Circuit() if circuit is None else circuit
        self._dispatcher = dispatcher
        self._max_restarts = max_restarts

    async def dispatch(self, package: Package) -> FoldedState:
        """See `ExecutionDispatcher.dispatch`.

        Raises:
            CircuitOpenError: the target is left alone for now.
            LoomError: as there.
        """
        restarts = 0
        while True:
            self.circuit.enter(package.execution_id)
            try:
                state = await self._dispatcher.dispatch(package)
            except Exception as error:
                left = self._max_restarts - restarts
                action = next_action(threw(error), left, package.execution_id)
                if action is Action.SETTLE:
                    self.circuit.left()
                    raise
                self.circuit.failed()
                if action is Action.SURFACE:
                    raise
                restarts += 1
                _log.warning(
                    "dispatch.restarted",
                    tenant=package.tenant,
                    execution_id=package.execution_id,
                    restart=restarts,
                    error=str(error),
                )
            except BaseException:
                self.circuit.left()
                raise
            else:
                self.circuit.succeeded()
                return state
