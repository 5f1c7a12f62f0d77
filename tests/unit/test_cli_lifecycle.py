"""`loom` keeps, throws away, forks and measures executions (J8, F11)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from loom_mq.cli.main import run
from loom_mq.cli.reach import DEV_FILE
from loom_mq.journal.sqlite import SqliteJournal
from loom_mq.runtime.embedded import Embedded
from tests.support.cli import EVIL, WITHIN, Loom, cli, items
from tests.support.cli_shop import SHOP, filled, own_path, registry

__all__ = ["cli", "filled", "own_path"]


def everything(cli: Loom) -> dict[object, object]:
    return {
        item["id"]: (item["status"], item["events"])
        for item in items(cli("list", "--json"), "loom.executions/1")
    }


# ---- export and import -------------------------------------------------------------------------


def test_an_archive_comes_back_as_it_was(cli: Loom) -> None:
    """J8: into an empty journal, to the event; what had not ended takes another id."""
    code, out, err = cli("export", "--bare")
    assert code == 0
    assert err == "exported 6 executions\n"
    Path("all.ndjson").write_text(out)
    before = everything(cli)
    history = cli("history", "o-1", "--payloads", "--json")[1]
    DEV_FILE.unlink()
    asyncio.run(_empty(DEV_FILE))
    imported = cli("import", "all.ndjson", "--json")
    assert imported[0] == 4
    outcomes = {item["id"]: item["outcome"] for item in json.loads(imported[1])["items"]}
    assert [name for name, told in outcomes.items() if told == "imported"] == ["o-3", "o-2", "o-1"]
    assert "give another id" in str(outcomes["big"])
    assert everything(cli) == {name: before[name] for name in ("o-1", "o-2", "o-3")}
    assert cli("history", "o-1", "--payloads", "--json")[1] == history
    code, out, _ = cli("import", "all.ndjson", "--prefix", "copy-")
    assert code == 0
    assert out.count("imported") == 6
    assert everything(cli)["copy-big"] == before["big"]
    code, out, _ = cli("import", "all.ndjson", "--prefix", "copy-")
    assert code == 4
    assert out.count("the id is taken") == 6


async def _empty(path: Path) -> None:
    async with SqliteJournal(path):
        pass


def test_export_takes_ids_or_filters(cli: Loom) -> None:
    def exported(*arguments: str) -> list[str]:
        code, out, _ = cli("export", *arguments)
        assert code == 0
        lines = [json.loads(line) for line in out.splitlines()]
        return [line["execution"]["execution_id"] for line in lines if "loom_archive" in line]

    assert exported("o-2", "big") == ["o-2", "big"]
    assert exported("--status", "completed") == ["o-3", "o-2", "o-1"]
    assert exported("--label", "subject=c-1", "--ended-before", "0s") == ["o-2", "o-1"]
    assert exported("--flow", "nothing") == []
    assert '"receipt-1"' in cli("export", "o-1")[1]
    assert '"receipt-1"' not in cli("export", "o-1", "--bare")[1]
    assert cli("export", "o-1", "--flow", "order")[0] == 2
    assert cli("export", "nobody")[0] == 3


def test_a_dry_import_changes_nothing_and_tells_the_same(cli: Loom) -> None:
    Path("all.ndjson").write_text(cli("export", "o-1", "big")[1])
    before = DEV_FILE.read_bytes()
    code, out, _ = cli("import", "all.ndjson", "--prefix", "copy-", "--dry-run")
    assert code == 0
    assert out.count("would be imported") == 2
    assert cli("import", "all.ndjson", "--dry-run")[0] == 4
    code, out, _ = cli("import", "all.ndjson", "--tenant", "other", "--dry-run")
    assert (code, out.count("it is of tenant 'default'")) == (4, 2)
    code, out, _ = cli("import", "all.ndjson", "--tenant", "other", "--any-tenant", "--dry-run")
    assert (code, out.count("would be imported")) == (4, 1)
    assert DEV_FILE.read_bytes() == before


def test_an_archive_that_cannot_be_read_is_told_by_line(cli: Loom) -> None:
    """J8: what came before the fault is there, and told."""
    archive = cli("export", "o-1", "o-2")[1]
    Path("cut.ndjson").write_text("".join(archive.splitlines(keepends=True)[:-1]))
    code, out, err = cli("import", "cut.ndjson", "--prefix", "copy-")
    assert code == 2
    assert "copy-o-1" in out
    assert err.startswith("loom: line 13: ")
    assert "cut off" in err
    Path("other.txt").write_bytes(b"\xff\xfe no archive")
    for name in ("other.txt", "missing.ndjson"):
        assert cli("import", name)[0] == 2


def test_c95_an_archive_obeys_no_terminal(cli: Loom) -> None:
    """C95: an export to the screen shows names and values, and is still an archive."""
    assert cli("start", "order", "1", "--id", EVIL)[0] == 0
    assert cli("fork", "o-1", f"{EVIL}2")[0] == 0
    code, out, _ = cli("export", f"{EVIL}2")
    assert code == 0
    assert "\u202e" not in out
    assert "\x1b" not in out
    Path("evil.ndjson").write_text(out)
    assert cli("import", "evil.ndjson", "--prefix", "x")[0] == 0
    assert f"x{EVIL}2" in everything(cli)


# ---- for good ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("prune", "--older-than", "0s"),
        ("prune", "--older-than", "0s", "--archive", "old.ndjson"),
        ("erase", "--subject", "c-1"),
        ("truncate", "o-1"),
    ],
)
def test_nothing_is_lost_unasked(cli: Loom, arguments: tuple[str, ...]) -> None:
    """J8: neither by --dry-run nor without an answer to the question."""
    before = DEV_FILE.read_bytes()
    code, out, _ = cli(*arguments, "--dry-run")
    assert code == 0
    assert "would" in out
    for more in ((), ("--json",)):
        code, out, err = cli(*arguments, *more)
        assert (code, out) == (2, "")
        assert "--yes" in err
    assert DEV_FILE.read_bytes() == before
    assert not Path("old.ndjson").exists()


def test_whoever_is_asked_may_say_no(cli: Loom, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def confirm(text: str, *, abort: bool, err: bool) -> bool:
        asked.append(text)
        assert abort
        assert err
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", confirm)
    assert cli("truncate", "o-1")[:2] == (130, "")
    assert asked == ["5 events of execution 'o-1' will be deleted. Go on?"]
    assert everything(cli)["o-1"] == ("completed", 6)


def test_prune_keeps_in_a_file_what_it_deletes(cli: Loom) -> None:
    """J8: only what has ended, only old enough, and the file holds it whole."""
    assert cli("prune", "--older-than", "1h", "--yes")[1] == "deleted 0 executions\n"
    assert cli("prune", "--older-than", "0s", "--flow", "other", "--yes")[1].startswith("deleted 0")
    code, out, _ = cli("prune", "--older-than", "0s", "--archive", "old.ndjson", "--yes")
    assert code == 0
    assert out.endswith("deleted 3 executions, kept in old.ndjson\n")
    assert set(everything(cli)) == {"big", "doubt", "odd"}
    assert Path("old.ndjson").stat().st_mode & 0o077 == 0
    code, _, err = cli("prune", "--older-than", "0s", "--archive", "old.ndjson", "--yes")
    assert code == 2
    assert "there already" in err
    assert cli("import", "old.ndjson")[0] == 0
    assert cli("result", "o-1") == (0, '"receipt-1 parcel-1"\n', "")
    for wrong in ("soon", "30", "-1d", "1e9d"):
        assert cli("prune", f"--older-than={wrong}")[0] == 2


def test_erase_leaves_nothing_that_could_be_read(cli: Loom) -> None:
    """J8: not in an answer, and not in the bytes of the file's rows; what lives is listed."""
    [kept] = [
        item
        for item in items(cli("list", "--json", "--flow", "order"), "loom.executions/1")
        if item["id"] == "o-3"
    ]
    code, out, _ = cli("erase", "--subject", "c-1", "--yes")
    assert code == 4  # some that bear the label have not ended
    assert out.count("erased") == 2
    assert "big" in out
    shown = cli("history", "o-1", "--payloads")[1]
    assert "receipt-1" not in shown
    assert "STEP_COMPLETED" in shown
    assert "receipt-1" not in cli("export", "o-1")[1]
    assert cli("history", "o-3", "--payloads", "--json")[1].count("receipt-3") == 2
    [after] = [
        item for item in items(cli("list", "--json"), "loom.executions/1") if item["id"] == "o-3"
    ]
    assert {**after, "age_seconds": 0} == {**kept, "age_seconds": 0}
    code, out, err = cli("erase", "--subject", "c-9", "--yes")
    assert (code, out) == (0, "")
    assert "nothing of it is left" in err
    assert cli("erase", "--subject", "c-1", "--label", "customer", "--yes")[0] == 0


def test_truncate_keeps_the_outcome(cli: Loom) -> None:
    """J7, J8: every look at it goes on, by its snapshot."""
    assert cli("truncate", "o-1", "--yes")[1] == "o-1: cut 5 events\n"
    assert cli("truncate", "o-1", "--yes")[1] == "o-1: cut 0 events\n"
    assert cli("result", "o-1") == (0, '"receipt-1 parcel-1"\n', "")
    [shown] = items(cli("show", "o-1", "--json"), "loom.execution/1")
    assert shown["result"] == "receipt-1 parcel-1"
    assert len(shown["steps"]) == 2  # type: ignore[arg-type]  # JSON
    assert len(items(cli("history", "o-1", "--json"), "loom.events/1")) == 1
    assert cli("audit", "o-1", "--check")[0] == 0
    assert "its log was cut" in cli("introspect", "o-1")[1]
    assert cli("fork", "o-1", "new")[0] == 2
    Path("cut.ndjson").write_text(cli("export", "o-1")[1])
    assert cli("import", "cut.ndjson", "--prefix", "x")[0] == 0
    for name, code in (("big", 4), ("nobody", 3)):
        assert cli("truncate", name, "--yes")[0] == code


# ---- fork --------------------------------------------------------------------------------------


def test_a_fork_goes_on_from_where_it_was_cut(cli: Loom) -> None:
    """J8: what had completed is not run again; the old one stays."""
    before = everything(cli)
    code, out, err = cli("fork", "o-2", "again", "--step", "ship", "--label", "why=test")
    assert (code, out) == (0, "again: goes on from o-2\n")
    assert "no worker is alive" in err
    assert everything(cli) == {**before, "again": ("running", 3)}
    [item] = items(cli("list", "--label", "why=test", "--json"), "loom.executions/1")
    assert item["labels"] == {"why": "test"}
    for arguments, wanted in (
        (("o-2", "again"), 4),
        (("o-2", "x", "--at", "99"), 2),
        (("o-2", "x", "--step", "nothing"), 2),
        (("o-2", "x", "--at", "1", "--step", "ship"), 2),
        (("nobody", "x"), 3),
    ):
        assert cli("fork", *arguments)[0] == wanted, arguments

    async def serve() -> object:
        async with Embedded(registry(), DEV_FILE) as house:
            return await house.client.handle("again").result(timeout=WITHIN)

    assert asyncio.run(serve()) == "receipt-2 parcel-2"
    assert cli("history", "again", "--json")[1].count('"STEP_STARTED"') == 2


# ---- measures ----------------------------------------------------------------------------------


def test_profile_and_introspect_tell_what_the_logs_tell(cli: Loom) -> None:
    [told] = items(cli("profile", "order", "--json"), "loom.profile/1")
    assert told["executions"] == 6
    assert told["outcomes"] == {"completed": 3, "suspended": 3}
    steps = {step["name"]: step for step in told["steps"]}  # type: ignore[attr-defined]  # JSON
    assert steps["charge"]["outcomes"] == {"completed": 5, "in-doubt": 1}
    assert steps["ship"]["count"] == 3
    assert steps["ship"]["p50_seconds"] >= 0
    code, out, _ = cli("profile", "order", "--limit", "2")
    assert code == 0
    assert "order: 2 executions" in out
    assert "no execution of flow 'nothing'" in cli("profile", "nothing")[1]
    assert "no execution" in cli("profile", "order", "--since", "0s")[1]
    assert cli("profile", "order", "--since", "soon")[0] == 2
    code, out, _ = cli("introspect", "big")
    assert code == 0
    assert out.splitlines()[0].split() == [
        *("BEGAN", "TOOK", "WHAT", "NAME", "OUTCOME", "ATTEMPTS", "ERROR")
    ]
    assert [line.split()[-5:-2] for line in out.splitlines()[1:3]] == [
        ["step", "charge", "completed"],
        ["gate", "Approval", "waits"],
    ]
    [item] = items(cli("introspect", "o-1", "--json"), "loom.introspection/1")
    assert [step["name"] for step in item["steps"]] == ["charge", "ship"]  # type: ignore[attr-defined]  # JSON
    assert item["outcome"] == "completed"
    assert cli("introspect", "nobody")[0] == 3


# ---- replay ------------------------------------------------------------------------------------


def test_replay_fits_the_code_that_wrote_the_histories(cli: Loom) -> None:
    """K3: nothing is run, nothing is written, and what the code prints is no answer."""
    told = 'print("ordering")\n    receipt ='
    Path("shop.py").write_text(SHOP.replace("receipt =", told, 1))
    before = DEV_FILE.read_bytes()
    code, out, err = cli("replay", "shop.py", "--json")
    assert (code, "ordering" in err) == (0, True)
    assert {item["fit"] for item in json.loads(out)["items"]} == {"fits"}
    code, out, _ = cli("replay", "shop.py", "--limit", "2")
    assert code == 0
    assert out.endswith("2 histories: 2 fit\n")
    code, out, _ = cli("replay", "shop.py", "--live")
    assert (code, out.splitlines()[-1]) == (0, "3 histories: 3 fit")
    assert DEV_FILE.read_bytes() == before


def test_replay_finds_code_that_does_not_fit(cli: Loom) -> None:
    """K3: in CI, from files, without a journal."""
    Path("histories.ndjson").write_text(cli("export")[1])
    DEV_FILE.unlink()
    Path("changed_shop.py").write_text(SHOP.replace("(charge, amount)", "(ship, amount)", 1))
    code, out, _ = cli("replay", "changed_shop.py", "--history", "histories.ndjson")
    assert code == 7
    assert out.endswith("6 histories: 6 do not\n")
    assert "'ship'" in out
    # a change behind the point that a parked one has reached does not touch it
    Path("later_shop.py").write_text(SHOP.replace("ctx.run(ship, amount)", "ctx.sleep(0)"))
    code, out, _ = cli("replay", "later_shop.py", "--history", "histories.ndjson", "--json")
    assert code == 7
    fits = {item["id"]: item["fit"] for item in json.loads(out)["items"]}
    assert (fits["big"], fits["o-1"]) == ("fits", "mismatch")


def test_replay_tells_a_version_that_is_not_there(cli: Loom) -> None:
    """K3: an ended execution needs no code any more, a live one would not move."""
    Path("next_shop.py").write_text(SHOP.replace("@loom.flow\n", '@loom.flow(version="2")\n'))
    code, out, _ = cli("replay", "next_shop.py", "--json")
    assert code == 7
    fits = {item["id"]: item["fit"] for item in json.loads(out)["items"]}
    assert (fits["big"], fits["o-1"]) == ("mismatch", "skipped")
    Path("ended.ndjson").write_text(cli("export", "o-1")[1])
    code, _, err = cli("replay", "next_shop.py", "--history", "ended.ndjson")
    assert code == 2  # a check that checked nothing must not look like a good one
    assert "nothing was checked" in err
    assert cli("replay", "next_shop.py", "--flow", "nothing")[0] == 3
    assert cli("replay", "missing.py")[0] == 2


def test_replay_of_what_was_cut_and_erased(cli: Loom) -> None:
    """J7, J8."""
    assert cli("truncate", "o-3", "--yes")[0] == 0
    assert cli("erase", "--subject", "c-1", "--yes")[0] == 4
    Path("shop.py").write_text(SHOP)
    code, out, _ = cli("replay", "shop.py", "--json")
    assert code == 0
    fits = {item["id"]: (item["fit"], item["why"]) for item in json.loads(out)["items"]}
    assert fits["o-3"] == ("fits", None)
    assert fits["o-1"] == ("skipped", "its data was erased")


def test_the_console_script_can_be_asked_for_help() -> None:
    for name in ("verdict", "export", "import", "prune", "erase", "truncate", "fork", "replay"):
        assert run([name, "--help"]) == 0
