"""The dispatcher over a worker: attempts, a deadline, idempotent redispatch (F4, F5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import structlog

from loom_mq.dispatch.protocol import ExecutionWorker, FoldedState
from loom_mq.engine.policy import Action, AttemptEnd, AttemptOutcome, next_action, threw
from loom_mq.errors import AttemptTimeoutError, ConfigurationError
from loom_mq.model.execution import ExecutionKey
from loom_mq.model.messages import Package

_log = structlog.get_logger(__name__)

KEPT = 1000
"""Given-up executions that a dispatcher remembers for whoever looks."""


class GivenUp(msgspec.Struct, frozen=True):
    """An execution whose attempts are used up (F4)."""

    key: ExecutionKey
    attempts: int
    error: BaseException


class LocalDispatcher:
    """Hands a package to an execution worker and awaits the attempt.

    An attempt that throws, or is not over after `execute_timeout`, is a failed one, and
    with attempts left the same package goes out again: the worker makes that safe (F3).
    A superseded refusal is rethrown on the attempt that saw it (F5). One that times out
    is told to give up and not waited for: a worker that hangs stays where it is, fenced
    out by the next attempt.

    Args:
        worker: drives the attempts.
        max_attempts: tries per dispatch, at least 1.
        execute_timeout: seconds that one attempt may take, None for no limit.
        on_given_up: told of each execution whose attempts are used up.

    Attributes:
        given_up: executions whose attempts were used up, the oldest forgotten first; a
            later dispatch that settles takes its execution off.

    Raises:
        ConfigurationError: `max_attempts` below 1, or `execute_timeout` not above 0.
    """

    def __init__(
        self,
        worker: ExecutionWorker,
        *,
        max_attempts: int = 1,
        execute_timeout: float | None = None,
        on_given_up: Callable[[GivenUp], None] | None = None,
    ) -> None:
        if max_attempts < 1:
            raise ConfigurationError(f"max_attempts must be at least 1, not {max_attempts}")
        if execute_timeout is not None and execute_timeout <= 0:
            raise ConfigurationError(f"execute_timeout must be above 0, not {execute_timeout:g}")
        self.given_up: dict[ExecutionKey, GivenUp] = {}
        self._worker = worker
        self._max_attempts = max_attempts
        self._execute_timeout = execute_timeout
        self._on_given_up = on_given_up
        self._abandoned: set[asyncio.Task[FoldedState]] = set()

    async def dispatch(self, package: Package) -> FoldedState:
        """See `ExecutionDispatcher.dispatch`."""
        key = ExecutionKey(package.tenant, package.execution_id)
        attempt = 0
        while True:
            attempt += 1
            state, outcome = await self._attempt(package)
            action = next_action(outcome, self._max_attempts - attempt, key.execution_id)
            if action is Action.SETTLE:
                self.given_up.pop(key, None)
                return _settled(state, outcome)
            if action is Action.SURFACE:
                self._give_up(GivenUp(key, attempt, _error_of(outcome)))
                raise _error_of(outcome)
            _log.warning(
                "dispatch.attempt_failed",
                tenant=key.tenant,
                execution_id=key.execution_id,
                attempt=attempt,
                end=outcome.end.value,
                error=str(outcome.error),
            )

    async def _attempt(self, package: Package) -> tuple[FoldedState | None, AttemptOutcome]:
        task = asyncio.ensure_future(self._worker.execute(package))
        try:
            await asyncio.wait({task}, timeout=self._execute_timeout)
        except asyncio.CancelledError:
            self._abandon(task)
            raise
        if not task.done():
            self._abandon(task)
            return None, AttemptOutcome(AttemptEnd.TIMED_OUT, self._too_late(package))
        if task.cancelled():
            error = AttemptTimeoutError(
                f"the worker dropped the attempt of execution {package.execution_id!r}",
                execution_id=package.execution_id,
            )
            return None, AttemptOutcome(AttemptEnd.DIED, error)
        error_raised = task.exception()
        if error_raised is None:
            return task.result(), AttemptOutcome(AttemptEnd.SETTLED)
        if not isinstance(error_raised, Exception):
            raise error_raised
        return None, threw(error_raised)

    def _abandon(self, task: asyncio.Task[FoldedState]) -> None:
        """Tell an attempt to give up, and wait for nothing: it may hang for ever."""
        task.cancel()
        self._abandoned.add(task)
        task.add_done_callback(self._abandoned.discard)
        task.add_done_callback(_look_away)

    def _too_late(self, package: Package) -> AttemptTimeoutError:
        return AttemptTimeoutError(
            f"the attempt of execution {package.execution_id!r} was not over within "
            f"{self._execute_timeout:g} s",
            execution_id=package.execution_id,
        )

    def _give_up(self, given_up: GivenUp) -> None:
        key = given_up.key
        self.given_up.pop(key, None)
        self.given_up[key] = given_up
        while len(self.given_up) > KEPT:
            del self.given_up[next(iter(self.given_up))]
        _log.error(
            "dispatch.given_up",
            tenant=key.tenant,
            execution_id=key.execution_id,
            attempts=given_up.attempts,
            error=str(given_up.error),
        )
        if self._on_given_up is not None:
            self._on_given_up(given_up)


def _settled(state: FoldedState | None, outcome: AttemptOutcome) -> FoldedState:
    """What a dispatch that is over answers: the state, or the refusal as it came."""
    if state is None:
        raise _error_of(outcome)
    return state


def _error_of(outcome: AttemptOutcome) -> BaseException:
    if outcome.error is None:
        raise AssertionError(f"an attempt that {outcome.end.value} without an error")
    return outcome.error


def _look_away(task: asyncio.Task[FoldedState]) -> None:
    if not task.cancelled():
        task.exception()
