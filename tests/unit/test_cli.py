"""`loom` looks into a real SQLite journal: what it prints, and what it never prints (F11)."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import loom_mq as loom
from loom_mq.cli.exits import Exit
from loom_mq.cli.inputs import example_of
from loom_mq.cli.main import app
from loom_mq.cli.options import hoisted
from loom_mq.cli.reach import DEV_FILE
from loom_mq.cli.text import json_text, moment, plain, visible
from tests.support.cli import EVIL, WITHIN, Loom, cli, filled, items

__all__ = ["cli", "filled"]

LOOM = (sys.executable, "-m", "loom_mq.cli")


# ---- looking -----------------------------------------------------------------------------------


def test_list_shows_columns_and_takes_filters(cli: Loom) -> None:
    code, out, err = cli("list")
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0].split() == [
        "ID",
        "FLOW",
        "STATUS",
        "QUEUE",
        "AGE",
        "STEP",
        "ATTEMPT",
        "WAITING-FOR",
        "OWNER",
    ]
    assert len(lines) == 7
    assert re.search(r"^gate +asking +suspended +default .* Approval +-$", out, re.MULTILINE)
    assert re.search(r"^nap +sleeping +suspended .* timer, 59 m", out, re.MULTILINE)
    _, out, _ = cli("list", "--status", "suspended", "--flow", "asking")
    assert [line.split()[0] for line in out.splitlines()[1:]] == [visible(EVIL), "gate"]
    assert cli("list", "--queue", "other") == (0, "", "no executions\n")


def test_list_as_json_can_be_paged(cli: Loom) -> None:
    everything = items(cli("list", "--json"), "loom.executions/1")
    assert [item["id"] for item in everything] == ["failed", "nap", "stopped", EVIL, "gate", "done"]
    done = everything[-1]
    assert done["labels"] == {"customer": "c1"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", str(done["ended_at"]))
    assert done["error"] is None
    pages: list[object] = []
    cursor: list[str] = []
    for _ in range(3):
        _code, out, _err = cli("--json", "list", "--limit", "2", *cursor)
        body = json.loads(out)
        pages += [item["id"] for item in body["items"]]
        cursor = ["--cursor", body["next"]]
    assert body["next"] is None
    assert pages == [item["id"] for item in everything]
    assert cli("list", "--cursor", "no")[0] == 2


def test_show_and_why_say_where_it_stands_and_what_to_do(cli: Loom) -> None:
    code, out, _ = cli("why", "gate")
    assert code == 0
    assert out.startswith("It waits at gate 'Approval' (bool) since ")
    assert "Next: loom resume gate Approval true" in out
    [reason] = items(cli("why", "nap", "--json"), "loom.reason/1")
    assert (reason["code"], reason["stuck"], reason["next"]) == ("timer_waiting", False, None)
    _, out, _ = cli("show", "failed")
    assert "failed" in out
    assert "ValueError: broken" in out
    assert "in broken" in out  # the traceback
    [shown] = items(cli("show", "done", "--json"), "loom.execution/1")
    assert shown["result"] == 8
    assert shown["steps"] == [
        {
            "place": "#0",
            "name": "double",
            "status": "completed",
            "attempts": 1,
            "failures": 0,
            "error": None,
        }
    ]


def test_history_tells_the_log(cli: Loom) -> None:
    code, out, _ = cli("history", "done")
    lines = [line.split() for line in out.splitlines()]
    assert code == 0
    assert lines[0] == [*("SEQ", "AT", "Δ", "KIND", "STEP/GATE", "FENCE", "WORKER", "DETAIL")]
    assert [(line[0], line[3], line[4]) for line in lines[1:]] == [
        ("0", "EXECUTION_STARTED", "-"),
        ("1", "STEP_STARTED", "double"),
        ("2", "STEP_COMPLETED", "double"),
        ("3", "EXECUTION_COMPLETED", "-"),
    ]
    events = items(cli("history", "done", "--json", "--payloads"), "loom.events/1")
    assert [event["payload"] for event in events] == [4, None, 8, 8]
    [newest] = items(cli("history", "stopped", "--tail", "1", "--json"), "loom.events/1")
    assert (newest["kind"], newest["detail"]) == ("EXECUTION_CANCELLED", "no longer wanted")
    [begun] = items(cli("history", "done", "--kind", "step_started", "--json"), "loom.events/1")
    assert begun["seq"] == 1
    assert cli("history", "done", "--kind", "NONSENSE")[0] == 2


def test_the_fleet_is_listed(cli: Loom) -> None:
    assert cli("workers") == (0, "", "no process is alive\n")
    assert {str(flow["flow"]) for flow in items(cli("flows", "--json"), "loom.flows/1")} == {
        "doubling",
        "asking",
        "sleeping",
        "failing",
    }
    assert items(cli("dlq", "--json"), "loom.dead_letters/1") == []


def test_stuck_finds_what_nobody_serves(cli: Loom) -> None:
    code, out, err = cli("stuck", "--check")
    assert (code, out) == (0, "")
    assert "nothing is stuck (3 executions" in err
    assert cli("start", "doubling", "1", "--id", "waits")[0] == 0
    code, out, _ = cli("stuck", "--check")
    assert code == 7
    assert re.search(r"^1 +queue_no_consumers +default +doubling .* waits$", out, re.MULTILINE)
    [reason] = items(cli("stuck", "--json"), "loom.stuck/1")
    assert (reason["id"], reason["next"]) == ("waits", "loom dev FILE")
    assert "no living worker serves queue 'default'" in cli("stuck", "--ids")[1]


# ---- what must never be printed ------------------------------------------------------------------


def test_c95_no_escape_code_reaches_the_terminal(cli: Loom) -> None:
    """C95: names, errors and values are shown, never obeyed."""
    shown = ""
    for arguments in (
        ["list"],
        ["why", EVIL],
        ["show", EVIL],
        ["show", "failed"],
        ["history", EVIL],
        ["history", "failed", "--payloads"],
        ["result", "failed"],
        ["result", f"{EVIL}\u2066"],
        ["resume", EVIL, EVIL, json.dumps(EVIL)],
        ["list", "--json"],
        ["show", "failed", "--json"],
        ["result", f"{EVIL}x", "--json"],
        ["start", "doubling", EVIL],
        [EVIL],
    ):
        _, out, err = cli(*arguments)
        shown += out + err
    assert "evil" in shown
    assert visible(shown, lines=True) == shown


def test_c93_addresses_keep_their_secrets(cli: Loom) -> None:
    """C93: not in the sentence, not in the JSON."""
    with socket.socket() as closed:  # bound and not listening: refused at once
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        for where, url in (
            ("--journal", f"postgresql://loom:S3cr3t%2Fp@127.0.0.1:{port}/loom"),
            ("--broker", f"amqp://loom:S3cr3t%2Fp@127.0.0.1:{port}/"),
        ):
            done = subprocess.run(
                [*LOOM, "result", "e", where, url, "--timeout", "3"],
                capture_output=True,
                text=True,
                timeout=WITHIN,
                check=False,
            )
            assert (done.returncode, done.stdout) == (5, "")
            assert re.fullmatch(r"loom: the (journal|broker) .*127\.0\.0\.1.*\n", done.stderr)
            assert "S3cr3t" not in done.stderr
    code, _, err = cli("list", "--json", "--journal", "nonsense://loom:S3cr3t@host/")
    assert code == 2
    assert "S3cr3t" not in err
    assert json.loads(err)["error"]["code"] == "settings"


# ---- usage ---------------------------------------------------------------------------------------


def test_mistakes_are_one_sentence_and_a_code(cli: Loom, tmp_path: Path) -> None:
    for arguments, code in (
        (["nonsense"], 2),
        (["list", "--nonsense"], 2),
        (["list", "--limit", "0"], 2),
        (["list", "--status", "asleep"], 2),
        (["list", "--timeout", "soon"], 2),
        (["why"], 2),
        (["migrate"], 2),
        (["list", "--journal", "sqlite:///missing.sqlite"], 5),
        (["list", "--journal", f"sqlite:///{tmp_path}"], 5),
    ):
        got, out, err = cli(*arguments)
        assert (got, out) == (code, ""), arguments
        assert err.startswith("loom: ")
        assert err.count("\n") == 1
        assert "Traceback" not in err
    assert not Path("missing.sqlite").exists()
    DEV_FILE.unlink()
    code, _, err = cli("list")
    assert code == 2
    assert "LOOM_JOURNAL" in err


def test_another_programs_file_is_left_alone(cli: Loom) -> None:
    Path("other.txt").write_text("not a journal, and longer than a header of SQLite would be" * 9)
    before = Path("other.txt").read_bytes()
    assert cli("list", "--journal", "sqlite:///other.txt")[0] == 2
    assert Path("other.txt").read_bytes() == before


def test_the_environment_says_where_the_journal_is(
    cli: Loom, monkeypatch: pytest.MonkeyPatch
) -> None:
    DEV_FILE.rename("elsewhere.sqlite")
    monkeypatch.setenv("LOOM_JOURNAL", "sqlite:///elsewhere.sqlite")
    assert cli("result", "done") == (0, "8\n", "")


def test_the_page_of_the_command_line_has_every_command_and_exit_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text()
    commands = vars(typer.main.get_command(app))["commands"]
    shown = set(re.findall(r"^loom ([a-z-]+)", page, re.MULTILINE))
    assert shown >= {name for name, command in commands.items() if not command.hidden}
    rows = {int(number) for number in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    assert rows == set(Exit)


def test_options_for_all_stand_anywhere() -> None:
    assert hoisted(["list", "--json", "--limit", "2", "--journal", "x", "--tenant=t"]) == [
        *("--json", "--journal", "x", "--tenant=t"),
        *("list", "--limit", "2"),
    ]
    assert hoisted(["resume", "--", "a", "--json"]) == ["resume", "--", "a", "--json"]
    assert hoisted(["list", "--journal"]) == ["--journal", "list"]


def test_the_sql_of_the_schema_needs_no_server(cli: Loom) -> None:
    code, out, _ = cli("migrate", "--sql")
    assert code == 0
    assert "CREATE" in out


def test_text_and_values_are_shown_as_they_are() -> None:
    assert visible("é 世 \x9b\x7f\n") == "é 世 \\x9b\\x7f\\n"
    assert visible("a\nb\t\x07", lines=True) == "a\nb\t\\x07"
    assert json.loads(json_text({"a": EVIL})) == {"a": EVIL}
    assert plain({1: (b"x", {2.5}), "n": float("nan")}) == {"1": ["eA==", [2.5]], "n": "nan"}
    assert moment(1_700_000_000_123_456) == "2023-11-14T22:13:20.123456Z"
    assert example_of(dict[str, list[int | None]]) == '{"text": [1]}'
    assert example_of(loom.Retry) == "{}"
