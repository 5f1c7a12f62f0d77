"""How things stand while two journals are compared, and the names of what is compared."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final

from loom_mq.journal.protocol import Append, LeaseSession
from loom_mq.model.events import EVENT_SCHEMA, Envelope
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey, ExecutionRow

PAST: Final = 5
FUTURE: Final = 4_000_000_000_000_000
EXECUTIONS: Final = 3
ALIVE: Final = 2
"""Owners with a lease; the one after them is dead."""


class Kinds:
    """What the envelopes of a write are."""

    NEW = "new"
    AGAIN = "again"
    MOVED = "moved"
    OTHER = "other"


@dataclass
class World:
    """How things stand before an operation, as the first of the two journals tells.

    Attributes:
        prefix: of every name, so that runs on one storage do not meet.
        step: number of the operation.
        rows: index rows.
        written: accepted appends, in order.
        sessions: leases of each journal, by owner.
    """

    prefix: str
    step: int = 0
    rows: dict[ExecutionKey, ExecutionRow | None] = field(default_factory=dict)
    written: dict[ExecutionKey, list[Append]] = field(default_factory=dict)
    sessions: dict[int, dict[str, LeaseSession]] = field(default_factory=dict)

    @property
    def keys(self) -> list[ExecutionKey]:
        """Every execution that an operation may name; the last is one that was put aside."""
        names = [*(str(number) for number in range(EXECUTIONS)), "aside"]
        return [ExecutionKey(DEFAULT_TENANT, f"{self.prefix}-{each}") for each in names]

    def owner(self, number: int) -> str:
        """The name of an owner."""
        return f"{self.prefix}-owner-{number}"

    def envelopes(self, first: int, count: int, fence: int) -> tuple[Envelope, ...]:
        """New envelopes, the same for both journals."""
        return tuple(
            Envelope(
                hashlib.blake2b(
                    f"{self.prefix}/{self.step}/{first}/{at}".encode(), digest_size=16
                ).digest(),
                first + at,
                f"KIND_{self.step}",
                10_000 + self.step,
                fence,
                True,
                EVENT_SCHEMA,
                b"\x00" * self.step,
            )
            for at in range(count)
        )
