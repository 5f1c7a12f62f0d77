"""Which strand of a flow is running, carried by asyncio's own contexts (K3).

The event loop of a worker knows flow code when it sees it. Every task that flow code
makes (gather, TaskGroup, create_task) gets a scope of its own, named by the order in
which its parent made it. And flow code cannot wait for the clock or for a thread: when
that is over is nothing that a re-run could repeat. Steps, the engine and whatever else
runs in the loop are left alone.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from functools import wraps
from types import FrameType
from typing import Any, Protocol, TypeVar, cast

from loom_mq.errors import ConfigurationError, FlowError, UnsupportedInFlowError
from loom_mq.kernel.identity import Scope

T = TypeVar("T")


class TaskKeeper(Protocol):
    """Who must hear of every task that flow code makes."""

    def count_task(self) -> int:
        """The number of the next task."""

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """A task was made in one of this keeper's scopes."""


class Strand(Scope):
    """A scope together with the run of the flow that it belongs to."""

    __slots__ = ("keeper", "ordered")

    def __init__(self, keeper: TaskKeeper, path: str = "", *, ordered: bool = True) -> None:
        super().__init__(path)
        self.keeper = keeper
        self.ordered = ordered

    def place(self) -> str:
        """The next place in this scope.

        Raises:
            UnsupportedInFlowError: which scope this is was left to chance.
        """
        self._must_be_ordered()
        return super().place()

    def task_path(self) -> str:
        """The path of the next task made in this scope.

        Raises:
            UnsupportedInFlowError: which scope this is was left to chance.
        """
        self._must_be_ordered()
        return super().task_path()

    def _must_be_ordered(self) -> None:
        if not self.ordered:
            raise UnsupportedInFlowError(
                "asyncio.as_completed goes through coroutines in an order that no re-run repeats, "
                "so durable calls inside them have no place. Make tasks first: "
                "asyncio.as_completed([asyncio.ensure_future(each) for each in coroutines])"
            )


current_strand: ContextVar[Strand | None] = ContextVar("loom_strand", default=None)
"""The strand of flow code that is running; None in a step's effect and outside flows."""


_users_code: ContextVar[bool] = ContextVar("loom_users_code", default=False)
"""Whether an effect runs, and what it makes."""


async def _contained(coro: Coroutine[Any, Any, T]) -> T:
    """`SystemExit` in a task ends the event loop, and with it the worker: in users' code it
    is an error of that task (C70).
    """
    try:
        return await coro
    except (SystemExit, KeyboardInterrupt) as error:
        raise FlowError(f"a task raised {type(error).__name__}: {error}") from error


def _made_by_as_completed() -> bool:
    """Whether `asyncio.as_completed` makes a task of a coroutine: it puts them into a set
    first, whose order is that of their addresses.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("asyncio."):
        if frame.f_code.co_qualname.startswith(("as_completed", "_AsCompletedIterator")):
            return True
        frame = frame.f_back
    return False


class FlowTask(asyncio.Task[Any]):
    """A task that flow code made. Its hash is a number that counts such tasks, the same on
    every re-run: `asyncio.wait` hands tasks out in sets, and a flow that goes through one
    must meet them in the same order again.
    """

    def __init__(
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        number: int,
        loop: asyncio.AbstractEventLoop,
        context: Context,
        **options: Any,
    ) -> None:
        self._number = number
        super().__init__(coro, loop=loop, context=context, **options)

    def __hash__(self) -> int:
        return self._number


def task_factory(
    loop: asyncio.AbstractEventLoop,
    coro: Coroutine[Any, Any, Any],
    *,
    context: Context | None = None,
    **options: Any,
) -> asyncio.Task[Any]:
    """Make a task; inside flow code, in a strand of its own."""
    parent = current_strand.get() if context is None else context.get(current_strand)
    # outside any task it is the event loop that makes one, such as to close a generator that
    # was lost: whatever context it has come by, it is no part of a flow
    if parent is None or asyncio.current_task(loop) is None:
        if not (_users_code.get() if context is None else context.get(_users_code, False)):
            return asyncio.Task(coro, loop=loop, context=context, **options)
        task = asyncio.Task(_contained(coro), loop=loop, context=context, **options)
        task.add_done_callback(lambda _task: coro.close())
        return task
    own = copy_context() if context is None else context.copy()
    strand = Strand(parent.keeper, parent.task_path(), ordered=not _made_by_as_completed())
    own.run(current_strand.set, strand)
    number = parent.keeper.count_task()
    task = FlowTask(_contained(coro), number=number, loop=loop, context=own, **options)
    task.add_done_callback(lambda _task: coro.close())  # one that was cancelled before it began
    parent.keeper.adopt(task)
    return task


@contextmanager
def outside_flow() -> Iterator[None]:
    """What runs within is no flow code, though a flow awaits it: an effect, a pause."""
    strand, users = current_strand.set(None), _users_code.set(True)
    try:
        yield
    finally:
        _users_code.reset(users)
        current_strand.reset(strand)


def _refused_in_flows(function: Callable[..., T], what: str) -> Callable[..., T]:
    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> T:
        if current_strand.get() is not None:
            raise UnsupportedInFlowError(what)
        return function(*args, **kwargs)

    return checked


_CLOCK = (
    "flow code cannot wait by the event loop's clock (asyncio.sleep, asyncio.timeout, wait_for, "
    "any wait with a timeout): a re-run could not repeat it. Use `await ctx.sleep(...)` for a "
    "pause, `ctx.suspend(..., timeout=...)` for a wait with a limit, and `@step(timeout=...)` for "
    "a limit on a step"
)
_THREADS = (
    "flow code cannot use threads (asyncio.to_thread, run_in_executor): nobody would remember what "
    "they did. Make the function a step and write `await ctx.run(function, ...)`"
)


def install_flow_rules() -> None:
    """Make the running event loop know flow code; once per loop is enough.

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
    # asyncio's own waits all come down to these
    for name, what in (
        ("call_later", _CLOCK),
        ("call_at", _CLOCK),
        ("run_in_executor", _THREADS),
    ):
        setattr(loop, name, _refused_in_flows(getattr(loop, name), what))
