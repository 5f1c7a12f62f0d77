"""A service whose process is ended by a user's code has not ended well (C68).

``os._exit(0)`` in a step would look like a drain that is done: a supervisor that starts
again only what has failed would leave a fleet without workers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from loom_mq.runtime.part import ExitCode

_NAME: Final = "_exit"


@contextmanager
def no_clean_exit() -> Iterator[None]:
    """While it lasts, ``os._exit(0)`` in this process ends it with `ExitCode.CRASHED`.

    A process that was forked from it, as `multiprocessing` does, exits as it likes.
    """
    leave, service = os._exit, os.getpid()

    def guarded(status: int) -> None:
        leave(status or (ExitCode.CRASHED if os.getpid() == service else ExitCode.CLEAN))

    setattr(os, _NAME, guarded)
    try:
        yield
    finally:
        setattr(os, _NAME, leave)
