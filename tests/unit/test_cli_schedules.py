"""`loom schedules` (F9, F11)."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from loom_mq.cli.exits import Exit
from loom_mq.cli.main import run
from loom_mq.cli.reach import DEV_FILE
from loom_mq.flows.registry import Registry
from loom_mq.journal.protocol import ListQuery
from loom_mq.runtime.embedded import Embedded
from tests.support.cli import FLOWS, Loom, cli, filled, items
from tests.support.house import until

__all__ = ["cli", "filled"]

CREATE = ("schedules", "create", "nightly", "doubling", "4", "--zone", "Europe/Berlin")


def test_a_schedule_is_made_shown_and_listed(cli: Loom) -> None:
    code, out, err = cli(*CREATE, "--cron", "30 2 * * *", "--overlap", "buffer-one")
    assert code == 0
    assert "30 2 * * * in Europe/Berlin" in out
    assert len(re.findall(r"^next: .* 02:30 \+0[12]00", out, re.MULTILINE)) == 5
    assert "no worker is alive" in err
    code, out, _err = cli("schedules")
    heading, line = out.splitlines()
    assert heading.split() == ["ID", "FLOW", "CRON", "ZONE", "LAST", "NEXT", "PAUSED", "MISSED"]
    assert line.startswith("nightly  doubling  30 2 * * *  Europe/Berlin  -  ")
    [item] = items(cli("schedules", "--json"), "loom.schedules/1")
    assert item["paused"] is False
    assert item["next"] == item["coming"][0]  # type: ignore[index]  # a list of moments
    [shown] = items(cli("schedules", "show", "nightly", "--json"), "loom.schedule/1")
    assert shown == item
    definition = item["definition"]
    assert isinstance(definition, dict)
    assert definition["overlap"] == "buffer-one"
    assert definition["input"] == 4


def test_what_is_not_named_stays_and_none_takes_back(cli: Loom) -> None:
    cli(*CREATE, "--every", "2h", "--jitter", "30s", "--runs", "9", "--label", "shop=north")
    answer = cli("schedules", "update", "nightly", "--every", "none", "--cron", "0 1 * * *")
    assert answer[0] == 0
    cli(
        "schedules",
        "update",
        "nightly",
        "--runs",
        "none",
        "--input",
        "5",
        "--ends-at",
        "2099-01-01",
    )
    [item] = items(cli("schedules", "show", "nightly", "--json"), "loom.schedule/1")
    definition = item["definition"]
    assert isinstance(definition, dict)
    assert (definition["every_seconds"], definition["cron"]) == (None, ["0 1 * * *"])
    assert (definition["jitter_seconds"], definition["limit"]) == (30.0, None)
    assert (definition["labels"], definition["input"]) == ({"shop": "north"}, 5)
    assert definition["ends_at"] == "2099-01-01T00:00:00.000000Z"


def test_pause_resume_and_delete(cli: Loom) -> None:
    cli(*CREATE, "--every", "1h", "--paused")
    assert "paused" in cli("schedules", "show", "nightly")[1]
    assert "next: " in cli("schedules", "resume", "nightly")[1]
    out = cli("schedules", "pause", "nightly", "--reason", "no paper")[1]
    assert "paused: no paper" in out
    code, _out, err = cli("schedules", "delete", "nightly")
    assert code == Exit.USAGE
    assert "--yes" in err
    assert cli("schedules", "delete", "nightly", "--yes")[:2] == (0, "nightly: deleted\n")
    assert cli("schedules")[1] == ""


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("create x doubling 4 --cron 70_*_*_*_*", Exit.USAGE, "'30 3 * * mon-fri'"),
        ("create x doubling 4 --every 1h --zone Berlin", Exit.USAGE, "'Europe/Berlin'"),
        ("create x doubling 4", Exit.USAGE, "an interval or both"),
        ("create x nobody --every 1h", Exit.NOT_FOUND, "nobody"),
        ("create x doubling {} --every soon", Exit.USAGE, "90s, 5m, 2h or 1d"),
        ("create x doubling oops --every 1h", Exit.USAGE, "not JSON"),
        ("create x doubling 4 --every 1h --runs many", Exit.USAGE, "no number"),
        ("show x", Exit.NOT_FOUND, "no schedule 'x'"),
        ("pause x", Exit.NOT_FOUND, "no schedule 'x'"),
        ("delete x --yes", Exit.NOT_FOUND, "no schedule 'x'"),
        ("backfill x yesterday", Exit.USAGE, "neither a time"),
        ("pause x --watch 1s", Exit.USAGE, "--watch goes with"),
    ],
)
def test_what_cannot_be_done_is_said(cli: Loom, line: str, code: int, said: str) -> None:
    answer = cli("schedules", *(word.replace("_", " ") for word in line.split()))
    assert answer[0] == code
    assert said in answer[2]
    assert cli("schedules", "--json")[1].startswith('{"schema": "loom.schedules/1", "items": []')


def test_one_that_exists_is_refused(cli: Loom) -> None:
    cli(*CREATE, "--every", "1h")
    code, _out, err = cli(*CREATE, "--every", "1h")
    assert code == Exit.REFUSED
    assert "nightly" in err


def test_preview_asks_no_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = "schedules preview --cron 30_2_*_*_* --zone Europe/Berlin --after 2026-03-28 --count 2"
    assert run([word.replace("_", " ") for word in line.split()]) == 0
    assert re.findall(r"\d\d-\d\d \d\d:\d\d [+]\d{4}", capsys.readouterr().out) == [
        "03-28 02:30 +0100",
        "03-29 03:00 +0200",
    ]
    assert run([*(word.replace("_", " ") for word in line.split()), "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["items"][1]["local"] == "2026-03-29T03:00:00+02:00"


def test_what_is_asked_for_through_the_journal_is_done_by_whoever_serves_it(
    cli: Loom, tmp_path: Path
) -> None:
    assert cli(*CREATE, "--cron", "0 * * * *", "--paused")[0] == 0
    _code, out, _err = cli("schedules", "trigger", "nightly", "--json")
    execution = json.loads(out)["items"][0]["execution_id"]
    cli("schedules", "resume", "nightly")
    _code, out, _err = cli("schedules", "backfill", "nightly", "3h", "--json")
    assert json.loads(out)["items"] == [{"id": "nightly", "moments": 3}]

    async def serve() -> object:
        async with Embedded(Registry(FLOWS), tmp_path / DEV_FILE) as house:

            async def done() -> bool:
                found = await house.journal.find(ListQuery(labels={"schedule": "nightly"}))
                return len(found) >= 4 and all(row.status.terminal for row in found)

            await until(done, within=30)
            return await house.client.handle(execution).result()

    assert asyncio.run(serve()) == 8
