"""What a row of the table is."""

from __future__ import annotations

import msgspec


class Guard(msgspec.Struct, frozen=True):
    """One guard, and how to take it away.

    Attributes:
        id: for the command line.
        rule: the rule that it holds.
        what: what the mutant does, in a few words.
        file: where it stands.
        old: its text, once in the file.
        new: the text without it.
        tests: which of them must fail.
        also: what is taken away with it, because it would hide that the first is gone: file, text,
            and the text without it.
    """

    id: str
    rule: str
    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    also: tuple[tuple[str, str, str], ...] = ()

    @property
    def edits(self) -> tuple[tuple[str, str, str], ...]:
        """All that is taken away."""
        return ((self.file, self.old, self.new), *self.also)
