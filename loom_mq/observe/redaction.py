"""Keeps secrets out of everything that is written for people (C93)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

HIDDEN: Final = "***"
_DEPTH: Final = 8
"""Deeper than this, a value is written as text and redacted as such."""


class Redactor:
    """Replaces registered secrets in text and in plain data.

    Registering is rare and may happen from any thread; redacting reads one attribute.
    """

    def __init__(self) -> None:
        self._secrets: frozenset[str] = frozenset()
        self._pattern: re.Pattern[str] | None = None

    def register(self, secrets: Iterable[str]) -> None:
        """Hide these from now on.

        Args:
            secrets: every form in which a secret may turn up, none of them empty; see
                `runtime.addresses.secrets_of`.
        """
        self._secrets = self._secrets | {secret for secret in secrets if secret}
        if self._secrets:
            # the longest first: one form may be the beginning of another
            forms = sorted(self._secrets, key=lambda form: (-len(form), form))
            self._pattern = re.compile("|".join(re.escape(form) for form in forms))

    def text(self, text: str) -> str:
        """`text` without any registered secret."""
        return text if self._pattern is None else self._pattern.sub(HIDDEN, text)

    def value(self, value: object, depth: int = _DEPTH) -> object:
        """Plain data without any registered secret.

        Text, mappings and sequences are walked; numbers, booleans and None pass; what
        else there is becomes its redacted `repr`.
        """
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            return self.text(value)
        if depth > 0 and isinstance(value, Mapping):
            return {self.text(str(key)): self.value(item, depth - 1) for key, item in value.items()}
        if depth > 0 and isinstance(value, list | tuple | set | frozenset):
            return [self.value(item, depth - 1) for item in value]
        return self.text(_shown(value))


def _shown(value: object) -> str:
    try:
        if isinstance(value, BaseException):
            return f"{type(value).__name__}: {value}"
        return repr(value)
    except Exception as error:  # a broken repr must not cost the log line
        return f"<{type(value).__name__} whose repr raises {type(error).__name__}>"


redactor: Final = Redactor()
"""The process's own: what one part of a process knows as secret, no other may print."""
