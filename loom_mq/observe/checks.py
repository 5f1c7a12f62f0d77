"""One answer to the question whether a part of a process can do its work."""

from __future__ import annotations

import msgspec


class Check(msgspec.Struct, frozen=True):
    """The state of one thing that a process needs.

    Attributes:
        ok: it is as it should be.
        detail: what is wrong, or a figure of interest; one line, for people.
    """

    ok: bool
    detail: str = ""
