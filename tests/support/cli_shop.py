"""A journal with executions that can be judged, forked, kept and thrown away."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from loom_mq.flows.registry import Registry, load
from loom_mq.lifecycle.fork import fork
from loom_mq.model.execution import ExecutionKey
from loom_mq.runtime.embedded import Embedded
from tests.support.cli import WITHIN, until_parked
from tests.support.house import until

SHOP = """
import loom_mq as loom


@loom.step(idempotent=False)
async def charge(amount: int) -> str:
    return f"receipt-{amount}"


@loom.step
async def ship(amount: int) -> str:
    return f"parcel-{amount}"


@loom.flow
async def order(ctx: loom.Context, amount: int) -> str:
    receipt = await ctx.run(charge, amount)
    if amount > 100:
        await ctx.suspend(on="Approval", type=bool)
    return f"{receipt} {await ctx.run(ship, amount)}"
"""
CHANGED = SHOP.replace("(charge, amount)", "(ship, amount)", 1)

SUBJECT = {"subject": "c-1"}


def registry(source: str = SHOP, name: str = "shop") -> Registry:
    """The flows of a source text, from a file in the present folder."""
    file = Path(f"{name}.py")
    file.write_text(source)
    return load([str(file)])


def key(name: str) -> ExecutionKey:
    return ExecutionKey("default", name)


async def fill_shop(path: Path) -> None:
    """Three orders that ended, one at a gate, one in doubt, one that today's code misfits.

    Ids: `o-1`, `o-2` and `o-3`; `big`; `doubt`, a fork of `o-1` from within its charge;
    `odd`, a fork of `big` that only code with another first step could go on with.
    """
    async with Embedded(registry(), path) as house:
        client = house.client
        for number in (1, 2, 3):
            handle = await client.start(
                "order", number, id=f"o-{number}", labels=SUBJECT if number < 3 else None
            )
            assert await handle.result(timeout=WITHIN) == f"receipt-{number} parcel-{number}"
        await client.start("order", 120, id="big", labels=SUBJECT)
        await until_parked(house, "big")
        await fork(house.journal, key("o-1"), "doubt", at=1)
        await until_in_doubt(house, "doubt")
        await fork(house.journal, key("big"), "odd")
        await until_parked(house, "odd")
    async with Embedded(registry(CHANGED, "changed"), path) as house:
        await house.client.handle("odd").resume("Approval", True, timeout=0.1)

        async def troubled() -> bool:
            [row] = await house.journal.get([key("odd")])
            return row is not None and row.trouble is not None

        await until(troubled, within=WITHIN)


async def until_in_doubt(house: Embedded, name: str) -> None:
    async def doubted() -> bool:
        return bool((await house.client.handle(name).state()).in_doubt)

    await until(doubted, within=WITHIN)


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading flows puts folders on the path."""
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("shop")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        asyncio.run(fill_shop(folder / "filled.sqlite"))
    return (folder / "filled.sqlite").read_bytes()
