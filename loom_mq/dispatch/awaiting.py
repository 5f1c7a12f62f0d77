"""Waiting for the outcome of an execution that somebody else drives (F5)."""

from __future__ import annotations

import asyncio

from loom_mq.dispatch.protocol import FoldedState, LoadsState
from loom_mq.errors import UnknownExecutionError, WaitTimeoutError
from loom_mq.model.execution import ExecutionKey

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0


async def await_by_id(
    source: LoadsState, key: ExecutionKey, *, timeout: float, parked: bool = False
) -> FoldedState:
    """Look at an execution until it has ended, whoever drives it.

    This is what a caller does who needs the outcome and whose dispatch was refused as
    superseded. It drives nothing: if the holder is dead, a recovery pass must find it.

    Args:
        source: says how the execution stands: a worker, local or remote.
        key: the execution.
        timeout: seconds.
        parked: return also when it parks, as a dispatch does.

    Raises:
        UnknownExecutionError: there is no such execution.
        WaitTimeoutError: it has not ended in time; it goes on.
    """
    pause = FIRST_PAUSE
    try:
        async with asyncio.timeout(timeout):
            while True:
                state = await source.load_state(key)
                if state is None:
                    raise UnknownExecutionError(
                        f"there is no execution {key.execution_id!r}",
                        execution_id=key.execution_id,
                    )
                if state.status.terminal or (parked and state.settled):
                    return state
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
    except TimeoutError as error:
        raise WaitTimeoutError(
            f"execution {key.execution_id!r} has not ended within {timeout:g} s; it goes on, wait "
            "again or look at its state",
            execution_id=key.execution_id,
        ) from error
