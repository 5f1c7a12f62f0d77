"""Starts under an id that is taken (K16), and how a repeated start is told from a new one.

A start that must not simply find what is there has a name, its correlation. A digest of
the name is kept with the execution that the start made, behind the digest of flow and
input. An execution that makes way for a new one is kept under an id that is worked out
from the digest of its own start. So a start that is delivered again finds what it made,
under its id or beside it, and never makes another; and of two starts that replace the
same execution the journal lets one do it, since the id to keep it under is taken then.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import Final, Self

import msgspec

from loom_mq.errors import StartConflictError
from loom_mq.ids import MAX_ID_BYTES
from loom_mq.journal.protocol import Admission, AdmitVerdict, Journal
from loom_mq.journal.verdicts import makes_way
from loom_mq.model.execution import ExecutionKey, ExecutionRow
from loom_mq.model.policies import StartPolicy

INPUT_BYTES: Final = 16
"""How much of `input_digest` stands for flow and input; the rest stands for the start."""

REQUEST_BYTES: Final = 16

TRIES: Final = 10
"""Looks at an execution that others replace at the same time."""


def digest_of(flow: str, data: bytes, policy: StartPolicy, request: str) -> bytes:
    """What is kept with an execution of the start that made it.

    Args:
        flow: the flow's name.
        data: its input in stored form.
        policy: a start that just finds what is there needs no memory.
        request: the start's name.
    """
    digest = hashlib.blake2b(flow.encode() + b"\x00" + data, digest_size=INPUT_BYTES).digest()
    if policy is StartPolicy.EXISTING:
        return digest
    return digest + hashlib.blake2b(request.encode(), digest_size=REQUEST_BYTES).digest()


def same_start(row: ExecutionRow, admission: Admission) -> bool:
    """Whether an execution has the flow and the input that are asked for."""
    return row.input_digest[:INPUT_BYTES] == admission.input_digest[:INPUT_BYTES]


def made_by(row: ExecutionRow, admission: Admission) -> bool:
    """Whether this very start made the execution."""
    request = admission.input_digest[INPUT_BYTES:]
    return bool(request) and row.input_digest[INPUT_BYTES:] == request


def conflict(
    key: ExecutionKey, row: ExecutionRow, policy: StartPolicy = StartPolicy.EXISTING
) -> StartConflictError:
    """The refusal of a start whose id is taken."""
    name, status = key.execution_id, row.status.value
    if policy is StartPolicy.REJECT:
        told = (
            f"execution {name!r} exists already ({status}) and the start's policy is to be "
            "refused then; use an id that was never used"
        )
    else:
        told = (
            f"execution {name!r} exists already with another input or flow (it runs "
            f"{row.flow!r}); use another id, or the same input to get the same execution"
        )
        if policy is not StartPolicy.EXISTING:
            told += f". Policy {policy.value!r} does not replace it, since it is {status}"
    return StartConflictError(told, execution_id=name)


class Succession:
    """Makes what a start asks for, or finds it.

    Args:
        look: reads an index row.
        admit: writes an admission; see `Journal.admit`.
    """

    def __init__(
        self,
        look: Callable[[ExecutionKey], Awaitable[ExecutionRow | None]],
        admit: Callable[[Admission], Awaitable[AdmitVerdict]],
    ) -> None:
        self._look = look
        self._admit = admit

    @classmethod
    def over(cls, journal: Journal) -> Self:
        """One that asks a journal directly, start by start."""

        async def look(key: ExecutionKey) -> ExecutionRow | None:
            [row] = await journal.get([key])
            return row

        async def admit(admission: Admission) -> AdmitVerdict:
            [verdict] = await journal.admit([admission])
            return verdict

        return cls(look, admit)

    async def admit(self, admission: Admission) -> AdmitVerdict:
        """Carry out a start; carrying out the very same one again finds what it made.

        Raises:
            StartConflictError: the id is taken, and the policy or the input does not allow
                for that.
        """
        if admission.policy is StartPolicy.EXISTING:
            verdict = await self._admit(admission)
            if not verdict.created and not same_start(verdict.row, admission):
                raise conflict(admission.key, verdict.row)
            return verdict
        for _ in range(TRIES):
            done = await self._try(admission)
            if done is not None:
                return done
        raise StartConflictError(
            f"execution {admission.key.execution_id!r} is being started over and over by others; "
            "try again later",
            execution_id=admission.key.execution_id,
        )

    async def _try(self, admission: Admission) -> AdmitVerdict | None:
        """One look and one write; None when somebody else wrote in between."""
        key = admission.key
        request = admission.input_digest[INPUT_BYTES:]
        row, kept = await asyncio.gather(
            self._look(key),
            self._look(ExecutionKey(key.tenant, kept_as(key.execution_id, request))),
        )
        for made in (row, kept):
            if made is not None and made_by(made, admission) and not same_start(made, admission):
                raise StartConflictError(
                    f"an execution {key.execution_id!r} has been started under this correlation "
                    "with another input or flow; a start that is no repetition needs a "
                    "correlation of its own",
                    execution_id=key.execution_id,
                )
        if kept is not None and made_by(kept, admission):
            return AdmitVerdict(kept, created=False, same=True)
        found = msgspec.structs.replace(admission, policy=StartPolicy.EXISTING)
        if row is None:
            verdict = await self._admit(found)
            return verdict if verdict.created else None
        if made_by(row, admission):
            verdict = await self._admit(found)  # so that whoever sends it again hears of the end
            return verdict if made_by(verdict.row, admission) else None
        if makes_way(row, admission):
            own = row.input_digest[INPUT_BYTES:] or row.created_at.to_bytes(8)
            verdict = await self._admit(
                msgspec.structs.replace(admission, retire_as=kept_as(key.execution_id, own))
            )
            return verdict if verdict.created else None
        if admission.policy is StartPolicy.REJECT or not same_start(row, admission):
            raise conflict(key, row, admission.policy)
        verdict = await self._admit(found)
        return verdict if same_start(verdict.row, admission) else None


def kept_as(execution_id: str, start: bytes) -> str:
    """The id under which an execution is kept that made way for another.

    Args:
        execution_id: the id that both have been started under.
        start: what tells its start from others under that id.
    """
    # long ids that are cut to the same text must not meet
    suffix = hashlib.blake2b(start + b"\x00" + execution_id.encode(), digest_size=8).hexdigest()
    room = MAX_ID_BYTES - len(suffix) - 1
    return f"{execution_id.encode()[:room].decode(errors='ignore')}~{suffix}"
