"""Admission: from a start message to a pending row and a first package (F2)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

import msgspec

from loom_mq.clock import Clock
from loom_mq.codec import values, wire
from loom_mq.engine.succession import INPUT_BYTES, digest_of
from loom_mq.errors import InputError, PayloadTooLargeError, UnknownFlowError
from loom_mq.ids import MAX_QUEUE_BYTES, check_id
from loom_mq.journal.protocol import Admission, Journal
from loom_mq.model.events import ExecutionStarted
from loom_mq.model.execution import ExecutionKey, FlowRecord, Waiter
from loom_mq.model.messages import StartItem
from loom_mq.model.policies import StartPolicy

_encode = msgspec.msgpack.Encoder().encode

MAX_LABELS = 32


class KnownFlows:
    """The flows that any worker has ever registered, refreshed when one is missing.

    Args:
        journal: where they are registered.
        clock: bounds how often the journal is asked.
        refresh_after: seconds.
    """

    def __init__(self, journal: Journal, clock: Clock, refresh_after: float = 1.0) -> None:
        self._journal = journal
        self._clock = clock
        self._refresh_after = refresh_after
        self._asked_at = float("-inf")
        self._looking = asyncio.Lock()
        self._flows: dict[str, dict[str, FlowRecord]] = {}

    @property
    def any(self) -> bool:
        """Whether a worker has registered at all."""
        return bool(self._flows)

    @property
    def queues(self) -> set[str]:
        """Queues that flows are registered for."""
        return {record.queue for versions in self._flows.values() for record in versions.values()}

    async def refresh(self) -> None:
        """Ask the journal, unless it was asked a moment ago."""
        if self._clock.monotonic() - self._asked_at >= self._refresh_after:
            await self._ask()

    async def _ask(self) -> None:
        self._asked_at = self._clock.monotonic()
        flows: dict[str, dict[str, FlowRecord]] = {}
        for record in await self._journal.flows():
            flows.setdefault(record.flow, {})[record.version] = record
        self._flows = flows

    async def _look_again(self) -> None:
        """Ask the journal anew, as soon as that is allowed: a flow that was registered a
        moment ago must not be called unknown.
        """
        came_at = self._clock.monotonic()
        async with self._looking:
            if self._asked_at >= came_at:
                return  # somebody who waited here has asked since
            await asyncio.sleep(max(0.0, self._asked_at + self._refresh_after - came_at))
            await self._ask()

    async def find(self, flow: str, version: str) -> FlowRecord:
        """The flow to run; the newest version when `version` is empty.

        Raises:
            UnknownFlowError: no worker has ever registered it.
        """
        record = self._known(flow, version)
        if record is None:
            await self._look_again()
            record = self._known(flow, version)
        if record is None:
            what = f"flow {flow!r}" + (f" version {version!r}" if version else "")
            raise UnknownFlowError(
                f"no worker has ever registered {what}; deploy a worker that serves it, or "
                "check the name"
            )
        return record

    def _known(self, flow: str, version: str) -> FlowRecord | None:
        versions = self._flows.get(flow)
        if not versions:
            return None
        return versions.get(version or max(versions, key=version_order))


def version_order(version: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key under which ``"10"`` comes after ``"9"`` and ``"1.10"`` after ``"1.9"``."""
    return tuple(
        (1, int(part), "") if part.isdecimal() else (0, 0, part)
        for part in re.split(r"(\d+)", version)
        if part
    )


class Admitter:
    """Turns start items into admissions. Knows the rules, does no I/O but flow look-ups."""

    def __init__(self, flows: KnownFlows, *, payload_limit: int, resend_after: float) -> None:
        self._flows = flows
        self._payload_limit = payload_limit
        self._resend_after = resend_after

    async def admission(
        self, item: StartItem, content_type: str, reply_to: str | None, correlation: str
    ) -> Admission:
        """Check a start and say what to write.

        Args:
            item: the start.
            content_type: of its message.
            reply_to: who wants to hear of the end.
            correlation: the name of the request, under which it is answered; with a
                policy other than `EXISTING` it is also what a repeated start is told by.

        Raises:
            InputError: a rule is broken; the message says which and what to do.
        """
        check_id(item.id, "execution id")
        check_id(item.tenant, "tenant")
        check_id(item.flow, "flow name")
        if item.queue:
            check_id(item.queue, "queue name", MAX_QUEUE_BYTES)
        if len(item.labels) > MAX_LABELS:
            raise InputError(f"an execution takes {MAX_LABELS} labels, not {len(item.labels)}")
        for name, value in item.labels.items():
            check_id(name, "label name")
            check_id(value, f"label {name!r}")
        if item.policy is not StartPolicy.EXISTING and not correlation:
            raise InputError(
                f"a start with policy {item.policy.value!r} needs a correlation: without a name "
                "of its own it cannot be told from the same message delivered again"
            )
        record = await self._flows.find(item.flow, item.version)
        data = stored_input(item.payload, item.input, content_type)
        if len(data) > self._payload_limit:
            raise PayloadTooLargeError(
                f"input of execution {item.id!r}", len(data), self._payload_limit
            )
        digest = digest_of(record.flow, data, item.policy, correlation)
        started = ExecutionStarted(
            flow=record.flow,
            version=record.version,
            input=data,
            labels=item.labels,
            run=digest[INPUT_BYTES:].hex(),
        )
        waiter = Waiter(reply_to, correlation) if reply_to and item.notify.of_result else None
        return Admission(
            key=ExecutionKey(item.tenant, item.id),
            flow=record.flow,
            version=record.version,
            queue=item.queue or record.queue,
            start=_encode(started),
            input_digest=digest,
            labels=item.labels,
            waiter=waiter,
            resend_after=self._resend_after,
            policy=item.policy,
        )


def stored_input(payload: bytes | None, plain: msgspec.Raw, content_type: str) -> bytes:
    """The stored form of what a message carries: ready-made, or plain data wrapped.

    Raises:
        CodecError: the plain data is nested too deeply.
    """
    if payload is not None:
        return payload
    data = bytes(plain)
    if wire.is_json(content_type):
        return values.wrap_json(data or b"null")
    return values.wrap_plain(data or b"\xc0")


def correlations(items: Sequence[StartItem], correlation_id: str | None) -> list[str]:
    """What each item's reply repeats: its own name, or the message's correlation id."""
    return [item.correlation or correlation_id or "" for item in items]
