"""Everything in one process: killed, opened again, looked at from beside (C97, C104)."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

import loom_mq as loom
from loom_mq.codec.values import codec_for
from loom_mq.errors import ConfigurationError
from loom_mq.flows.registry import Registry
from loom_mq.journal.protocol import ListQuery
from loom_mq.journal.sqlite import SqliteJournal
from loom_mq.kernel.fold import FrameStatus, fold
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey, InboxItem, InboxKind
from loom_mq.runtime.embedded import Embedded
from tests.support.embedded_program import NUMBER, STEPS, notes
from tests.support.house import until

ROOT = Path(__file__).parents[2]
WITHIN = 60.0


@loom.step
async def increment(number: int) -> int:
    return number + 1


@loom.flow
async def busy(ctx: loom.Context, number: int) -> int:
    for _ in range(4):
        number = await ctx.run(increment, number)
    await ctx.sleep(timedelta(milliseconds=100))
    number += await ctx.suspend(on="More", type=int)
    return await ctx.run(increment, number)


async def completed_steps(journal: SqliteJournal) -> set[str]:
    """Idempotency keys of the steps whose result is in the journal."""
    keys = set()
    for row in await journal.find(ListQuery(limit=1000)):
        state = fold(await journal.read(row.key))
        keys |= {
            f"{row.tenant}/{row.execution_id}/{place}"
            for place, frame in state.frames.items()
            if frame.status is FrameStatus.COMPLETED
        }
    return keys


def effects(ledger: Path) -> Counter[str]:
    if not ledger.exists():
        return Counter()
    return Counter(line.split(" ", 1)[0] for line in ledger.read_text().splitlines())


async def serve_until_killed(path: Path, ledger: Path, wanted: int) -> None:
    """Run the program until so many effects were seen, then kill -9."""
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.embedded_program", str(path), str(ledger)),
        cwd=ROOT,
    )

    async def far_enough() -> bool:
        assert program.returncode is None
        return sum(effects(ledger).values()) >= wanted

    try:
        await until(far_enough, within=WITHIN)
    finally:
        program.kill()
        await program.wait()


async def test_c104_a_killed_engine_goes_on_in_the_same_file(tmp_path: Path) -> None:
    """F7, C104: kill -9, twice; opened again it finishes, and no completed step runs again."""
    path, ledger = tmp_path / "loom.sqlite", tmp_path / "ledger"
    done_at_kill: set[str] = set()
    effects_at_kill: Counter[str] = Counter()
    for wanted in (STEPS, NUMBER * 2):
        await serve_until_killed(path, ledger, wanted)
        async with SqliteJournal(path, exclusive=False) as journal:
            assert done_at_kill <= await completed_steps(journal)
            assert all(effects(ledger)[key] == effects_at_kill[key] for key in done_at_kill), (
                "a completed step ran again"
            )
            done_at_kill = await completed_steps(journal)
        effects_at_kill = effects(ledger)

    async with Embedded(Registry([notes]), path) as house:
        handles = await house.client.start_many(
            notes, [(f"notes-{number}", str(ledger)) for number in range(NUMBER)]
        )
        for handle in handles:
            await handle.resume("More", True)
        results = [await handle.result(timeout=WITHIN) for handle in handles]
    assert results == [["step 0", "step 1", "step 2", "more"]] * NUMBER
    seen = effects(ledger)
    assert all(seen[key] == effects_at_kill[key] for key in done_at_kill)
    assert len(seen) == NUMBER * (STEPS + 1)


async def test_c97_one_engine_drives_a_file(tmp_path: Path) -> None:
    """C97: a second engine is refused in one sentence; the first does not notice."""
    path = tmp_path / "loom.sqlite"
    async with Embedded(Registry([busy]), path) as house:
        with pytest.raises(ConfigurationError, match="in use by another engine"):
            async with Embedded(Registry([busy]), path):
                pass
        handle = await house.client.start(busy, 1, id="e")
        await handle.resume("More", 10)
        assert await handle.result(timeout=WITHIN) == 16
    async with Embedded(Registry([busy]), path) as house:
        assert await house.client.handle("e", busy).result(timeout=WITHIN) == 16


async def test_c97_lookers_and_backups_are_in_nobodys_way(tmp_path: Path) -> None:
    """C97: a busy engine, a second process's reads, a held read transaction, and answers
    that are laid into the file from beside: all complete, nothing is locked.
    """
    path = tmp_path / "loom.sqlite"
    number = 40
    async with (
        Embedded(Registry([busy]), path) as house,
        SqliteJournal(path, exclusive=False) as beside,
    ):
        backup = sqlite3.connect(path)
        backup.execute("BEGIN")
        backup.execute("SELECT count(*) FROM executions").fetchone()
        handles = await house.client.start_many(
            busy, [(f"busy-{each}", each) for each in range(number)]
        )
        looking = asyncio.ensure_future(_look_on(beside))
        answers = [
            InboxItem(
                tenant=DEFAULT_TENANT,
                execution_id=handle.id,
                item_id="more",
                kind=InboxKind.ANSWER,
                gate="More",
                payload=codec_for(int).encode(100, what="the answer"),
            )
            for handle in handles
        ]
        verdicts = await beside.deliver(answers, resend_after=0.0)
        assert [verdict.error for verdict in verdicts] == [None] * number
        results = [await handle.result(timeout=WITHIN) for handle in handles]
        looking.cancel()
        assert looking.cancelled() or not looking.done()
        backup.close()
    assert results == [each + 105 for each in range(number)]


async def _look_on(journal: SqliteJournal) -> None:
    while True:
        rows = await journal.find(ListQuery(limit=100))
        await journal.read(ExecutionKey(DEFAULT_TENANT, rows[0].execution_id))
        await asyncio.sleep(0.1)


async def test_leaving_drains_and_gives_back(tmp_path: Path) -> None:
    """F10: what cannot be finished is given back, and goes on in the next engine at once."""
    path = tmp_path / "loom.sqlite"
    gate = asyncio.Event()

    @loom.step
    async def wait_in_memory() -> str:
        await gate.wait()
        return "done"

    @loom.flow
    async def waiting(ctx: loom.Context) -> str:
        return await ctx.run(wait_in_memory)

    async def start_and_fall_over() -> None:
        async with Embedded(Registry([waiting]), path) as house:
            await house.client.start(waiting, id="e")
            raise KeyError  # an error outside leaves without a long drain

    with pytest.raises(KeyError):
        await start_and_fall_over()
    gate.set()
    async with Embedded(Registry([waiting]), path) as house:
        assert await house.client.handle("e").result(timeout=WITHIN) == "done"
