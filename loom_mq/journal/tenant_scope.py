"""Keys and refusals between a tenant's view of a journal and the journal itself (J9)."""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from loom_mq.errors import InvalidIdError, LoomError, StorageWriteError
from loom_mq.ids import check_id
from loom_mq.journal.requests import Admission, Append, Claim, Rewrite
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey, ExecutionRow, InboxItem

K = TypeVar("K", Admission, Append, Claim, Rewrite)
N = TypeVar("N", ExecutionRow, InboxItem)


class Scope:
    """The mapping of keys between the caller and the tenant.

    Args:
        tenant: the tenant within the journal.
    """

    def __init__(self, tenant: str) -> None:
        self.tenant = check_id(tenant, "tenant")

    def inward(self, key: ExecutionKey) -> ExecutionKey:
        """The key within the journal.

        Raises:
            InvalidIdError: it is under another tenant than `DEFAULT_TENANT`.
        """
        return ExecutionKey(self.only(key.tenant, key.execution_id), key.execution_id)

    def only(self, tenant: str, execution_id: str | None = None) -> str:
        """The tenant within the journal for the caller's own.

        Raises:
            InvalidIdError: it is another tenant than `DEFAULT_TENANT`.
        """
        if tenant != DEFAULT_TENANT:
            raise InvalidIdError(
                f"this journal serves one tenant, whose keys are under {DEFAULT_TENANT!r}; "
                f"{tenant!r} is not reached through it",
                execution_id=execution_id,
            )
        return self.tenant

    def request(self, request: K) -> K:
        """A request within the journal."""
        return replace(request, key=self.inward(request.key))

    def item(self, item: InboxItem) -> InboxItem:
        """An inbox item within the journal."""
        return replace(item, tenant=self.only(item.tenant, item.execution_id))

    def inward_row(self, row: ExecutionRow) -> ExecutionRow:
        """An index row within the journal."""
        return replace(row, tenant=self.only(row.tenant, row.execution_id))

    def own(self, key: ExecutionKey) -> bool:
        """Whether a key within the journal is of this tenant."""
        return key.tenant == self.tenant

    def outward(self, key: ExecutionKey) -> ExecutionKey:
        """The caller's own key."""
        return ExecutionKey(DEFAULT_TENANT, key.execution_id)

    def named(self, thing: N) -> N:
        """A row or item under the caller's own key."""
        return replace(thing, tenant=DEFAULT_TENANT)

    def row(self, row: ExecutionRow | None) -> ExecutionRow | None:
        """A row, where there may be none, under the caller's own key."""
        return None if row is None else self.named(row)


def own_error(error: LoomError | None, key: ExecutionKey | None) -> LoomError | None:
    """A refusal under the caller's own id: same class, the original as its cause.

    The cause of a storage error stays its cause, because that says what it means (F5);
    a refusal within it is renamed in its turn.

    Args:
        error: as the journal gave it.
        key: the caller's own key, when the refusal is of one execution.
    """
    if error is None:
        return None
    if isinstance(error, StorageWriteError):
        cause = error.__cause__
        if not isinstance(cause, LoomError):
            return error
        renamed = _copy(error, key)
        renamed.__cause__ = own_error(cause, key)
        return renamed
    renamed = _copy(error, key)
    renamed.__cause__ = error
    return renamed


def _copy(error: LoomError, key: ExecutionKey | None) -> LoomError:
    copy = type(error).__new__(type(error))
    copy.args = error.args
    copy.__dict__.update(error.__dict__)
    if key is not None:
        copy.execution_id = key.execution_id
    return copy
