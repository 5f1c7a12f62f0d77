"""What `loom doctor` finds: the verdict on each thing, and what to do about it. Judges only."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from loom_mq.cli.queues import QueueFacts, QueueState
from loom_mq.cli.survey import Survey
from loom_mq.clock import MICROS
from loom_mq.journal.postgres import ServerFacts
from loom_mq.kernel.reasons import Reason, ReasonCode
from loom_mq.kernel.wording import counted, span
from loom_mq.model.execution import ExecutionRow, WorkerRecord

CLOCK_SECONDS: Final = 1.0
FULL: Final = 0.8
"""Share of the server's connections in use that is worth a word."""
LONG_TRANSACTION: Final = 600.0
SLOW_ANSWER: Final = 0.5
LEASE_AT_LEAST: Final = 1.0
ROLES: Final = ("dispatcher", "worker", "timer")


class Verdict(enum.StrEnum):
    """How a thing is."""

    OK = "ok"
    WARN = "warn"
    """It works, and somebody should look."""
    FAIL = "fail"
    SKIPPED = "skipped"
    """It could not be looked at."""


class Finding(msgspec.Struct, frozen=True):
    """One check.

    Attributes:
        check: its name, for programs.
        verdict: how it is.
        detail: what was seen.
        remedy: what to do; empty when there is nothing to do.
    """

    check: str
    verdict: Verdict
    detail: str
    remedy: str = ""


def ok(check: str, detail: str) -> Finding:
    """As it should be."""
    return Finding(check, Verdict.OK, detail)


def warn(check: str, detail: str, remedy: str) -> Finding:
    """Works, and somebody should look."""
    return Finding(check, Verdict.WARN, detail, remedy)


def fail(check: str, detail: str, remedy: str) -> Finding:
    """Must be mended."""
    return Finding(check, Verdict.FAIL, detail, remedy)


def skipped(check: str, detail: str, remedy: str = "") -> Finding:
    """Could not be looked at."""
    return Finding(check, Verdict.SKIPPED, detail, remedy)


# ---- the journal --------------------------------------------------------------------------------


def server(facts: ServerFacts, ahead: float) -> Iterable[Finding]:
    """How a PostgreSQL keeps the journal.

    Args:
        facts: what it says of itself.
        ahead: seconds by which this host's clock is ahead of its.
    """
    yield schema(facts)
    yield durability(facts)
    yield clock(ahead)
    used = f"{facts.connections} of {facts.most_connections} connections in use"
    if facts.connections >= FULL * facts.most_connections:
        yield warn("pool", used, "lower LOOM_POOL_SIZE, or raise max_connections of the server")
    else:
        yield ok("pool", used)
    if facts.oldest_transaction > LONG_TRANSACTION:
        yield warn(
            "transactions",
            f"a transaction is open for {span(facts.oldest_transaction)}",
            "find it in pg_stat_activity and end it: it keeps the tables from being cleaned",
        )


def schema(facts: ServerFacts) -> Finding:
    """Whether this program and the journal fit each other."""
    found = f"version {facts.schema_version}, functions {facts.revision}"
    needed = f"this program needs {facts.known_version}, functions {facts.known_revision}"
    if not facts.schema_version:
        return fail("schema", "there is no journal", "loom migrate")
    if facts.schema_version > facts.known_version:
        return fail("schema", f"{found}; {needed}", "use the newer release that made it")
    if (facts.schema_version, facts.revision) < (facts.known_version, facts.known_revision):
        return fail("schema", f"{found}; {needed}", "loom migrate")
    return ok("schema", found)


def durability(facts: ServerFacts) -> Finding:
    """Whether what the server has answered survives its crash."""
    if facts.standby:
        return fail(
            "durability",
            "this server is a standby and takes no writes",
            "point LOOM_JOURNAL at the primary",
        )
    settings = {
        "synchronous_commit": facts.synchronous_commit,
        "fsync": facts.fsync,
        "full_page_writes": facts.full_page_writes,
    }
    off = [name for name, value in settings.items() if value == "off"]
    if off:
        return fail(
            "durability",
            f"{' and '.join(off)} off: what was answered may be lost when the server crashes",
            "set it to on for the server, the database and the user of LOOM_JOURNAL",
        )
    return ok("durability", f"synchronous_commit {facts.synchronous_commit}, fsync on")


def clock(ahead: float) -> Finding:
    """How far this host's clock is from the journal's, which alone counts."""
    if abs(ahead) > CLOCK_SECONDS:
        where = "ahead of" if ahead > 0 else "behind"
        return warn(
            "clock",
            f"this host is {abs(ahead):.1f} s {where} the journal, whose time counts",
            "set this host's clock (NTP); leases and timers do not depend on it, its logs do",
        )
    return ok("clock", f"{abs(ahead) * 1000:.0f} ms from the journal's")


# ---- the fleet ----------------------------------------------------------------------------------


def services(workers: Sequence[WorkerRecord], *, embedded: bool) -> Iterable[Finding]:
    """Who is alive."""
    if embedded:
        if workers:
            yield ok("services", "the process of this journal is alive")
        else:
            yield fail("services", "no process serves this journal", "loom dev FILE")
        return
    alive = Counter(worker.role for worker in workers if not worker.draining)
    for role in ROLES:
        number = alive[role]
        name = "timer service" if role == "timer" else role
        detail = f"{counted(number, name)} alive"
        if not number:
            yield fail(f"{name}s", detail, f"python -m services.{role}")
        elif number == 1:
            yield warn(f"{name}s", detail, "start a second one, so that one may die")
        else:
            yield ok(f"{name}s", detail)


def leases(workers: Sequence[WorkerRecord], now: int) -> Iterable[Finding]:
    """Whether those who are alive will stay so."""
    if not workers:
        return
    left = {worker.owner: (worker.lease_until - now) / MICROS for worker in workers}
    short = [owner for owner, seconds in left.items() if seconds < LEASE_AT_LEAST]
    draining = [worker.owner for worker in workers if worker.draining]
    detail = f"{counted(len(workers), 'lease')}, the shortest {span(min(left.values()))}"
    if draining:
        detail += f"; draining: {', '.join(draining)}"
    if short:
        yield warn(
            "leases",
            f"{detail}; about to lapse: {', '.join(short)}",
            "look again; if they stay, see lease.late in the logs of those processes",
        )
    else:
        yield ok("leases", detail)
    releases = sorted({worker.release for worker in workers if worker.release})
    if len(releases) > 1:
        yield warn(
            "releases",
            f"the fleet runs {', '.join(releases)}",
            "finish the deployment; a mixed fleet works, for a while",
        )
    else:
        yield ok("releases", ", ".join(releases) or "unknown")


def queues(found: Sequence[QueueFacts], now: int) -> Iterable[Finding]:
    """Whether each queue is served."""
    for queue in found:
        state = queue.state(now)
        name = f"queue {queue.name}"
        ready = 0 if queue.depth is None else queue.depth.ready
        waits = f"waiting: {counted(queue.waiting, 'execution')}"
        waits += f", {counted(ready, 'message')} ready" if ready else ""
        if queue.service:
            role = "python -m services.dispatcher"
            if state is QueueState.NO_CONSUMER and queue.depth is not None:
                yield fail(name, f"no consumer, {counted(ready, 'message')} ready", role)
            continue
        match state:
            case QueueState.NO_CONSUMER:
                yield fail(name, f"no consumer; {waits}", "python -m services.worker")
            case QueueState.MISSING:
                yield fail(
                    name,
                    f"{queue.broker_queue} is not on the broker; {waits}",
                    "start a worker with it in LOOM_QUEUES: a worker makes its queues",
                )
            case QueueState.BACKLOG:
                oldest = "" if queue.oldest is None else span((now - queue.oldest) / MICROS)
                yield warn(
                    name, f"{waits}, the oldest {oldest or 'late'}", "start more workers for it"
                )


# ---- executions ---------------------------------------------------------------------------------


def executions(survey: Survey, overdue: int) -> Iterable[Finding]:
    """What does not move, by reason, and what only a person gets going."""
    groups: dict[ReasonCode, list[tuple[ExecutionRow, Reason]]] = {}
    for row, reason in survey.stuck:
        groups.setdefault(reason.code, []).append((row, reason))
    census = survey.census
    given_up = sum(each.given_up for each in census.flows.values())
    forgotten = sum(each.forgotten for each in census.flows.values())
    if given_up:
        yield fail(
            "exhausted",
            f"{counted(given_up, 'execution')} given up after too many recoveries",
            "mend what kills their workers, then loom recover ID --again; loom census --ids",
        )
    else:
        yield ok("exhausted", "none given up")
    if forgotten:
        yield fail(
            "forgotten",
            f"{counted(forgotten, 'execution')} that nobody drives and no package is due for",
            "loom census --ids, then loom recover ID --again",
        )
    if overdue:
        yield warn("late timers", f"{overdue} late by more than 10 s", "loom timers --overdue")
    else:
        yield ok("late timers", "none")
    for code, members in sorted(groups.items(), key=lambda each: -len(each[1])):
        row, reason = members[0]
        yield warn(
            f"stuck {code.value}",
            f"{counted(len(members), 'execution')}, such as {row.execution_id}",
            reason.next or f"loom why {row.execution_id}",
        )
    if not groups:
        yield ok("stuck", f"none of {len(survey.rows)} that have not ended")


def letters(number: int, newest: int | None, now: int) -> Finding:
    """Whether there are dead letters."""
    if not number or newest is None:
        return ok("dead letters", "none")
    return warn(
        "dead letters",
        f"{number}, the newest {span((now - newest) / MICROS)} old",
        "loom dlq, then loom dlq requeue or drop",
    )
