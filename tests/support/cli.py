"""A journal with one execution of each kind, and `loom` in the folder where it lies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import loom_mq as loom
from loom_mq.cli.main import run
from loom_mq.cli.reach import DEV_FILE
from loom_mq.cli.schemas import KINDS
from loom_mq.errors import LoomError
from loom_mq.flows.registry import Registry
from loom_mq.observe.redaction import redactor
from loom_mq.runtime.embedded import Embedded
from tests.support.house import until

EVIL = "evil\x1b[31m\u202e<b>"
WITHIN = 60.0

Answer = tuple[int, str, str]
Loom = Callable[..., Answer]


@loom.step
async def double(number: int) -> int:
    return number * 2


@loom.step(retry=loom.NO_RETRY)
async def broken() -> None:
    raise ValueError(f"broken {EVIL}")


@loom.flow
async def doubling(ctx: loom.Context, number: int) -> int:
    return await ctx.run(double, number)


@loom.flow
async def asking(ctx: loom.Context) -> str:
    return f"said {await ctx.suspend(on='Approval', type=bool)}"


@loom.flow
async def sleeping(ctx: loom.Context) -> None:
    await ctx.sleep(3600)


@loom.flow
async def failing(ctx: loom.Context) -> None:
    await ctx.run(broken)


FLOWS = (doubling, asking, sleeping, failing)


async def fill(path: Path) -> None:
    """Leave one execution of each kind, and nobody who serves them."""
    async with Embedded(Registry(FLOWS), path) as house:
        client = house.client
        done = await client.start(doubling, 4, id="done", labels={"customer": "c1"})
        assert await done.result(timeout=WITHIN) == 8
        for flow, name in (
            (asking, "gate"),
            (asking, EVIL),
            (asking, "stopped"),
            (sleeping, "nap"),
        ):
            await client.start(flow, id=name)
            await until_parked(house, name)
        await client.handle("stopped").cancel("no longer wanted")
        failed = await client.start(failing, id="failed")
        for handle in (failed, client.handle("stopped")):
            with pytest.raises(LoomError):
                await handle.result(timeout=WITHIN)


async def until_parked(house: Embedded, name: str) -> None:
    async def parked() -> bool:
        return (await house.client.handle(name).state()).status is loom.Status.SUSPENDED

    await until(parked, within=WITHIN)


def check_kind(body: dict[str, object]) -> None:
    """An answer holds what its published schema says: no key more, and none less."""
    kind = str(body["schema"]).removeprefix("loom.").partition("/")[0]
    msgspec.convert(body["items"], list[KINDS[kind]])  # type: ignore[valid-type]  # by its name


def items(answer: Answer, schema: str) -> list[dict[str, object]]:
    code, out, err = answer
    assert (code, err) == (0, "")
    body = json.loads(out)
    assert set(body) == {"schema", "items", "next"}
    assert body["schema"] == schema
    check_kind(body)
    found: list[dict[str, object]] = body["items"]
    return found


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("cli") / "filled.sqlite"
    asyncio.run(fill(path))
    return path.read_bytes()


@pytest.fixture
def cli(
    tmp_path: Path,
    filled: bytes,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Loom:
    """`loom` in a folder where `loom dev` left its journal; returns code, answer, remarks."""
    monkeypatch.chdir(tmp_path)
    for name in ("LOOM_JOURNAL", "LOOM_BROKER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(redactor, "_secrets", frozenset())
    monkeypatch.setattr(redactor, "_pattern", None)
    DEV_FILE.write_bytes(filled)

    def call(*arguments: str) -> Answer:
        code = run(arguments)
        out, err = capsys.readouterr()
        if out.startswith('{"schema":'):
            check_kind(json.loads(out))
        return code, out, err

    return call
