"""What `loom doctor` makes of what it sees; each bad thing with a remedy (F11)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest

from loom_mq.cli import findings
from loom_mq.cli.findings import Finding, Verdict
from loom_mq.cli.queues import QueueFacts, QueueState
from loom_mq.clock import MICROS
from loom_mq.journal.postgres import ServerFacts
from loom_mq.kernel.facts import Depth
from loom_mq.model.execution import WorkerRecord

NOW = 1_000_000 * MICROS
FACTS = ServerFacts(
    server="17.2",
    schema_version=2,
    revision=4,
    known_version=2,
    known_revision=4,
    synchronous_commit="on",
    fsync="on",
    full_page_writes="on",
    standby=False,
    most_connections=100,
    connections=7,
    oldest_transaction=1.5,
    now=NOW,
)
QUEUE = QueueFacts(name="orders", broker_queue="loom.work.orders")
SERVICE = QueueFacts(name="loom.start", broker_queue="loom.start", service=True)


def by_check(found: Iterable[Finding]) -> dict[str, Verdict]:
    told = list(found)
    for each in told:
        bad = each.verdict in (Verdict.WARN, Verdict.FAIL)
        assert bool(each.remedy) == bad, each
    return {each.check: each.verdict for each in told}


def test_a_server_in_order_has_nothing_to_say() -> None:
    assert set(by_check(findings.server(FACTS, 0.01)).values()) == {Verdict.OK}
    remote = msgspec.structs.replace(FACTS, synchronous_commit="remote_apply")
    assert findings.durability(remote).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("changes", "check", "verdict", "said"),
    [
        ({"schema_version": 0, "revision": 0}, "schema", Verdict.FAIL, "there is no journal"),
        ({"schema_version": 1}, "schema", Verdict.FAIL, "this program needs 2"),
        ({"revision": 3}, "schema", Verdict.FAIL, "functions 3"),
        ({"schema_version": 3}, "schema", Verdict.FAIL, "version 3"),
        ({"synchronous_commit": "off"}, "durability", Verdict.FAIL, "synchronous_commit off"),
        ({"fsync": "off"}, "durability", Verdict.FAIL, "fsync off"),
        ({"full_page_writes": "off"}, "durability", Verdict.FAIL, "full_page_writes off"),
        ({"standby": True}, "durability", Verdict.FAIL, "standby"),
        ({"connections": 80}, "pool", Verdict.WARN, "80 of 100"),
        ({"oldest_transaction": 3600.0}, "transactions", Verdict.WARN, "open for 1 h"),
    ],
)
def test_a_server_out_of_order(
    changes: dict[str, object], check: str, verdict: Verdict, said: str
) -> None:
    """J4: what was answered must survive; the rest keeps the fleet going."""
    facts = msgspec.structs.replace(FACTS, **changes)
    found = {each.check: each for each in findings.server(facts, 0.0)}
    assert (found[check].verdict, said in found[check].detail) == (verdict, True)
    assert by_check(found.values())[check] is verdict


@pytest.mark.parametrize(
    ("ahead", "said"), [(7.0, "7.0 s ahead of"), (-7.0, "7.0 s behind"), (0.2, "200 ms")]
)
def test_a_clock_that_is_wrong_is_told(ahead: float, said: str) -> None:
    assert said in findings.clock(ahead).detail


def worker(role: str = "worker", **changes: object) -> WorkerRecord:
    record = WorkerRecord(
        owner=f"{role}/h/1/x", role=role, host="h", release="1", lease_until=NOW + 3 * MICROS
    )
    return msgspec.structs.replace(record, **changes)


def test_services_that_are_missing_or_alone() -> None:
    """What drains counts for none."""
    fleet = [
        worker("dispatcher"),
        worker("dispatcher"),
        worker(),
        worker("timer", draining=True),
    ]
    assert by_check(findings.services(fleet, embedded=False)) == {
        "dispatchers": Verdict.OK,
        "workers": Verdict.WARN,
        "timer services": Verdict.FAIL,
    }
    assert by_check(findings.services([], embedded=True)) == {"services": Verdict.FAIL}
    assert by_check(findings.services([worker()], embedded=True)) == {"services": Verdict.OK}


def test_leases_that_run_out_and_releases_that_differ() -> None:
    fleet = [worker(), worker("timer", release="2", lease_until=NOW + MICROS // 2)]
    assert by_check(findings.leases(fleet, NOW)) == {
        "leases": Verdict.WARN,
        "releases": Verdict.WARN,
    }
    [lease, _releases] = findings.leases([worker(draining=True)], NOW)
    assert (lease.verdict, "draining: worker/h/1/x" in lease.detail) == (Verdict.OK, True)
    assert list(findings.leases([], NOW)) == []


@pytest.mark.parametrize(
    ("queue", "changes", "state", "verdict"),
    [
        (QUEUE, {}, QueueState.IDLE, None),
        (QUEUE, {"workers": 1}, QueueState.OK, None),
        (QUEUE, {"waiting": 1}, QueueState.NO_CONSUMER, Verdict.FAIL),
        (QUEUE, {"waiting": 1, "asked": True}, QueueState.MISSING, Verdict.FAIL),
        (
            QUEUE,
            {"asked": True, "depth": Depth(3, 0), "workers": 1},
            QueueState.NO_CONSUMER,
            Verdict.FAIL,
        ),
        (QUEUE, {"waiting": 1, "workers": 1, "oldest": NOW - MICROS}, QueueState.OK, None),
        (
            QUEUE,
            {"waiting": 1, "workers": 1, "oldest": NOW - 60 * MICROS},
            QueueState.BACKLOG,
            Verdict.WARN,
        ),
        (QUEUE, {"waiting": 1, "workers": 1, "unsent": 1}, QueueState.BACKLOG, Verdict.WARN),
        (SERVICE, {}, QueueState.OK, None),
        (SERVICE, {"asked": True, "depth": Depth(0, 2)}, QueueState.OK, None),
        (SERVICE, {"asked": True, "depth": Depth(9, 0)}, QueueState.NO_CONSUMER, Verdict.FAIL),
        (SERVICE, {"asked": True}, QueueState.NO_CONSUMER, None),
    ],
)
def test_the_state_of_a_queue(
    queue: QueueFacts, changes: dict[str, object], state: QueueState, verdict: Verdict | None
) -> None:
    """F10: that a queue of the fleet's own is missing is told once, as the topology."""
    seen = msgspec.structs.replace(queue, **changes)
    assert seen.state(NOW) is state
    expected = {} if verdict is None else {f"queue {queue.name}": verdict}
    assert by_check(findings.queues([seen], NOW)) == expected


def test_dead_letters_are_a_warning() -> None:
    assert findings.letters(0, None, NOW).verdict is Verdict.OK
    found = findings.letters(2, NOW - 60 * MICROS, NOW)
    assert (found.verdict, found.detail) == (Verdict.WARN, "2, the newest 1 m old")
