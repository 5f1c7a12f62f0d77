"""From a flow and its input to a package, and from a package to an admission (F2)."""

from __future__ import annotations

import msgspec

from loom_mq.engine.attempts import decode_start
from loom_mq.engine.succession import digest_of
from loom_mq.errors import MalformedMessageError
from loom_mq.flows.registry import AnyFlow
from loom_mq.ids import check_id
from loom_mq.journal.protocol import Admission
from loom_mq.model.events import ExecutionStarted
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey
from loom_mq.model.messages import Cause, Package
from loom_mq.model.policies import StartPolicy

_encode = msgspec.msgpack.Encoder().encode


def package_for(
    flow: AnyFlow,
    value: object = None,
    *,
    id: str,
    tenant: str = DEFAULT_TENANT,
    labels: dict[str, str] | None = None,
    payload_limit: int = 1024 * 1024,
) -> Package:
    """The package that starts an execution, or finds it: the same one may go out again.

    Args:
        flow: what to run.
        value: its input.
        id: the execution's id.
        tenant: whose it is.
        labels: short texts to find it by.
        payload_limit: bytes (J10).

    Raises:
        InvalidIdError, CodecError, PayloadTooLargeError: see there.
    """
    data = flow.input_codec.encode(value, what=f"input of flow {flow.name}", limit=payload_limit)
    start = ExecutionStarted(flow=flow.name, version=flow.version, input=data, labels=labels or {})
    return Package(
        check_id(tenant, "tenant"),
        check_id(id, "execution id"),
        flow.name,
        flow.version,
        0,
        Cause.START,
        _encode(start),
    )


def admission_of(package: Package, flow: AnyFlow, resend_after: float) -> Admission:
    """What makes the row of a package's execution, if there is none yet.

    Args:
        package: one that holds a start.
        flow: says on which queue.
        resend_after: seconds until a fleet over the same journal sends another.

    Raises:
        MalformedMessageError: the start cannot be read.
    """
    start = package.start or b""
    try:
        started = decode_start(start)
    except msgspec.DecodeError as error:
        raise MalformedMessageError(
            f"the start in the package of execution {package.execution_id!r} cannot be read: "
            f"{error}",
            execution_id=package.execution_id,
        ) from error
    return Admission(
        key=ExecutionKey(package.tenant, package.execution_id),
        flow=started.flow,
        version=started.version,
        queue=flow.queue,
        start=start,
        input_digest=digest_of(started.flow, started.input, StartPolicy.EXISTING, ""),
        labels=started.labels,
        resend_after=resend_after,
    )
