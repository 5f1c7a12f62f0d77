"""Archives: executions taken out of a journal and planted in one again (J8)."""

from __future__ import annotations

import msgspec

from loom_mq.errors import ArchiveError, InputError
from loom_mq.ids import Ids, RandomIds, check_id
from loom_mq.journal.protocol import Journal
from loom_mq.lifecycle.lines import ARCHIVE_VERSION, read_archive, to_lines
from loom_mq.lifecycle.planting import plant, planted, renamed
from loom_mq.lifecycle.reading import ArchivedExecution, fetch, state_of
from loom_mq.model.execution import ExecutionKey

__all__ = [
    "ARCHIVE_VERSION",
    "ArchivedExecution",
    "fetch",
    "read_archive",
    "restore_archived",
    "state_of",
    "to_lines",
]


async def restore_archived(
    journal: Journal,
    archived: ArchivedExecution,
    *,
    execution_id: str | None = None,
    tenant: str | None = None,
    ids: Ids | None = None,
) -> ExecutionKey:
    """Plant an archived execution in a journal, log, times and fence as they were (J8).

    An ended one stays ended: it can be read, and nothing drives it. One that had not
    ended goes on: a suspended one waits at its gates again with its timers armed, a
    running one is sent to a worker. Since the execution that was archived may still live
    somewhere and would then do everything a second time, that takes another id, which
    says that this is meant. What lay in the inbox and who waited for the end are lost.

    Args:
        journal: where to.
        archived: what `fetch` or `read_archive` gave.
        execution_id: the id to plant it under; None for its own.
        tenant: the tenant to plant it for; None for its own.
        ids: makes the envelope ids of an execution that gets another name.

    Returns:
        The key it was planted under.

    Raises:
        InputError: it had not ended, and `execution_id` is not another one.
        InvalidIdError: `execution_id` or `tenant` is no lawful id.
        ExecutionAlreadyExistsError: the id is taken.
        ArchiveError: its row and its log do not say the same, or a newer release wrote them.
    """
    row = archived.row
    key = ExecutionKey(
        check_id(row.tenant if tenant is None else tenant, "tenant"),
        check_id(row.execution_id if execution_id is None else execution_id, "execution id"),
    )
    if not row.status.terminal and key.execution_id == row.execution_id:
        raise InputError(
            f"execution {row.execution_id!r} was {row.status.value} when it was archived and may "
            "still be; give another id to start a second one from where it stood",
            execution_id=row.execution_id,
        )
    state = state_of(archived)
    if (state.status, state.last_seq, state.flow) != (row.status, row.last_seq, row.flow):
        raise ArchiveError(
            f"execution {row.execution_id!r}: its row says {row.status.value} at event "
            f"{row.last_seq}, its log {state.status.value} at event {state.last_seq}; a newer "
            "release wrote it, or it was changed by hand",
            execution_id=row.execution_id,
        )
    now = await journal.now()
    events = archived.events if key == row.key else renamed(archived.events, ids or RandomIds())
    planting = planted(
        msgspec.structs.replace(row, tenant=key.tenant, execution_id=key.execution_id),
        state,
        now,
        events=events,
        snapshot=archived.snapshot,
    )
    await plant(journal, planting)
    return key
