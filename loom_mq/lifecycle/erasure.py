"""Erasing what executions know of a person, or of whomever a label names (J8)."""

from __future__ import annotations

from typing import Final

import msgspec

from loom_mq.codec.plain import ERASED
from loom_mq.errors import InputError, LoomError
from loom_mq.journal.protocol import Journal, ListQuery, Rewrite
from loom_mq.kernel.snapshots import encode_state
from loom_mq.lifecycle.reading import ArchivedExecution, fetch, state_of
from loom_mq.lifecycle.scrubbing import scrub_event, scrub_failure, scrub_labels, scrub_state
from loom_mq.model.events import Envelope
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey
from loom_mq.recovery.iteration import Left, iterate_executions, told

SUBJECT: Final = "subject"
"""The label that names whose data an execution holds, unless another one is said."""


class ErasureReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `erase_subject` did.

    Attributes:
        erased: nothing of the subject is left in these (or would be, of a dry run).
        live: these have not ended and are as they were: erase again when they have.
        left: these have ended and could not be erased, with the reason.
        dry_run: nothing was changed.
    """

    erased: tuple[ExecutionKey, ...] = ()
    live: tuple[ExecutionKey, ...] = ()
    left: tuple[Left, ...] = ()
    dry_run: bool = False

    @property
    def complete(self) -> bool:
        """Whether nothing of the subject is left in the journal."""
        return not (self.live or self.left or self.dry_run)


async def erase_subject(
    journal: Journal,
    subject: str,
    *,
    tenant: str = DEFAULT_TENANT,
    label: str = SUBJECT,
    dry_run: bool = False,
) -> ErasureReport:
    """Erase the data of a subject from all ended executions that are labelled with it.

    Input, results, answers, decisions, emitted values, the texts of failures, reasons and
    verdicts, who acted, the values of all labels, the stored fold, and the digests of
    input and arguments give way to a mark. The history stays: kinds, ids, sequences,
    times, names and classes of errors; so put nobody's data into ids and names. Reading
    an erased value raises `CodecError` with a sentence that says so. Archives, logs and
    what steps wrote elsewhere are not reached.

    Each execution is erased in one commit and then no longer bears the subject's label, so
    an erasure that was interrupted is simply run again, and one that finds nothing shows
    that nothing is left.

    Args:
        journal: where to look.
        subject: the value of the label.
        tenant: whose executions.
        label: the label's name.
        dry_run: only tell what would be erased.

    Raises:
        InputError: `subject` or `label` is empty.
        JournalError: the journal cannot be asked.
    """
    if not subject or not label:
        raise InputError("an erasure needs a subject and the name of the label that names it")
    erased: list[ExecutionKey] = []
    live: list[ExecutionKey] = []
    left: list[Left] = []
    query = ListQuery(tenant=tenant, labels={label: subject})
    async for rows in iterate_executions(journal, query):
        for row in rows:
            if not row.status.terminal:
                live.append(row.key)
                continue
            try:
                rewrite = scrubbed(await fetch(journal, row.key))
                if not dry_run:
                    await _write(journal, rewrite)
            except LoomError as error:
                left.append(Left(row.key, told(error)))
            else:
                erased.append(row.key)
    return ErasureReport(erased=tuple(erased), live=tuple(live), left=tuple(left), dry_run=dry_run)


async def _write(journal: Journal, rewrite: Rewrite) -> None:
    [refusal] = await journal.rewrite([rewrite])
    if refusal is not None:
        raise refusal


def scrubbed(found: ArchivedExecution) -> Rewrite:
    """The rewrite that leaves nobody's data in an ended execution.

    Raises:
        InputError: it holds events of a newer release, or damaged ones.
        ArchiveError: see `state_of`.
    """
    state = state_of(found)
    return Rewrite(
        key=found.key,
        events=tuple(_scrubbed(found, event) for event in found.events),
        # a whole log says it all
        snapshot=None if found.whole else encode_state(scrub_state(state)),
        error=None if state.failure is None else scrub_failure(state.failure).headline,
        labels=scrub_labels(found.row.labels),
        input_digest=ERASED,
    )


def _scrubbed(found: ArchivedExecution, event: Envelope) -> Envelope:
    try:
        scrubbed_event = scrub_event(event)
    except msgspec.MsgspecError as error:
        raise InputError(
            f"execution {found.row.execution_id!r}: event {event.seq} is damaged: {error}; "
            "delete the execution instead",
            execution_id=found.row.execution_id,
        ) from error
    if scrubbed_event is None:
        raise InputError(
            f"execution {found.row.execution_id!r}: event {event.seq} ({event.kind}) was written "
            "by a newer release, and what it holds is not known here; erase with that release",
            execution_id=found.row.execution_id,
        )
    return scrubbed_event
