"""A stored fold (J7)."""

from __future__ import annotations

import msgspec

FOLD_VERSION = 2
"""Version of the fold that this release writes. Version 1 is the fold of the original
Loom before its record 0105, in which a step's failure moved the status."""


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """What a log says up to one of its events.

    Attributes:
        seq: the newest event that is folded in.
        fold: version of the fold that made it.
        state: the folded state as msgpack; read it with `kernel.snapshots`.
    """

    seq: int
    fold: int
    state: bytes
