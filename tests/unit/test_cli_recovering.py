"""`loom census`, `recover` and `reconcile-timers` (F4, F8, F9)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from sqlite3 import Connection
from typing import TypeVar

from loom_mq.cli.reach import DEV_FILE
from loom_mq.journal.protocol import IndexUpdate
from loom_mq.journal.sqlite import SqliteJournal
from loom_mq.model.events import EventKind
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey, ExecutionRow, Status
from loom_mq.testing.conformance.journal_rig import Rig, Stores, accepted, events
from tests.support.cli import Loom, cli, filled, items

__all__ = ["cli", "filled"]

T = TypeVar("T")


def key_of(name: str) -> ExecutionKey:
    return ExecutionKey(DEFAULT_TENANT, name)


def within(work: Callable[[Rig], Awaitable[T]]) -> T:
    """Do something to the journal that the commands look at."""

    async def run() -> T:
        async with SqliteJournal(DEV_FILE) as journal:
            return await work(Rig(Stores(journal, journal)))

    return asyncio.run(run())


async def left_behind(rig: Rig) -> None:
    """What a dead worker left: one begun, one recovered in vain, one in nobody's hands."""
    await rig.started("dead", key=key_of("begun"))
    await rig.started("dead", key=key_of("spent"))
    for number in range(12):
        index = IndexUpdate(status=Status.RUNNING, recoveries=number + 1)
        event = events(number + 1, kind=EventKind.EXECUTION_RECOVERED)
        accepted(await rig.append(key_of("spent"), event, index=index))
    await rig.started("dead", key=key_of("lost"))
    await rig.journal.defer([key_of("lost")], "dead", None)


def forget_timers(db: Connection, _now: int) -> None:
    db.execute("DELETE FROM timers")


def row(name: str) -> ExecutionRow:
    return within(lambda rig: rig.row(key_of(name)))


def test_census_counts_and_lists(cli: Loom) -> None:
    """ADR 0105 D2: by flow; what is parked or has ended is none of it."""
    code, out, err = cli("census", "--check")
    assert (code, out) == (0, "")
    assert "none of 0 runnable executions" in err
    within(left_behind)
    [flow] = items(cli("census", "--json"), "loom.census/1")
    assert flow == {
        "flow": "flow",
        "held": 0,
        "waiting": 0,
        "lapsed": 1,
        "given_up": 1,
        "forgotten": 1,
        "orphaned": 3,
    }
    assert cli("census", "--check")[0] == 7
    assert cli("census", "--check", "--flow", "other")[0] == 0
    orphans = items(cli("census", "--ids", "--json"), "loom.orphans/1")
    assert {each["id"]: each["keeping"] for each in orphans} == {
        "begun": "lapsed",
        "spent": "given-up",
        "lost": "forgotten",
    }
    assert "FORGOTTEN" in cli("census")[1]
    assert "given-up" in cli("census", "--ids")[1]


def test_stuck_names_what_nobody_will_ever_send(cli: Loom) -> None:
    """F4: no reason of its own, and not silent."""

    async def lose(rig: Rig) -> None:
        await rig.started("dead", key=key_of("lost"))
        await rig.journal.defer([key_of("lost")], "dead", None)

    within(lose)
    code, out, _ = cli("stuck", "--check")
    assert code == 7
    assert "1 execution that nobody drives and no package is due for: loom census --ids" in out


def test_recover_takes_what_it_is_told_to(cli: Loom) -> None:
    """F8: by a predicate, with a bound; the exhausted are listed and left."""
    within(left_behind)
    assert cli("recover")[0] == 2
    assert cli("recover", "begun")[0] == 2
    assert cli("recover", "--again")[0] == 2
    assert cli("recover", "--again", "begun", "--dry-run")[0] == 2
    assert cli("recover", "--owner-gone", "--max-recoveries", "0")[0] == 2
    code, out, _ = cli("recover", "--owner-gone", "--max-recoveries", "10", "--dry-run")
    assert code == 0
    assert "would recover 1 execution of 3" in out
    assert "spent" in out
    assert row("begun").owner == "dead"
    code, out, err = cli("recover", "--owner-gone", "--max-recoveries", "10")
    assert (code, "recovered 1 execution of 3" in out) == (0, True)
    assert "loom recover ID --again" in out
    assert "no worker is alive" in err
    found = row("begun")
    assert (found.owner, found.hint_at is not None) == (None, True)
    assert row("spent").owner == "dead"
    code, out, _ = cli("--json", "recover", "--owner-gone", "--max-recoveries", "10")
    [item] = json.loads(out)["items"]
    assert (code, item["claimed"], item["exhausted"], item["recovered"]) == (0, 1, 1, 0)
    assert item["given_up"] == [{"id": "spent", "recoveries": 12}]


def test_recover_by_age_alone_asks_first(cli: Loom) -> None:
    """F7: it may take work from living workers, so somebody has to want it."""
    within(left_behind)
    assert cli("recover", "--older-than", "30000d")[0] == 0, "nothing is so old"
    assert cli("recover", "--older-than", "1x")[0] == 2
    assert cli("recover", "--older-than", "0s", "--flow", "other")[0] == 0
    assert cli("recover", "--older-than", "0s")[0] == 2
    assert row("lost").hint_at is None
    assert cli("recover", "--older-than", "0s", "--yes")[0] == 0
    assert row("lost").hint_at is not None


def test_recover_again_lets_the_count_begin_anew(cli: Loom) -> None:
    """F4: on the log, and refused where nobody has given anything up."""
    within(left_behind)
    code, out, err = cli("recover", "spent", "lost", "--again")
    assert (code, "spent: sent out again" in out, "no worker" in err) == (0, True, True)
    found = row("spent")
    assert (found.recoveries, found.owner) == (0, None)
    assert found.hint_at is not None
    log = within(lambda rig: rig.log(key_of("lost")))
    assert [event.kind for event in log][1:] == [EventKind.EXECUTION_RESUMED]
    assert cli("recover", "gate", "--again")[0] == 2
    assert cli("recover", "done", "--again")[0] == 4
    assert cli("recover", "nobody", "--again")[0] == 3
    code, out, _ = cli("--json", "recover", "spent", "--again")
    assert (code, json.loads(out)["items"]) == (0, [{"id": "spent", "again": True}])


def test_what_a_living_holder_drives_is_refused(cli: Loom) -> None:
    """F7: by a rule, and not because something could not be reached."""

    async def drive(rig: Rig) -> None:
        await rig.alive("living")
        await rig.started("living", key=key_of("driven"))

    within(drive)
    code, _, err = cli("recover", "driven", "--again")
    assert (code, "living" in err) == (4, True)


def test_timers_that_lost_their_row_are_armed(cli: Loom) -> None:
    """F9: `nap` sleeps for an hour; its timer is lost, and comes back."""
    [wake] = [within(lambda rig: rig.journal.next_timer())]
    assert wake is not None
    code, out, _ = cli("reconcile-timers")
    assert (code, "armed 0 lost timers of 1 execution with" in out) == (0, True)

    async def lose(rig: Rig) -> None:
        journal = rig.journal
        assert isinstance(journal, SqliteJournal)
        await journal._writer.write(forget_timers)

    within(lose)
    assert within(lambda rig: rig.journal.next_timer()) is None
    code, out, _ = cli("--json", "reconcile-timers")
    [item] = json.loads(out)["items"]
    assert (code, item["armed"], item["rearmed"]) == (0, 1, ["nap"])
    assert within(lambda rig: rig.journal.next_timer()) == wake
