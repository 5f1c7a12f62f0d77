"""Dead letters: what lies in them, and which executions they were about (F2)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from loom_mq.broker import topology
from loom_mq.broker.deadletter import DELIVERY_LIMIT_REASON
from loom_mq.codec import wire
from loom_mq.errors import InputError
from loom_mq.journal.protocol import DeadLetter
from loom_mq.kernel.facts import DeadPackage
from loom_mq.model.execution import ExecutionKey
from loom_mq.model.messages import ControlMessage, PackageMessage, StartMessage

CONTENT_TYPE: Final = "content_type"
"""The header under which a dispatcher keeps a letter's content type."""
_WORK: Final = "loom.work."
_ATTEMPTS: Final = "loom.attempts."

Read = StartMessage | ControlMessage | PackageMessage


def read(letter: DeadLetter) -> Read | None:
    """The message in a dead letter; None when it cannot be read, which may be why it is dead."""
    content_type = letter.headers.get(CONTENT_TYPE) or wire.MSGPACK
    try:
        if letter.queue == topology.START.name:
            return wire.decode(StartMessage, letter.body, content_type)
        if letter.queue == topology.CONTROL.name:
            return wire.decode(ControlMessage, letter.body, content_type)
        if letter.queue.startswith((_WORK, _ATTEMPTS)):
            return wire.decode(PackageMessage, letter.body, content_type)
    except InputError:
        pass
    return None


def executions(letter: DeadLetter) -> list[ExecutionKey]:
    """The executions that a dead letter was about, as far as it can be read."""
    match read(letter):
        case StartMessage(items=starts):
            return [ExecutionKey(item.tenant, item.id) for item in starts]
        case ControlMessage(items=controls):
            return [ExecutionKey(item.tenant, item.id) for item in controls]
        case PackageMessage(items=packages):
            return [ExecutionKey(item.tenant, item.execution_id) for item in packages]
    return []


def dead_packages(letters: Iterable[DeadLetter]) -> dict[ExecutionKey, DeadPackage]:
    """The newest dead package of each execution that has any."""
    found: dict[ExecutionKey, DeadPackage] = {}
    for letter in sorted(letters, key=lambda each: each.at):
        if letter.queue.startswith(_WORK):
            for key in executions(letter):
                found[key] = DeadPackage(letter.id, letter.reason or "unknown", letter.at)
    return found


def deliveries(letter: DeadLetter) -> str | None:
    """How often it was delivered, where its reason says so."""
    limited = letter.reason == DELIVERY_LIMIT_REASON
    return f">{topology.DELIVERY_LIMIT}" if limited else None


def shown(message: Read) -> object:
    """A message as plain data, for people."""
    return msgspec.to_builtins(message)
