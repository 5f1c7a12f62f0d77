"""Which strand of a flow is running, carried by asyncio's own contexts (K3).

The task factory gives every task that flow code makes (gather, TaskGroup,
create_task) a scope of its own, named by the order in which its parent made it.
Tasks made by a step's effect or outside flows are left alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, Protocol, cast

from loom_mq.errors import ConfigurationError
from loom_mq.kernel.identity import Scope


class TaskKeeper(Protocol):
    """Who must hear of every task that flow code makes."""

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """A task was made in one of this keeper's scopes."""


class Strand(Scope):
    """A scope together with the run of the flow that it belongs to."""

    __slots__ = ("keeper",)

    def __init__(self, keeper: TaskKeeper, path: str = "") -> None:
        super().__init__(path)
        self.keeper = keeper


current_strand: ContextVar[Strand | None] = ContextVar("loom_strand", default=None)
"""The strand of flow code that is running; None in a step's effect and outside flows."""


def task_factory(
    loop: asyncio.AbstractEventLoop,
    coro: Coroutine[Any, Any, Any],
    *,
    context: Context | None = None,
    **options: Any,
) -> asyncio.Task[Any]:
    """Make a task; inside flow code, in a strand of its own."""
    parent = current_strand.get() if context is None else context.get(current_strand)
    if parent is None:
        return asyncio.Task(coro, loop=loop, context=context, **options)
    own = copy_context() if context is None else context.copy()
    own.run(current_strand.set, Strand(parent.keeper, parent.task_path()))
    task = asyncio.Task(coro, loop=loop, context=own, **options)
    parent.keeper.adopt(task)
    return task


def install_task_factory() -> None:
    """Give the running event loop the factory above; once per loop is enough.

    Raises:
        ConfigurationError: the loop has another task factory, which would be lost.
    """
    loop = asyncio.get_running_loop()
    present = loop.get_task_factory()
    if present is task_factory:
        return
    if present is not None:
        raise ConfigurationError(
            f"the event loop has a task factory already ({present!r}); flows need their own to "
            "tell the tasks that they make apart"
        )
    loop.set_task_factory(cast("Any", task_factory))
