"""`loom queues`, `timers`, `dlq` and `doctor`, and lists by filters, over a real journal (F11)."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from loom_mq.cli import letters
from loom_mq.cli.exits import Exit
from loom_mq.cli.options import watch_of
from loom_mq.cli.reach import DEV_FILE
from loom_mq.clock import MICROS
from loom_mq.codec import wire
from loom_mq.journal.protocol import DeadLetter
from loom_mq.journal.sqlite import SqliteJournal
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey, WorkerRecord
from loom_mq.model.messages import (
    MESSAGE_VERSION,
    Cause,
    ControlItem,
    ControlMessage,
    ControlOp,
    Package,
    PackageMessage,
    StartItem,
    StartMessage,
)
from tests.support.cli import Loom, cli, filled, items

__all__ = ["cli", "filled"]

T = TypeVar("T")


def within(work: Callable[[SqliteJournal], Awaitable[T]]) -> T:
    """Do something to the journal that the commands look at."""

    async def run() -> T:
        async with SqliteJournal(DEV_FILE, exclusive=False) as journal:
            return await work(journal)

    return asyncio.run(run())


async def hire(journal: SqliteJournal, *, drains: bool = False) -> None:
    """A worker of queue `default` is alive for ten minutes; nothing drives anything."""
    record = WorkerRecord(
        owner="worker/h/1/x", role="worker", host="h", queues=("default",), slots=7, release="9"
    )
    lease = await journal.lease(record, 600.0)
    if drains:
        await lease.drain()


def column(out: str, *names: str) -> list[list[str]]:
    """Cells of a table by their headings."""
    head, *rows = out.splitlines()
    starts = [head.index(name) for name in names]
    return [[re.split(r" {2,}", row[start:] + "  ")[0].strip() for start in starts] for row in rows]


# ---- the fleet ----------------------------------------------------------------------------------


def test_queues_tell_what_waits_and_for_how_long(cli: Loom) -> None:
    code, out, err = cli("queues")
    assert (code, err) == (0, "")
    assert column(out, "QUEUE", "READY", "CONSUMERS", "WAITING", "STATE") == [
        ["default", "-", "-", "0", "idle"]
    ]
    assert cli("start", "doubling", "1", "--id", "waits")[0] == 0
    [queue] = items(cli("queues", "--json"), "loom.queues/1")
    assert (queue["waiting"], queue["running"], queue["state"]) == (1, 0, "no consumer")
    assert (queue["ready"], queue["broker_queue"]) == (None, "loom.work.default")
    assert isinstance(queue["oldest_seconds"], float)
    within(hire)
    [queue] = items(cli("queues", "--json"), "loom.queues/1")
    assert (queue["workers"], queue["slots"], queue["state"]) == (1, 7, "ok")
    assert "--limit" in cli("queues", "--limit", "1")[2]


def test_a_draining_worker_shows(cli: Loom) -> None:
    """F7, F11: in the list, and it counts as no consumer any more."""
    within(hire)
    assert column(cli("workers")[1], "STATE", "EXECUTIONS") == [["alive", "0"]]
    within(lambda journal: hire(journal, drains=True))
    assert column(cli("workers")[1], "ROLE", "STATE") == [["worker", "draining"]]
    [worker] = items(cli("workers", "--json"), "loom.workers/1")
    assert worker["draining"] is True
    assert cli("start", "doubling", "1", "--id", "waits")[0] == 0
    [reason] = items(cli("why", "waits", "--json"), "loom.reason/1")
    assert reason["code"] == "queue_no_consumers"


# ---- timers -------------------------------------------------------------------------------------


async def due_now(journal: SqliteJournal) -> None:
    """The timer of `nap` was due five minutes ago."""
    await journal._writer.write(_hasten)


def _hasten(db: object, now: int) -> None:
    late = now - 300 * MICROS
    execute = db.execute  # type: ignore[attr-defined]  # sqlite3's own connection
    execute("UPDATE executions SET wake_at = ? WHERE execution_id = 'nap'", (late,))
    execute("UPDATE timers SET due = ? WHERE execution_id = 'nap'", (late,))


def test_timers_tell_what_is_due_late_and_held(cli: Loom) -> None:
    """F9: a service that fires one leaves a hint, and so it shows as held."""
    code, out, err = cli("timers")
    assert (code, err) == (0, "")
    [[name, left, late, kind, held]] = column(out, "EXECUTION", "LEFT", "LATE", "KIND", "HELD")
    assert (name, late, kind, held) == ("nap", "-", "timer", "-")
    assert left.startswith("59 m")
    assert cli("timers", "--overdue") == (0, "", "no timer is late\n")
    assert cli("timers", "--flow", "asking") == (0, "", "no timers\n")
    within(due_now)
    [timer] = items(cli("timers", "--overdue", "--json"), "loom.timers/1")
    assert (timer["held"], timer["left_seconds"]) == (False, 0)
    assert 299 < float(str(timer["late_seconds"])) < 400
    [reason] = items(cli("why", "nap", "--json"), "loom.reason/1")
    assert reason["code"] == "no_timer"
    within(hire)
    [reason] = items(cli("why", "nap", "--json"), "loom.reason/1")
    assert (reason["code"], reason["next"]) == ("timer_row_missing", "loom timers reconcile")
    within(lambda journal: journal.due_timers(limit=10, hold=60.0))
    [[held]] = column(cli("timers")[1], "HELD")
    assert held.startswith("for 5")
    assert items(cli("why", "nap", "--json"), "loom.reason/1")[0]["code"] == "timer_overdue"
    assert cli("timers", "reconcile")[0] == 0
    assert "looked at" in cli("timers", "--look", "1")[2]


# ---- dead letters -------------------------------------------------------------------------------


def package(name: str) -> bytes:
    item = Package(DEFAULT_TENANT, name, "doubling", "1", 0, Cause.START, None)
    return wire.encode(PackageMessage(MESSAGE_VERSION, (item,)))


def letter(name: str, **fields: object) -> DeadLetter:
    known: dict[str, object] = {
        "id": name,
        "queue": "loom.work.default",
        "reason": "delivery_limit",
        "body": package("waits"),
        "headers": {"content_type": "application/msgpack"},
        **fields,
    }
    return DeadLetter(**known)  # type: ignore[arg-type]  # a test's own fields


LETTERS = (
    letter("dead-1"),
    letter("dead-2", queue="loom.start", reason="unknown-flow: no such flow", body=b"\xc1"),
    letter("dead-3", queue="loom.token.w", reason="", body=b""),
)


def test_dead_letters_are_listed_shown_and_dropped(cli: Loom) -> None:
    """F2: with the execution that they were about, as far as they can be read."""
    within(lambda journal: journal.record_dead_letters(LETTERS))
    code, out, _ = cli("dlq")
    assert code == 0
    told = column(out, "ID", "QUEUE", "REASON", "DELIVERIES", "EXECUTION")
    assert told == [
        ["dead-3", "loom.token.w", "-", "-", "-"],
        ["dead-2", "loom.start", "unknown-flow: no such flow", "-", "-"],
        ["dead-1", "loom.work.default", "delivery_limit", ">50", "waits"],
    ]
    assert cli("dlq", "list", "--queue", "loom.start")[1].count("dead-") == 1
    assert cli("dlq", "--reason", "limit", "--older-than", "1h")[2] == "no dead letters\n"
    [shown] = items(cli("dlq", "show", "dead-1", "--json"), "loom.dead_letter/1")
    assert shown["executions"] == [{"tenant": "default", "id": "waits"}]
    assert "waits" in json.dumps(shown["message"])
    code, out, _ = cli("dlq", "show", "dead-2")
    assert (code, "no message of loom-mq" in out) == (0, True)
    assert cli("dlq", "show", "nobody")[0] == Exit.NOT_FOUND
    assert cli("dlq", "drop")[0] == Exit.USAGE
    assert cli("dlq", "drop", "dead-1", "--all")[0] == Exit.USAGE
    assert cli("dlq", "drop", "nobody", "--yes")[0] == Exit.USAGE
    assert cli("dlq", "drop", "--all")[0] == Exit.USAGE, "nobody is there to be asked"
    assert "would be dropped" in cli("dlq", "drop", "--all", "--dry-run")[1]
    assert cli("dlq", "drop", "dead-2", "--yes")[1].endswith("dropped 1 of 1 dead letter\n")
    assert cli("dlq", "discard", "--reason", "limit", "--yes")[0] == 0
    assert [each["id"] for each in items(cli("dlq", "--json"), "loom.dead_letters/1")] == ["dead-3"]


def test_requeueing_needs_a_broker(cli: Loom) -> None:
    """F2: one process has none, and needs none."""
    within(lambda journal: journal.record_dead_letters(LETTERS))
    code, out, err = cli("dlq", "requeue", "dead-1")
    assert (code, out) == (Exit.USAGE, "")
    assert "sent again by itself" in err


def test_a_dead_package_is_the_reason(cli: Loom) -> None:
    """F2: whoever asks why it waits is led to the letter."""
    assert cli("start", "doubling", "1", "--id", "waits")[0] == 0
    within(lambda journal: journal.record_dead_letters(LETTERS))
    [reason] = items(cli("why", "waits", "--json"), "loom.reason/1")
    assert (reason["code"], reason["next"]) == ("dead_lettered", "loom dlq show dead-1")
    [found] = items(cli("stuck", "--json"), "loom.stuck/1")
    assert found["code"] == "dead_lettered"


def test_letters_of_every_kind_name_their_executions() -> None:
    start = StartMessage(items=(StartItem(id="a", flow="f", tenant="t"),))
    control = ControlMessage(items=(ControlItem(op=ControlOp.CANCEL, id="b"),))
    found = [
        letters.executions(letter("x", queue=queue, body=body))
        for queue, body in (
            ("loom.start", wire.encode(start)),
            ("loom.control", wire.encode(control)),
            ("loom.attempts.default", package("c")),
            ("loom.work.default", b"nonsense"),
            ("loom.reply.x", package("c")),
        )
    ]
    assert found == [
        [ExecutionKey("t", "a")],
        [ExecutionKey(DEFAULT_TENANT, "b")],
        [ExecutionKey(DEFAULT_TENANT, "c")],
        [],
        [],
    ]


# ---- doctor -------------------------------------------------------------------------------------


def test_doctor_says_what_to_do_and_ends_by_it(cli: Loom) -> None:
    code, out, _ = cli("doctor")
    assert code == Exit.FOUND
    assert re.search(
        r"^fail +services +no process serves this journal\n +→ loom dev FILE", out, re.M
    )
    within(hire)
    assert cli("doctor")[0] == Exit.DONE
    assert cli("doctor", "--strict")[0] == Exit.DONE
    assert cli("doctor")[1].endswith("everything is as it should be\n")
    assert cli("start", "doubling", "1", "--id", "waits")[0] == 0
    within(lambda journal: journal.record_dead_letters(LETTERS))
    code, out, _ = cli("doctor")
    assert code == Exit.DONE, "warnings alone are no failure"
    assert cli("doctor", "--strict")[0] == Exit.FOUND
    checks = {
        str(each["check"]): each["status"]
        for each in json.loads(cli("doctor", "--json")[1])["items"]
    }
    assert checks["dead letters"] == "warn"
    assert checks["stuck dead_lettered"] == "warn"
    assert checks["exhausted"] == "ok"
    DEV_FILE.unlink()
    assert cli("doctor")[0] == Exit.USAGE, "no journal is given"
    assert cli("doctor", "--journal", "sqlite:///missing.sqlite")[0] == Exit.UNREACHABLE
    code, out, _ = cli("doctor", "--journal", "postgresql://u:S3cr3t@127.0.0.1:1/x")
    assert (code, "S3cr3t" in out) == (Exit.UNREACHABLE, False)


# ---- lists --------------------------------------------------------------------------------------


def ids(answer: tuple[int, str, str]) -> list[object]:
    return [each["id"] for each in items(answer, "loom.executions/1")]


def test_lists_take_filters_that_no_index_knows(cli: Loom) -> None:
    assert ids(cli("list", "--json", "--error", "broken")) == ["failed"]
    assert ids(cli("list", "--json", "--id-prefix", "na")) == ["nap"]
    assert ids(cli("list", "--json", "--worker", "nobody")) == []
    assert ids(cli("list", "--json", "--parent", "done")) == []
    assert ids(cli("list", "--json", "--where", "customer=c1")) == ["done"]
    assert len(ids(cli("list", "--json", "--since", "1h"))) == 6
    assert ids(cli("list", "--json", "--until", "1h")) == []
    assert ids(cli("list", "--json", "--older-than", "0s", "--id-prefix", "na")) == ["nap"]
    assert ids(cli("list", "--json", "--reason", "timer_waiting")) == ["nap"]
    assert cli("list", "--since", "yesterday")[0] == Exit.USAGE
    assert cli("list", "--reason", "bad_luck")[0] == Exit.USAGE
    assert cli("list", "--count") == (0, "6\n", "")
    assert cli("list", "--count", "--flow", "asking", "--status", "suspended")[1] == "2\n"
    assert cli("list", "--count", "--cursor", "x")[0] == Exit.USAGE


def test_a_narrowed_list_goes_on_where_it_ended(cli: Loom) -> None:
    """Filters that no index knows miss nothing between two pages."""
    found: list[object] = []
    cursor: list[str] = []
    while True:
        _code, out, _err = cli("--json", "list", "--limit", "1", "--since", "1h", *cursor)
        body = json.loads(out)
        found += [each["id"] for each in body["items"]]
        if body["next"] is None:
            break
        cursor = ["--cursor", body["next"]]
    assert found == ids(cli("list", "--json"))


def test_columns_are_chosen_by_name(cli: Loom) -> None:
    code, out, _ = cli("list", "--columns", "waiting-for,ID", "--id-prefix", "gate")
    assert (code, [line.split() for line in out.splitlines()]) == (
        0,
        [["WAITING-FOR", "ID"], ["Approval", "gate"]],
    )
    code, _, err = cli("list", "--columns", "SIZE")
    assert (code, "WAITING-FOR" in err) == (Exit.USAGE, True)


def test_watching_is_for_commands_that_look(cli: Loom) -> None:
    assert cli("cancel", "nap", "--watch", "1s")[0] == Exit.USAGE
    assert cli("dlq", "drop", "--all", "--yes", "--watch", "1s")[0] == Exit.USAGE
    assert cli("list", "--watch", "soon")[0] == Exit.USAGE
    assert cli("list", "--nonsense", "--watch", "1s")[0] == Exit.USAGE, "a mistake ends it"
    assert watch_of(["--watch=3s", "list"]) == "3s"
    assert watch_of(["--watch", "3s", "list"]) == "3s"
    assert watch_of(["list", "--", "--watch"]) is None


def test_watching_goes_on_until_it_is_interrupted(
    cli: Loom, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("loom_mq.cli.main.time.sleep", sleep)
    code, out, _ = cli("list", "--count", "--watch", "500ms")
    assert (code, out, pauses) == (Exit.INTERRUPTED, "6\n" * 3, [0.5] * 3)


def test_the_evidence_stands_below_the_reason(cli: Loom) -> None:
    lines = cli("why", "gate")[1].splitlines()
    assert lines[1].startswith("  suspended: attempt 1, fence 1, ")
    assert lines[2] == "  held by nobody"
    assert lines[-1] == "Next: loom resume gate Approval true"
    [reason] = items(cli("why", "done", "--json"), "loom.reason/1")
    assert reason["evidence"] == []


def test_stuck_takes_filters(cli: Loom) -> None:
    assert cli("start", "doubling", "1", "--id", "waits")[0] == 0
    assert len(items(cli("stuck", "--flow", "doubling", "--json"), "loom.stuck/1")) == 1
    assert items(cli("stuck", "--flow", "asking", "--json"), "loom.stuck/1") == []
    assert items(cli("stuck", "--queue", "other", "--json"), "loom.stuck/1") == []
    assert items(cli("stuck", "--reason", "in_doubt", "--json"), "loom.stuck/1") == []
    assert cli("stuck", "--check", "--reason", "queue_no_consumers")[0] == Exit.FOUND
    assert cli("stuck", "--check", "--reason", "in_doubt")[0] == Exit.DONE


# ---- cancelling many ----------------------------------------------------------------------------


def test_cancelling_by_filters_asks_first(cli: Loom) -> None:
    """K13: what has ended is left alone; the others are told, each by its row."""
    assert cli("cancel")[0] == Exit.USAGE
    assert cli("cancel", "nap", "--flow", "sleeping")[0] == Exit.USAGE
    assert cli("cancel", "nap", "--dry-run")[0] == Exit.USAGE
    code, out, err = cli("cancel", "--flow", "asking")
    assert (code, out, "2 executions" in err) == (Exit.USAGE, "", True)
    code, out, _ = cli("cancel", "--flow", "asking", "--dry-run")
    assert (code, out.count("would be told to stop")) == (0, 2)
    assert cli("cancel", "--flow", "asking", "--status", "completed", "--yes")[0] == 0
    code, out, err = cli("cancel", "--stuck", "gate_waiting", "--yes", "--rate", "1")
    assert (code, out.splitlines()[-1]) == (0, "told 2 of 2 executions")
    assert "no worker is alive" in err
    [reason] = items(cli("why", "gate", "--json"), "loom.reason/1")
    assert "A cancel arrived" in str(reason["sentence"])
    assert "timer_waiting" in cli("why", "nap", "--json")[1]
