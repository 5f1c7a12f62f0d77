"""`loom doctor`: is everything as it must be, and if not, what to do (F11)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Annotated, Final

import typer
from rich.text import Text

from loom_mq.broker import topology
from loom_mq.broker.protocol import Broker, Queue
from loom_mq.cli import brokering, findings
from loom_mq.cli.exits import Exit
from loom_mq.cli.findings import Finding, Verdict, fail, ok, skipped, warn
from loom_mq.cli.options import reach_of
from loom_mq.cli.queues import SERVICE_QUEUES, QueueFacts, ask_broker, gather
from loom_mq.cli.reach import Reach, open_broker, open_journal
from loom_mq.cli.reading import LETTERS
from loom_mq.cli.screen import Item, Page
from loom_mq.cli.survey import Survey
from loom_mq.cli.text import visible
from loom_mq.clock import MICROS, JournalClock
from loom_mq.errors import (
    BrokerUnreachableError,
    ConfigurationError,
    JournalUnreachableError,
    LoomError,
    SchemaVersionError,
    TopologyMismatchError,
)
from loom_mq.journal.postgres import inspect_server
from loom_mq.journal.protocol import Journal
from loom_mq.kernel.reasons import PATIENCE
from loom_mq.kernel.wording import counted
from loom_mq.observe.redaction import redactor
from loom_mq.runtime.ports import SCHEMA

_STYLES: Final = {
    Verdict.OK: "green",
    Verdict.WARN: "yellow",
    Verdict.FAIL: "bold red",
    Verdict.SKIPPED: "dim",
}
_REACH: Final = frozenset({"journal", "broker"})
_WIDTH: Final = 14


def doctor(
    ctx: typer.Context,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 7 for warnings, too.")
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="How many executions of each status to look at.")
    ] = 10_000,
) -> Exit:
    """Check journal, broker, services and executions, and say what to do.

    Exits with 7 when a check fails (with --strict also for warnings), with 5 when the
    journal or the broker cannot be reached.
    """
    return asyncio.run(_Doctor(reach_of(ctx), limit).run(strict=strict))


class _Doctor:
    """One look at everything. A part that cannot be looked at ends no other."""

    def __init__(self, reach: Reach, limit: int) -> None:
        self._reach = reach
        self._limit = limit
        self._found: list[Finding] = []
        self._queues: list[QueueFacts] = []
        self._now = 0

    async def run(self, *, strict: bool) -> Exit:
        self._reach.journal_address()  # that nothing is given is a mistake and no finding
        await self._journal()
        await self._broker()
        self._show()
        bad = {Verdict.FAIL, Verdict.WARN} if strict else {Verdict.FAIL}
        if any(each.check in _REACH and each.verdict is Verdict.FAIL for each in self._found):
            return Exit.UNREACHABLE
        return Exit.FOUND if any(each.verdict in bad for each in self._found) else Exit.DONE

    # ---- the journal ----------------------------------------------------------------

    async def _journal(self) -> None:
        try:
            if not self._reach.embedded:
                await self._server()
            async with open_journal(self._reach) as journal:
                if self._reach.embedded:
                    self._found.append(ok("journal", str(self._reach.journal_address())))
                await self._fleet(journal)
        except SchemaVersionError as error:
            if all(each.check != "schema" for each in self._found):
                self._found.append(fail("schema", error.message, "see the sentence"))
            self._found.append(skipped("executions", "the journal cannot be read"))
        except (JournalUnreachableError, ConfigurationError) as error:
            self._found.append(
                fail(
                    "journal",
                    error.message,
                    "see that the server runs, and look at the address, the user and the network",
                )
            )
        except LoomError as error:
            self._found.append(fail("journal", error.message, "see the log of the server"))

    async def _server(self) -> None:
        address = self._reach.journal_address()
        host = JournalClock()
        began = time.monotonic()
        facts = await inspect_server(address.reveal(), SCHEMA, timeout=self._reach.patience)
        took = time.monotonic() - began
        told = f"{address}: PostgreSQL {facts.server} answers in {took * 1000:.0f} ms"
        if took > findings.SLOW_ANSWER:
            self._found.append(warn("journal", told, "look at the load of the server"))
        else:
            self._found.append(ok("journal", told))
        # the server read its clock last, and connecting took most of the time before
        self._found += findings.server(facts, (host.now() - facts.now) / MICROS)

    async def _fleet(self, journal: Journal) -> None:
        survey = Survey(self._reach, journal, limit=self._limit, ask_broker=False)
        await survey.look()
        now = self._now = await journal.now()
        self._found += findings.services(survey.workers, embedded=self._reach.embedded)
        self._found += findings.leases(survey.workers, now)
        overdue = sum(
            row.wake_at is not None and now - row.wake_at > PATIENCE and row.owner is None
            for row in survey.rows.values()
        )
        self._found += findings.executions(survey, overdue)
        letters = await journal.dead_letters(LETTERS)
        newest = letters[0].at if letters else None
        self._found.append(findings.letters(len(letters), newest, now))
        self._queues, _cut = await gather(self._reach, journal, self._limit)
        if self._reach.broker is None or self._reach.embedded:
            self._found += findings.queues(self._queues, now)

    # ---- the broker -----------------------------------------------------------------

    async def _broker(self) -> None:
        if self._reach.embedded:
            return
        if self._reach.broker is None:
            self._found.append(
                skipped("broker", "no broker is given", "say --broker URL, or set LOOM_BROKER")
            )
            return
        try:
            began = time.monotonic()
            async with open_broker(self._reach) as broker:
                took = time.monotonic() - began
                told = f"{self._reach.broker_address()} lets in within {took * 1000:.0f} ms"
                self._found.append(ok("broker", told))
                await self._publishing(broker)
                await self._topology(broker)
                await ask_broker(broker, self._queues)
            self._found += findings.queues(self._queues, self._now)
        except (BrokerUnreachableError, ConfigurationError) as error:
            self._found.append(
                fail(
                    "broker",
                    error.message,
                    "see that the server runs, and look at the address, the user and its rights",
                )
            )
        except LoomError as error:
            self._found.append(fail("broker queues", error.message, "see the log of the server"))

    async def _publishing(self, broker: Broker) -> None:
        seconds, trouble = await brokering.confirmed(broker)
        if trouble:
            self._found.append(
                fail("publishing", trouble, "free memory or disk space of the broker")
            )
        else:
            self._found.append(ok("publishing", f"confirmed within {seconds * 1000:.0f} ms"))

    async def _topology(self, broker: Broker) -> None:
        """Whether the queues are of the type, and have the limits, that this release declares."""
        wanted: list[Queue] = [*SERVICE_QUEUES, *(topology.work(q.name) for q in self._queues)]
        wrong: list[str] = []
        missing: list[str] = []
        for queue in wanted:
            if await broker.depth(queue.name) is None:
                missing.append(queue.name)
                continue
            try:
                await broker.declare([queue])  # it is there: this only compares
            except TopologyMismatchError as error:
                wrong.append(error.message)
        if wrong:
            self._found += [
                fail(
                    "topology",
                    sentence,
                    "drain the queue, delete it and restart the service that declares it",
                )
                for sentence in wrong
            ]
        if missing:
            self._found.append(
                warn(
                    "topology",
                    f"not there: {', '.join(missing)}",
                    "a dispatcher makes the fleet's own queues, a worker those that it serves",
                )
            )
        if not wrong and not missing:
            told = (
                f"{counted(len(wanted), 'queue')}, quorum, dead-lettered after "
                f"{topology.DELIVERY_LIMIT} deliveries"
            )
            self._found.append(ok("topology", told))

    # ---- the answer -----------------------------------------------------------------

    def _show(self) -> None:
        screen = self._reach.screen
        if screen.json:
            items: list[Item] = [
                {
                    "check": each.check,
                    "status": each.verdict.value,
                    "detail": redactor.text(each.detail),
                    "remedy": each.remedy or None,
                }
                for each in self._found
            ]
            screen.show(Page(kind="doctor", items=items))
            return
        width = max(_WIDTH, *(len(visible(each.check)) for each in self._found))
        for each in self._found:
            head = Text(f"{each.verdict.value:7}", _STYLES[each.verdict])
            head.append(f" {visible(each.check):{width}} ", "not bold default")
            screen.hanging(head, redactor.text(each.detail))
            if each.remedy:
                screen.line(f"{'':7} {'':{width}} → {self._reach.copyable(each.remedy)}")
        screen.line(_sum(self._found))


def _sum(found: Sequence[Finding]) -> str:
    number = {
        verdict: sum(each.verdict is verdict for each in found)
        for verdict in (Verdict.FAIL, Verdict.WARN)
    }
    if not any(number.values()):
        return "everything is as it should be"
    return f"{number[Verdict.FAIL]} failed, {counted(number[Verdict.WARN], 'warning')}"
