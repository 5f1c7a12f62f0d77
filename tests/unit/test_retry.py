"""When a failed step is tried again (K4)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom_mq.errors import CodecError, ConfigurationError
from loom_mq.kernel.retry import next_delay
from loom_mq.model.policies import NO_RETRY, Retry

FAIL = ValueError("no")


def test_pauses_grow_up_to_the_maximum() -> None:
    policy = Retry(attempts=6, initial=1, factor=3, maximum=10, jitter=0)
    assert [next_delay(policy, n, FAIL, 0.5) for n in range(1, 7)] == [1, 3, 9, 10, 10, None]


def test_jitter_takes_a_share_of_the_pause() -> None:
    policy = Retry(attempts=2, initial=10, jitter=0.5)
    assert (next_delay(policy, 1, FAIL, 0), next_delay(policy, 1, FAIL, 1)) == (10, 5)


def test_one_attempt_is_one() -> None:
    assert next_delay(NO_RETRY, 1, FAIL, 0) is None


def test_classes_decide() -> None:
    policy = Retry(retry_on=(OSError,), give_up_on=(FileNotFoundError,))
    assert next_delay(policy, 1, OSError(), 0) is not None
    assert next_delay(policy, 1, FileNotFoundError(), 0) is None
    assert next_delay(policy, 1, FAIL, 0) is None


def test_a_base_exception_is_not_tried_again_by_default() -> None:
    assert next_delay(Retry(), 1, SystemExit(3), 0) is None
    assert next_delay(Retry(retry_on=(BaseException,)), 1, SystemExit(3), 0) is not None


def test_c20_a_value_that_cannot_be_stored_is_not_made_again() -> None:
    """C20: the effect has run; running it again would only repeat it."""
    assert next_delay(Retry(attempts=5), 1, CodecError("step s", "$", "no"), 0) is None


@given(
    st.integers(1, 10_000),
    st.floats(0, 1),
    st.floats(1, 1e9),
)
def test_a_pause_is_always_a_sane_number(failures: int, luck: float, factor: float) -> None:
    policy = Retry(attempts=100_000, factor=factor, maximum=60)
    delay = next_delay(policy, failures, FAIL, luck)
    assert delay is not None
    assert math.isfinite(delay)
    assert 0 <= delay <= 60


@pytest.mark.parametrize(
    "broken",
    [
        {"attempts": 0},
        {"initial": -1.0},
        {"initial": math.nan},
        {"maximum": math.inf},
        {"factor": 0.5},
        {"jitter": 1.5},
    ],
)
def test_figures_out_of_range_are_refused_by_name(broken: dict[str, float]) -> None:
    name = next(iter(broken))
    with pytest.raises(ConfigurationError, match=f"Retry.{name}"):
        Retry(**broken)  # type: ignore[arg-type]  # wrong on purpose
