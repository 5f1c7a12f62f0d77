"""What a process counts."""

from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from loom_mq.errors import (
    CommitOutcomeUnknownError,
    DuplicateSequenceError,
    LoomError,
    StaleFenceError,
    StorageWriteError,
)
from loom_mq.journal.protocol import AppendVerdict
from loom_mq.observe.families import MOST_LABEL_SETS
from loom_mq.observe.metrics import CONTENT_TYPE, Metrics

FED = [
    "loom_build_info",
    "loom_broker_blocked",
    "loom_broker_connected",
    "loom_clock_offset_seconds",
    "loom_effects_reexecuted_total",
    "loom_event_loop_lag_seconds",
    "loom_execution_duration_seconds_count",
    "loom_executions_finished_total",
    "loom_executions_started_total",
    "loom_journal_append_seconds_count",
    "loom_journal_appends_total",
    "loom_journal_batch_size_count",
    "loom_lease_renewals_total",
    "loom_lease_seconds_to_expiry",
    "loom_packages_dead_lettered_total",
    "loom_packages_published_total",
    "loom_packages_received_total",
    "loom_packages_returned_total",
    "loom_recoveries_total",
    "loom_step_duration_seconds_count",
    "loom_step_retries_total",
    "loom_steps_total",
    "loom_superseded_total",
    "loom_timer_lateness_seconds_count",
    "loom_worker_slots",
]


def fed() -> Metrics:
    metrics = Metrics(version="1.2.3", schema="4")
    metrics.execution_started("fulfil")
    metrics.execution_finished("fulfil", "completed", 0.2)
    metrics.step_finished("fulfil", "charge", "completed", 0.02)
    metrics.step_retried("fulfil", "charge", "OSError")
    metrics.effect_reexecuted("fulfil", "charge")
    metrics.superseded("append")
    metrics.recovered("claimed")
    metrics.slots(3, 5)
    metrics.published("loom.start", "confirmed", 10)
    metrics.returned("loom.gone")
    metrics.received("loom.work.default", redelivered=True)
    metrics.dead_lettered("loom.start", "malformed-message")
    metrics.broker(connected=True, blocked=False)
    metrics.append_batch(1, 0.004, [AppendVerdict()])
    metrics.lease_renewed("renewed")
    metrics.watch_lease(lambda: 4.5)
    metrics.clock_offset(-0.25)
    metrics.loop_lag(0.01)
    metrics.timer_fired(0.03)
    return metrics


def test_the_page_can_be_read_and_holds_every_metric() -> None:
    page = fed().render().decode()
    samples = {
        sample.name for family in text_string_to_metric_families(page) for sample in family.samples
    }
    assert samples >= set(FED)
    assert CONTENT_TYPE.startswith("text/plain")


def test_names_follow_the_house() -> None:
    """Prefix, base units, no ids in labels."""
    for family in text_string_to_metric_families(fed().render().decode()):
        for sample in family.samples:
            assert sample.name.startswith(("loom_", "process_"))
            assert not re.search(r"_(ms|millis|minutes)", sample.name)
            assert not {"execution_id", "tenant", "worker"} & set(sample.labels)


def test_values() -> None:
    metrics = fed()
    assert metrics.value("loom_build_info", version="1.2.3", schema="4") == 1
    assert metrics.value("loom_worker_slots", state="busy") == 3
    assert (
        metrics.value("loom_packages_published_total", queue="loom.start", outcome="confirmed")
        == 10
    )
    assert metrics.value("loom_lease_seconds_to_expiry") == 4.5
    assert metrics.value("loom_broker_connected") == 1
    assert metrics.value("loom_nothing") is None


@pytest.mark.parametrize(
    ("seconds", "bucket"), [(0.0, "0.001"), (0.001, "0.001"), (0.0011, "0.005"), (9999.0, "+Inf")]
)
def test_buckets_hold_what_is_not_above_them(seconds: float, bucket: str) -> None:
    metrics = Metrics()
    metrics.step_finished("f", "s", "completed", seconds)
    name = "loom_step_duration_seconds"
    labels = {"flow": "f", "step": "s"}
    page = metrics.render().decode()
    first = re.search(rf'{name}_bucket{{flow="f",le="([^"]+)",step="s"}} 1\.0', page)
    assert first is not None
    assert first[1] == bucket
    assert metrics.value(f"{name}_bucket", le="+Inf", **labels) == 1
    assert metrics.value(f"{name}_sum", **labels) == pytest.approx(seconds)


def test_appends_are_counted_by_outcome() -> None:
    """J3: each caller's own verdict. A stale fence counts as such under a storage error too."""
    stale = StaleFenceError("e", held=1, current=2)
    wrapped = StorageWriteError("no")
    wrapped.__cause__ = stale
    errors: list[LoomError | None] = [
        None,
        None,
        stale,
        wrapped,
        DuplicateSequenceError("e", seq=1, next_seq=2),
        CommitOutcomeUnknownError("?"),
        StorageWriteError("disk"),
    ]
    metrics = Metrics()
    metrics.append_batch(len(errors), 0.01, [AppendVerdict(error=error) for error in errors])
    counted = {
        outcome: metrics.value("loom_journal_appends_total", outcome=outcome)
        for outcome in ("committed", "stale_fence", "duplicate", "unknown", "error")
    }
    assert counted == {"committed": 2, "stale_fence": 2, "duplicate": 1, "unknown": 1, "error": 1}


def test_label_values_cannot_grow_without_limit() -> None:
    metrics = Metrics()
    for number in range(MOST_LABEL_SETS + 50):
        metrics.execution_started(f"flow-{number}")
        metrics.execution_finished(f"flow-{number}", "completed", 1.0)
    assert metrics.value("loom_executions_started_total", flow="other") == 50
    assert (
        metrics.value("loom_execution_duration_seconds_count", flow="other", status="other") == 50
    )


def test_a_reason_that_is_a_sentence_is_no_label() -> None:
    metrics = Metrics()
    metrics.dead_lettered("q", "the broker delivered it too often")
    assert metrics.value("loom_packages_dead_lettered_total", queue="q", reason="other") == 1


def test_two_processes_in_one_do_not_mix() -> None:
    one, two = Metrics(), Metrics()
    one.execution_started("f")
    assert two.value("loom_executions_started_total", flow="f") is None
