"""What a reason rests on, fact by fact, for whoever doubts it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from loom_mq.kernel.facts import Fleet
from loom_mq.kernel.wording import counted, names
from loom_mq.model.execution import ExecutionRow, InboxItem, Status


def evidence(row: ExecutionRow, fleet: Fleet, mail: Sequence[InboxItem]) -> tuple[str, ...]:
    """The facts about an execution that has not ended, one a line.

    Args:
        row: its index row.
        fleet: what is around it.
        mail: unread items of its inbox.
    """
    found = [
        f"{row.status.value}: attempt {row.attempt}, fence {row.fence}, "
        f"{counted(row.last_seq + 1, 'event')}, the last change {fleet.ago(row.updated_at)} ago",
        _holder(row, fleet),
        _package(row, fleet),
        _queue(row, fleet),
        _services(fleet),
        _broker(fleet),
        _mail(row, mail),
    ]
    if row.recoveries:
        found.append(f"{_recovered(row.recoveries)} since its last progress")
    return tuple(each for each in found if each)


def _holder(row: ExecutionRow, fleet: Fleet) -> str:
    if row.owner is None:
        return "held by nobody"
    worker = fleet.worker(row.owner)
    if worker is None:
        return f"held by {row.owner}, whose lease has lapsed"
    left = f"lease {fleet.ahead(worker.lease_until)} left"
    return f"held by {row.owner}, {left}{', draining' if worker.draining else ''}"


def _package(row: ExecutionRow, fleet: Fleet) -> str:
    if row.hint_at is None:
        return "" if row.status is Status.SUSPENDED or row.owner else "no package is due"
    due = (
        f"in {fleet.ahead(row.hint_at)}"
        if row.hint_at > fleet.now
        else f"since {fleet.ago(row.hint_at)}"
    )
    return f"another package is due {due}; {row.hints} sent again so far"


def _queue(row: ExecutionRow, fleet: Fleet) -> str:
    servers = fleet.servers(row.queue)
    slots = sum(worker.slots for worker in servers)
    told = f"queue {row.queue!r}: {counted(len(servers), 'worker')}, {counted(slots, 'slot')}"
    depth = fleet.depth(row.queue)
    if depth is None:
        return told
    ready, consumers = counted(depth.ready, "message"), counted(depth.consumers, "consumer")
    return f"{told}; on the broker {ready} ready, {consumers}"


def _services(fleet: Fleet) -> str:
    if fleet.embedded:
        return ""
    dispatchers = counted(fleet.count("dispatcher"), "dispatcher")
    return f"alive: {dispatchers}, {counted(fleet.count('timer'), 'timer service')}"


def _broker(fleet: Fleet) -> str:
    broker = fleet.broker
    if broker is None:
        return ""
    trouble = broker.unreachable or broker.alarm
    return f"broker: {trouble}" if trouble else "broker: reachable"


def _mail(row: ExecutionRow, mail: Sequence[InboxItem]) -> str:
    if not mail:
        return f"{counted(row.inbox, 'unread item')} in its inbox" if row.inbox else ""
    kinds = names("item", [item.kind.value for item in mail])
    return f"unread in its inbox: {kinds}"


def _recovered(times: int) -> str:
    return "recovered once" if times == 1 else f"recovered {times} times"
