"""C09 with real processes: killed at any moment, gone on with under another hash seed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from loom_mq.flows.rehearsal import rehearse
from loom_mq.journal.protocol import ListQuery
from loom_mq.journal.sqlite import SqliteJournal
from loom_mq.kernel.fold import FrameStatus, fold
from loom_mq.model.execution import Status
from tests.support.gather_program import NUMBER, expected, gathers
from tests.support.house import until

ROOT = Path(__file__).parents[2]
WITHIN = 60.0


@asynccontextmanager
async def life(
    path: Path, ledger: Path, hash_seed: int
) -> AsyncIterator[asyncio.subprocess.Process]:
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.gather_program", str(path), str(ledger)),
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield program
    finally:
        if program.returncode is None:
            program.kill()
        await program.wait()


def effects(ledger: Path) -> Counter[str]:
    """How often each step's effect came to its end, by idempotency key and name."""
    return Counter(ledger.read_text().splitlines()) if ledger.exists() else Counter()


async def journaled(path: Path) -> dict[str, str]:
    """Key and name of every step that the journal holds as done, and its result."""
    done = {}
    async with SqliteJournal(path, exclusive=False) as journal:
        for row in await journal.find(ListQuery(limit=2 * NUMBER)):
            for place, frame in fold(await journal.read(row.key)).frames.items():
                if frame.status is FrameStatus.COMPLETED:
                    name = f"{row.tenant}/{row.execution_id}/{place} {frame.name}"
                    done[name] = (frame.result or b"").decode("latin-1")
    return done


async def test_c09_two_hundred_gathers_killed_at_random_moments(tmp_path: Path) -> None:
    """C09: all complete, each result is its own step's, and what the journal held as done at
    a kill is neither run again nor changed.
    """
    path, ledger = tmp_path / "loom.sqlite", tmp_path / "ledger"
    chance = random.Random(9)
    kept: dict[str, str] = {}
    at_kill: Counter[str] = Counter()
    for hash_seed in (1, 2):
        wanted = at_kill.total() + chance.randrange(40, 200)
        async with life(path, ledger, hash_seed):

            async def far_enough(wanted: int = wanted) -> bool:
                return effects(ledger).total() >= wanted

            await until(far_enough, within=WITHIN)
        done = await journaled(path)
        assert kept.items() <= done.items()
        assert all(effects(ledger)[key] == at_kill[key] for key in kept), "a done step ran again"
        kept, at_kill = done, effects(ledger)
        assert 0 < len(kept) < 4 * NUMBER
    async with life(path, ledger, 3) as program:
        said, _none = await asyncio.wait_for(program.communicate(), WITHIN)
    [results] = [json.loads(line) for line in said.splitlines() if line.startswith(b"{")]
    assert results == {f"e{number}": expected(f"e{number}") for number in range(NUMBER)}
    assert all(effects(ledger)[key] == at_kill[key] for key in kept), "a done step ran again"
    assert len(effects(ledger)) == 4 * NUMBER
    async with SqliteJournal(path, exclusive=False) as journal:
        rows = await journal.find(ListQuery(limit=2 * NUMBER))
        assert Counter(row.status for row in rows) == {Status.COMPLETED: NUMBER}
        for row in rows[::10]:
            outcome = await rehearse(gathers, await journal.read(row.key))
            assert outcome.ok, outcome.problem
