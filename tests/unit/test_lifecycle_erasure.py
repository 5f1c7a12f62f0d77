"""Erasing a subject: its data goes, the history stays, live executions are left (J8)."""

from __future__ import annotations

import base64

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from loom_mq.codec.display import to_display
from loom_mq.codec.plain import ERASED
from loom_mq.codec.values import codec_for
from loom_mq.errors import CodecError, ExecutionFailedError, InputError
from loom_mq.kernel.fold import ExecutionState, Frame, decode_payload, fold
from loom_mq.lifecycle.archive import fetch, state_of, to_lines
from loom_mq.lifecycle.erasure import erase_subject
from loom_mq.lifecycle.fork import fork
from loom_mq.lifecycle.introspection import introspect
from loom_mq.lifecycle.scrubbing import ERASED_TEXT, scrub_event, scrub_state
from loom_mq.lifecycle.truncation import truncate_prefix
from loom_mq.model import events as ev
from loom_mq.model.events import Envelope, EventKind, type_of_kind
from loom_mq.model.failures import Failure
from tests.support.house import House
from tests.unit.lifecycle_kit import (
    ENDS,
    PARKED,
    SECRET,
    book,
    booking,
    dump,
    execution,
    failure,
    full_log,
    key_of,
    log_of,
    random_log,
    shelf,
    started,
)


def holds(secret: str, data: bytes) -> bool:
    """Whether bytes hold a text, as it is or in base64 at any offset."""
    text = secret.encode()
    coded = [base64.b64encode(b"x" * shift + text)[4:-4] for shift in range(3)]
    return any(part in data for part in (text, *coded))


def shape(event: Envelope) -> tuple[object, ...]:
    """What of an event is structure."""
    payload = decode_payload(event)
    names = ("step_id", "op_id", "wait_id", "name", "topic", "gate", "waits", "attempt", "turn")
    parts = [getattr(payload, name, None) for name in (*names, "due", "failures", "answer_id")]
    kind = getattr(getattr(payload, "failure", None), "type", None)
    return (event.id, event.seq, event.kind, event.at, event.fence, kind, *parts)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("truncated", [False, True])
async def test_nothing_of_the_subject_is_left(end: msgspec.Struct, truncated: bool) -> None:
    """J8: not in any event, snapshot, row or archive, however the execution ended."""
    journal = await shelf(execution("x", full_log(end)))
    if truncated:
        await truncate_prefix(journal, key_of("x"))
    before = await fetch(journal, key_of("x"))
    assert any(holds(SECRET, line.encode()) for line in to_lines(before))
    report = await erase_subject(journal, SECRET)
    assert (report.erased, report.live, report.left) == ((key_of("x"),), (), ())
    assert report.complete
    after = await fetch(journal, key_of("x"))
    assert not any(holds(SECRET, line.encode()) for line in to_lines(after))
    assert not holds(SECRET, msgspec.msgpack.encode(after))
    assert after.row.input_digest != before.row.input_digest
    assert set(after.row.labels) == {"subject", "mail"}
    assert [shape(event) for event in after.events] == [shape(event) for event in before.events]
    assert (await erase_subject(journal, SECRET)).erased == ()


def test_every_kind_is_in_the_log_that_is_erased() -> None:
    """J8: the test above shows a kind that was forgotten, and every member of it."""
    log = [*full_log(), *log_of(*ENDS)]
    assert {event.kind for event in log} == {kind.value for kind in EventKind}
    for event in log:
        payload = decode_payload(event)
        for part in type_of_kind[event.kind].__struct_fields__:
            value = getattr(payload, part)
            if isinstance(value, bytes | Failure):
                assert holds(SECRET, msgspec.msgpack.encode(value)), (event.kind, part)


def test_a_member_that_is_new_must_be_thought_about() -> None:
    """J8: the fold's members are data or structure; one in neither list fails here."""
    data = {"input", "labels", "frames", "decisions", "answers", "cancelling", "result"}
    data |= {"failure", "reason"}
    structure = {
        "status",
        "last_seq",
        "flow",
        "version",
        "features",
        "parent",
        "run",
        "ops",
        "waits",
    }
    structure |= {
        "parked_on",
        "newest_place",
        "told_at",
        "parked_at",
        "turn",
        "settled",
        "recoveries",
    }
    structure |= {"failed_while_parked", "started_at", "updated_at", "ended_at"}
    assert set(ExecutionState.__struct_fields__) == data | structure
    frame = {"name", "status", "attempts", "failures", "due", "failed_at", "once", "withdrawn"}
    assert set(Frame.__struct_fields__) == frame | {"result", "failure", "arguments"}


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**9))
def test_the_fold_of_what_is_scrubbed_is_the_scrubbed_fold(seed: int) -> None:
    """J7, J8: so a log that was cut and one that was not are erased alike."""
    log = random_log(seed)
    whole = fold(log)
    kept = msgspec.msgpack.encode(whole)
    scrubbed = [scrub_event(event) for event in log]
    assert fold(event for event in scrubbed if event is not None) == scrub_state(whole)
    assert msgspec.msgpack.encode(whole) == kept
    assert [event and scrub_event(event) for event in scrubbed] == scrubbed


async def test_the_row_still_says_what_the_log_says() -> None:
    """J6: the error line and the labels are those of the erased log."""
    journal = await shelf(execution("x", full_log(ENDS[1])))
    await erase_subject(journal, SECRET)
    found = await fetch(journal, key_of("x"))
    state = state_of(found)
    assert state.failure is not None
    assert found.row.error == state.failure.headline == f"ValueError: {ERASED_TEXT}"
    assert found.row.labels == state.labels
    assert introspect(found.events).steps[0].failures == ["OSError"]


async def test_live_ones_are_listed_and_untouched() -> None:
    """J8: and so are those of others, of other labels and of other tenants."""
    journal = await shelf(
        execution("running", full_log()[:5]),
        execution("parked", full_log()[:PARKED]),
        execution("done", full_log()),
        execution("hers", full_log(subject="Grace Hopper")),
        execution("done", full_log(), tenant="other"),
    )
    keys = [key_of("running"), key_of("parked"), key_of("hers"), key_of("done", "other")]
    before = [await dump(journal, key) for key in keys]
    dry = await erase_subject(journal, SECRET, dry_run=True)
    assert (dry.erased, set(dry.live)) == ((key_of("done"),), set(keys[:2]))
    assert not dry.complete
    assert holds(SECRET, msgspec.msgpack.encode(await journal.read(key_of("done"))))
    report = await erase_subject(journal, SECRET)
    assert (report.erased, set(report.live)) == (dry.erased, set(dry.live))
    assert not report.complete
    assert [await dump(journal, key) for key in keys] == before


async def test_another_label_may_name_the_subject() -> None:
    """J8."""
    log = log_of(started(labels={"customer": "7", "subject": "8"}), ENDS[0])
    journal = await shelf(execution("x", log))
    assert (await erase_subject(journal, "7")).erased == ()
    assert (await erase_subject(journal, "7", label="customer")).erased == (key_of("x"),)
    for subject, label in (("", "subject"), ("7", "")):
        with pytest.raises(InputError):
            await erase_subject(journal, subject, label=label)


async def test_more_than_a_page() -> None:
    """J8: pages hold although the rows that are erased drop out of what is searched."""
    journal = await shelf(
        *(execution(f"x{number}", full_log(), created_at=number // 7) for number in range(250))
    )
    assert len((await erase_subject(journal, SECRET)).erased) == 250


async def test_what_this_release_cannot_read_is_left_and_named() -> None:
    """J1, J8: nobody here knows what a newer event holds; the others are erased."""
    newer, damaged = full_log(), full_log()
    newer[7] = replace(newer[7], kind="CUSTOM_PUBLISHED")
    journal = await shelf(execution("newer", newer), execution("fine", full_log()))
    broken = execution("damaged", damaged)
    assert (await erase_subject(journal, SECRET)).erased == (key_of("fine"),)
    journal = await shelf(execution("newer", newer), broken)
    entry = journal._store.entries[key_of("damaged")]
    entry.events[7] = replace(entry.events[7], payload=b"\xc1")
    before = await dump(journal, key_of("newer"))
    report = await erase_subject(journal, SECRET)
    left = {each.key.execution_id: each.why for each in report.left}
    assert "event 7 (CUSTOM_PUBLISHED) was written by a newer release" in left["newer"]
    assert "damaged" in left["damaged"]
    assert await dump(journal, key_of("newer")) == before
    assert not report.complete


def test_reading_an_erased_value_says_so() -> None:
    """J8: whatever its type is."""
    for annotation in (int, str, object, dict[str, int]):
        with pytest.raises(CodecError, match=r"result of x: .* it was erased"):
            codec_for(annotation).decode(ERASED, what="result of x")
    assert to_display(ERASED) == "<erased>"


async def test_what_was_erased_cannot_be_forked() -> None:
    """J8: it would run without an input."""
    journal = await shelf(execution("x", full_log()))
    await erase_subject(journal, SECRET)
    with pytest.raises(InputError, match="erased"):
        await fork(journal, key_of("x"), "y", at=5)


async def test_real_executions() -> None:
    """J8: asked for its result, an erased one tells why there is none."""
    async with House([booking]) as house:
        await book(house, "done")
        await book(house, "sad", answer=False)
        await book(house, "waiting", answer=None)
        kinds = await house.kinds("done")
        report = await erase_subject(house.journal, SECRET)
        assert set(report.erased) == {key_of("done"), key_of("sad")}
        assert report.live == (key_of("waiting"),)
        assert await house.kinds("done") == kinds
        with pytest.raises(CodecError, match="it was erased"):
            await house.client.handle("done", booking).result(timeout=5)
        with pytest.raises(ExecutionFailedError) as failed:
            await house.client.handle("sad", booking).result(timeout=5)
        assert failed.value.error_type == "LookupError"
        assert SECRET not in str(failed.value)
        await house.client.handle("waiting").resume("board", True)
        assert SECRET in await house.client.handle("waiting", booking).result(timeout=5)


def test_what_is_kept_of_a_failure() -> None:
    """J8: classes, no words."""
    event = scrub_event(log_of(ev.ExecutionFailed(failure()))[0])
    assert event is not None
    payload = decode_payload(event)
    assert isinstance(payload, ev.ExecutionFailed)
    kept = payload.failure
    assert (kept.type, kept.channel, kept.payload) == ("ValueError", "declined", ERASED)
    assert [(cause.type, cause.message) for cause in kept.causes] == [("OSError", ERASED_TEXT)]
    assert kept.traceback == ""
