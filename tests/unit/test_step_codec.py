"""K16: a codec of a step's own; K4, K6: a step that is not idempotent."""

from __future__ import annotations

import zlib
from typing import Any, cast

import pytest

import loom_mq as loom
from loom_mq.codec.own import OwnCodec
from loom_mq.codec.plain import wrap_json
from loom_mq.codec.values import codec_for, to_display
from loom_mq.kernel.fold import fold
from loom_mq.model.events import EventKind
from tests.support.house import House

log: list[str] = []


class Picture:
    """What no codec of ours knows."""

    def __init__(self, pixels: bytes) -> None:
        self.pixels = pixels


class Zipped:
    """A codec as a program might have one."""

    def encode(self, value: Picture) -> bytes:
        log.append("encode")
        return zlib.compress(value.pixels)

    def decode(self, data: bytes) -> Picture:
        log.append("decode")
        return Picture(zlib.decompress(data))


class Broken:
    """Fails in one of the ways that a codec can."""

    def __init__(self, way: str) -> None:
        self.way = way

    def encode(self, value: str) -> bytes:
        if self.way == "encode":
            raise KeyError("no such colour")
        return cast("bytes", value) if self.way == "text" else value.encode()

    def decode(self, data: bytes) -> str:
        if self.way == "decode":
            raise ValueError("not my bytes")
        return data.decode()


@loom.step(codec=Zipped())
async def paint(size: int) -> Picture:
    log.append("paint")
    return Picture(b"x" * size)


@loom.step(codec=Broken("encode"), retry=loom.Retry(attempts=3, initial=0.001))
async def unstorable() -> str:
    log.append("unstorable")
    return "value"


@loom.flow
async def gallery(ctx: loom.Context, size: int) -> str:
    picture = await ctx.run(paint, size)
    await ctx.sleep(0.01)
    return f"{type(picture).__name__} of {len(picture.pixels)}"


@loom.flow
async def hopeless(ctx: loom.Context) -> str:
    return await ctx.run(unstorable)


def own(codec: Any, annotation: object = str) -> OwnCodec:
    return OwnCodec(codec, "step paint", lambda: codec_for(annotation))


async def test_result_is_stored_and_read_by_the_steps_own_codec() -> None:
    """K16, K2: the first run gets what the codec decodes, and so does a re-run."""
    log.clear()
    async with House([gallery]) as house:
        assert await house.client.execute(gallery, 1000, id="g", timeout=20) == "Picture of 1000"
        assert log == ["paint", "encode", "decode", "decode"]  # parked, so the flow ran twice
        state = fold(await house.log("g"))
        [frame] = state.frames.values()
        stored = frame.result or b""
        assert stored[:1] == b"\x04"
        assert zlib.decompress(stored[1:]) == b"x" * 1000
        assert to_display(stored) == f"<{len(stored) - 1} bytes by the step's own codec>"


async def test_codec_that_fails_fails_the_step_once() -> None:
    """K16, C20: the error names the step; the effect is not run again for it."""
    log.clear()
    async with House([hopeless]) as house:
        with pytest.raises(loom.ExecutionFailedError, match=r"step unstorable.*no such colour"):
            await house.client.execute(hopeless, id="h", timeout=20)
        assert log == ["unstorable"]
        assert EventKind.STEP_RETRYING not in await house.kinds("h")


def test_limit_counts_what_is_stored() -> None:
    """J10."""
    codec = own(Broken(""))
    assert codec.encode("12345", what="step paint", limit=6) == b"\x0412345"
    with pytest.raises(loom.PayloadTooLargeError, match="step paint: payload of 7 bytes"):
        codec.encode("123456", what="step paint", limit=6)


@pytest.mark.parametrize(
    ("way", "told"),
    [
        ("encode", "Broken could not encode it: KeyError"),
        ("decode", "Broken could not decode it: ValueError: not my bytes"),
        ("text", "encoded to str, not bytes"),
    ],
)
def test_every_fault_names_the_step(way: str, told: str) -> None:
    """K16: also when it is found only as the value is read again."""
    with pytest.raises(loom.CodecError, match=told) as caught:
        own(Broken(way)).roundtrip("value", what="step paint")
    assert "step paint" in str(caught.value)


def test_what_was_stored_before_the_step_had_a_codec_is_still_read() -> None:
    """K16: and what an operator gives as plain data (K6)."""
    codec = own(Broken(""))
    assert codec.decode(codec_for(str).encode("old", what="old")) == "old"
    assert codec.decode(wrap_json(b'"told"')) == "told"
    with pytest.raises(loom.CodecError, match="no other knows its type"):
        own(Zipped(), Picture).decode(wrap_json(b'"told"'))


def test_taking_the_codec_away_is_told() -> None:
    """K16: the value stays where it is, unread."""
    with pytest.raises(loom.CodecError, match="declare the step with that codec"):
        codec_for(str).decode(own(Broken("")).encode("value", what="step paint"))


@pytest.mark.parametrize("unfit", [Zipped, object(), "json"])
def test_what_is_no_codec_is_refused_where_it_is_declared(unfit: Any) -> None:
    """K16."""
    with pytest.raises(loom.ConfigurationError, match="step paint: codec must be an object"):
        loom.step(name="paint", codec=unfit)(lambda: None)


def test_a_step_that_is_not_idempotent_is_not_tried_again_unless_told() -> None:
    """K6: a retry runs the effect twice, too."""
    assert paint.idempotent
    once = loom.step(name="once", idempotent=False)(lambda: None)
    assert (once.idempotent, once.retry) == (False, loom.NO_RETRY)
    often = loom.step(name="often", idempotent=False, retry=loom.Retry())(lambda: None)
    assert often.retry.attempts == 3
