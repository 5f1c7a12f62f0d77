"""Whether the journal grants what it should, and refuses the rest for its true reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from loom_mq.errors import (
    HeldByLiveOwnerError,
    LoomError,
    StaleFenceError,
    StartFencedOutError,
    UnknownExecutionError,
)
from loom_mq.model.execution import ExecutionKey
from tests.simulation.rig.answers import Answer, Yes

_RULES: Final[dict[Answer, str]] = {
    StaleFenceError: "S1",
    StartFencedOutError: "S1",
    UnknownExecutionError: "S23",
    HeldByLiveOwnerError: "S19",
}
"""Which rule it breaks to grant what should have been refused so; the others are of S3."""


class Grants:
    """See the module's docstring.

    Args:
        complain: called with a broken rule, an execution and what is wrong.
        reached: called with each rare thing that happened.
    """

    def __init__(
        self, complain: Callable[[str, str, str], None], reached: Callable[[str], None]
    ) -> None:
        self._complain = complain
        self._reached = reached

    def judge(self, key: ExecutionKey, right: Answer, error: LoomError | None, what: str) -> None:
        """S1, S3, S4, S5, S19, S24: what was granted should have been, and what was refused
        should have been refused so, alone as in a batch, by the caller's own name.
        """
        name = f"{key.tenant}/{key.execution_id}"
        if error is None:
            if not isinstance(right, Yes):
                rule = _RULES.get(right, "S3")
                self._complain(rule, name, f"{what} was granted, and is no {right.__name__}")
            return
        if isinstance(right, Yes):
            rule = "S5" if right is Yes.AGAIN else "S4"
            self._complain(rule, name, f"{what} was refused: {error!r}")
        elif type(error) is not right:
            self._complain("S4", name, f"{what} was refused: {error!r}, not {right.__name__}")
        if isinstance(error, StaleFenceError):
            self._reached("stale fence refused")
        if isinstance(error, StartFencedOutError):
            self._reached("start fenced out by a silent holder")
        if error.execution_id not in (None, key.execution_id):
            self._complain("S24", name, f"the refusal names {error.execution_id!r}")
