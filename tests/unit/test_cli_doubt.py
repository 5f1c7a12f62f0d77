"""`loom` tells of doubt and of code that does not fit, and takes verdicts (K3, K6, K7, F11)."""

from __future__ import annotations

import asyncio
import json
import shlex
from pathlib import Path

import pytest

from loom_mq.cli.main import run
from loom_mq.cli.reach import DEV_FILE
from loom_mq.kernel.fold import decode_payload
from loom_mq.model import events as ev
from loom_mq.model.verdicts import VerdictKind
from loom_mq.runtime.embedded import Embedded
from tests.support.cli import WITHIN, Answer, Loom, cli, items
from tests.support.cli_shop import filled, key, own_path, registry, until_in_doubt

__all__ = ["cli", "filled", "own_path"]


def ids(answer: Answer) -> list[object]:
    return [item["id"] for item in items(answer, "loom.executions/1")]


# ---- finding it ----------------------------------------------------------------------------------


def test_list_takes_what_needs_a_person_and_what_has_ended(cli: Loom) -> None:
    """J6: every filter is a question to the index."""
    assert ids(cli("list", "--in-doubt", "--json")) == ["doubt"]
    assert ids(cli("list", "--troubled", "--json")) == ["odd"]
    assert ids(cli("list", "--label", "subject=c-1", "--status", "completed", "--json")) == [
        *("o-2", "o-1")
    ]
    assert ids(cli("list", "--label", "subject=c-1", "--label", "x=y", "--json")) == []
    assert len(ids(cli("list", "--version", "1", "--json"))) == 6
    assert ids(cli("list", "--version", "2", "--json")) == []
    assert len(ids(cli("list", "--ended-before", "0s", "--json"))) == 3
    assert ids(cli("list", "--ended-before", "1h", "--json")) == []
    assert len(ids(cli("list", "--ended-before", "2100-01-01", "--json"))) == 3
    assert ids(cli("list", "--ended-before", "2001-01-01T00:00Z", "--json")) == []
    for wrong in ("yesterday", "3", "3 parsecs"):
        assert cli("list", "--ended-before", wrong)[0] == 2
    assert cli("list", "--label", "subject")[0] == 2


def test_doubt_and_misfit_are_stuck_with_their_next_command(cli: Loom) -> None:
    """K6, K3."""
    reasons = {item["id"]: item for item in items(cli("stuck", "--json"), "loom.stuck/1")}
    assert {name: reason["code"] for name, reason in reasons.items()} == {
        "doubt": "in_doubt",
        "odd": "code_mismatch",
    }
    code, out, _ = cli("stuck", "--check")
    assert code == 7
    assert "Next, in_doubt: loom verdict doubt charge completed --value JSON" in out
    # however many newer ones there are
    assert len(items(cli("stuck", "--limit", "1", "--json"), "loom.stuck/1")) == 2
    _, out, _ = cli("why", "doubt")
    assert "'charge'" in out
    _, out, _ = cli("why", "odd")
    assert "'charge'" in out
    assert "'ship'" in out
    [shown] = items(cli("show", "doubt", "--json"), "loom.execution/1")
    assert shown["in_doubt"] == ["charge"]
    assert shown["waiting_for"] == "verdict: charge"


def test_an_early_answer_is_told(cli: Loom) -> None:
    """K7: it is kept, and whoever looks learns that."""
    assert cli("resume", "big", "Later", "1", "--as", "ann")[0] == 0
    assert "An answer for gate 'Later' is kept" in cli("why", "big")[1]
    [stray] = items(cli("audit", "big", "--json"), "loom.audit/1")
    assert (stray["reason"], stray["gate"], stray["actor"]) == ("unread", "Later", "ann")
    assert cli("audit", "big", "--check")[0] == 7
    assert cli("audit", "o-1", "--check")[:2] == (0, "")


# ---- the verdict ---------------------------------------------------------------------------------


def test_a_verdict_that_nobody_waits_for_is_refused(cli: Loom) -> None:
    """K6: the same reasons as over the broker; nothing is left in the inbox."""
    for arguments, code in (
        (["doubt", "ship", "failed", "--message", "x"], 4),
        (["big", "charge", "failed", "--message", "x"], 4),
        (["o-1", "charge", "failed", "--message", "x"], 4),
        (["nobody", "charge", "failed", "--message", "x"], 3),
        (["doubt", "charge", "maybe"], 2),
        (["doubt", "charge", "completed"], 2),
        (["doubt", "charge", "completed", "--value", "nonsense"], 2),
        (["doubt", "charge", "failed"], 2),
        (["doubt", "charge", "run-again", "--value", "1"], 2),
    ):
        got, out, err = cli("verdict", *arguments)
        assert (got, out) == (code, ""), arguments
        assert err.startswith("loom: ")
    _, _, err = cli("verdict", "doubt", "ship", "failed", "--message", "x", "--json")
    assert json.loads(err)["error"]["code"] == "resume-refused"
    assert cli("resume", "doubt", "Approval", "true")[0] == 4
    assert "'Approval'" not in cli("why", "doubt")[1]
    [shown] = items(cli("show", "doubt", "--json"), "loom.execution/1")
    assert shown["inbox"] == 0


@pytest.mark.parametrize(
    ("words", "kind", "outcome", "end"),
    [
        ("completed --value '\"mine\"'", VerdictKind.COMPLETED, 0, "mine parcel-1"),
        ("failed --message 'card declined'", VerdictKind.FAILED, 1, "card declined"),
        ("run-again --message 'never sent'", VerdictKind.RUN_AGAIN, 0, "receipt-1 parcel-1"),
    ],
)
def test_a_verdict_is_kept_until_somebody_is_there(
    cli: Loom, words: str, kind: VerdictKind, outcome: int, end: str
) -> None:
    """K6: by name or by place; who said so stands on the log."""
    step = "#0" if kind is VerdictKind.RUN_AGAIN else "charge"
    code, out, err = cli("verdict", "doubt", step, *shlex.split(words), "--as", "ann")
    assert (code, out) == (0, f"doubt: {step} {kind.value}; kept until a worker takes it\n")
    assert "no worker is alive" in err
    assert "A verdict arrived" in cli("why", "doubt")[1]

    async def serve() -> ev.VerdictTaken:
        async with Embedded(registry(), DEV_FILE) as house:

            async def ended() -> bool:
                return (await house.client.handle("doubt").state()).status.terminal

            async with asyncio.timeout(WITHIN):
                while not await ended():
                    await asyncio.sleep(0.02)
            log = [decode_payload(each) for each in await house.journal.read(key("doubt"))]
            [taken] = [event for event in log if isinstance(event, ev.VerdictTaken)]
            return taken

    taken = asyncio.run(serve())
    assert (taken.verdict, taken.actor) == (kind, "ann")
    code, out, err = cli("result", "doubt")
    assert code == outcome
    assert end in out + err
    assert "(by ann)" in cli("history", "doubt", "--kind", "verdict_taken")[1]


async def test_a_running_engine_takes_verdicts_and_names(
    tmp_path: Path,
    filled: bytes,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """K6, K7: a wrong value is refused and the step stays in doubt; the right one goes on."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "live.sqlite"
    path.write_bytes(filled)

    async def call(*arguments: str) -> Answer:
        code = await asyncio.to_thread(run, [*arguments, "--journal", f"sqlite:///{path}"])
        out, err = capsys.readouterr()
        return code, out, err

    async with Embedded(registry(), path) as house:
        await until_in_doubt(house, "doubt")
        code, _, err = await call("verdict", "doubt", "charge", "completed", "--value", "7")
        assert code == 4
        assert "stays in doubt" in err
        took = await call("verdict", "doubt", "charge", "completed", "--value", '"r"')
        assert took == (0, "doubt: charge completed; it goes on\n", "")
        assert await call("result", "doubt", "--wait") == (0, '"r parcel-1"\n', "")
        assert (await call("resume", "big", "Approval", "true", "--as", "bob"))[0] == 0
        log = [decode_payload(each) for each in await house.journal.read(key("big"))]
        assert [event.actor for event in log if isinstance(event, ev.AnswerTaken)] == ["bob"]
