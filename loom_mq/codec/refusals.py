"""Errors that crossed the wire as code and message, rebuilt."""

from __future__ import annotations

from loom_mq.errors import LoomError, ResumeRefusedError


def _by_code(root: type[LoomError]) -> dict[str, type[LoomError]]:
    known = {root.code: root}
    for child in root.__subclasses__():
        known.update(_by_code(child))
    return known


def error_from_code(
    code: str, message: str, *, execution_id: str | None = None, reason: str = ""
) -> LoomError:
    """Rebuild an error that crossed the wire as code and message.

    An unknown code gives a plain `LoomError` with the code in its text, so that an
    older client still shows what a newer service said.
    """
    kind = _by_code(LoomError).get(code)
    if kind is ResumeRefusedError:
        return ResumeRefusedError(message, reason=reason, execution_id=execution_id)
    if kind is None:
        return LoomError(f"{message} [{code}]", execution_id=execution_id)
    error = kind.__new__(kind)
    LoomError.__init__(error, message, execution_id=execution_id)
    return error
