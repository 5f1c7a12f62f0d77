"""All that is held of a run, behind one observer."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.rig.book import Book
from tests.simulation.rig.history import History
from tests.simulation.rig.jobs import Work
from tests.simulation.rig.journal import SessionJournal
from tests.simulation.rig.ledger import Ledger, key_of
from tests.simulation.rig.observer import (
    Acked,
    Applied,
    Effect,
    Happened,
    Observer,
    Told,
    Violation,
)
from tests.simulation.rig.reference import expected
from tests.simulation.rig.settlements import Settlements
from tests.simulation.rig.shadow import JournalShadow


class Eyes(Observer):
    """Shows each thing to those whom it concerns.

    Args:
        store: the journal, to compare with.
        once: each package comes once, so that the first to be settled is the only one.
    """

    def __init__(self, store: SessionJournal, *, once: bool) -> None:
        self.book = book = Book()
        self.shadow = JournalShadow(store, book.complain, book.reached)
        known = self.shadow.known
        self.ledger = Ledger(known, book.complain, book.reached)
        self.history = History(known, book.complain, book.reached)
        self.settlements = Settlements(known, book.complain, once=once)

    def applied(self, applied: Applied) -> None:
        self.shadow.applied(applied)

    def began(self, effect: Effect) -> None:
        self.ledger.began(effect)

    def ended(self, effect: Effect, outcome: str) -> None:
        self.ledger.ended(effect, outcome)

    def told(self, told: Told) -> None:
        self.history.told(told)

    def acked(self, acked: Acked) -> None:
        self.settlements.acked(acked)

    def happened(self, happened: Happened) -> None:
        self.shadow.befell(happened)
        self.book.reached(happened.what)

    def check(self, work: Work) -> Iterator[Violation]:
        """What must be so of each job once all clients have heard how it ended."""
        for job in work.jobs:
            name = f"{job.tenant}/{job.id}"
            known = self.shadow.known.get(key_of(name))
            if known is None:
                yield Violation(rule="S23", execution_id=name, text="it is not there")
                continue
            wanted = expected(job)
            for rule, text in self.history.check(known, wanted):
                yield Violation(rule=rule, execution_id=name, text=text)
            for rule, text in self.ledger.check(job, known, wanted):
                yield Violation(rule=rule, execution_id=name, text=text)
