"""One engine per file: an advisory lock that the operating system ends with its process."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from loom_mq.errors import ConfigurationError

_SUFFIX: Final = ".lock"


class FileLock:
    """An exclusive lock beside a journal's file.

    The lock file itself stays: deleting it would let two processes lock two files of
    the same name.

    Args:
        journal: the journal's file.
    """

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._path = journal.with_name(journal.name + _SUFFIX)
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            ConfigurationError: another engine has it, or the folder cannot be written.
        """
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigurationError(
                f"the lock file {str(self._path)!r} of the journal cannot be opened: "
                f"{error.strerror}; the journal needs a folder that exists and can be written"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise ConfigurationError(
                f"the journal {str(self._journal)!r} is in use by another engine"
                f"{f' (process {holder})' if holder else ''}: stop that one first, or use "
                "another file, or share a PostgreSQL journal instead"
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock up; it need not be held."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
