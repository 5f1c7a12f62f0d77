"""The settings as text: for ``--help`` and for `docs/reference/settings.md`."""

from __future__ import annotations

from typing import Final

from loom_mq.runtime.environment import describe
from loom_mq.runtime.settings import SETTINGS_OF_ROLE, CommonSettings

_INTRODUCTION: Final = """\
# Settings

Every process reads its settings from environment variables. A value that cannot be used
stops it at once with exit code 2 and a sentence that names the variable; a `LOOM_*`
variable that nothing reads is warned about at start.

- Durations are seconds; `500ms`, `5s`, `2m` and `1h` are understood too.
- Special characters of a password in an address are percent-encoded: `@` is `%40`, `:` is
  `%3A`, `/` is `%2F`, `#` is `%23`, `?` is `%3F`, `%` is `%25`.
- `sqlite:///loom.db` is a file in the working directory, `sqlite:////var/lib/loom.db` one
  anywhere.

| variable | read by | allowed | default | meaning |
| --- | --- | --- | --- | --- |
"""


def settings_help(kind: type[CommonSettings]) -> str:
    """The settings of one process, for a terminal."""
    lines = []
    for setting in describe(kind):
        default = "required" if setting.default is None else f"default {setting.default}"
        lines.append(f"  {setting.variable}  ({default}; {setting.allowed.replace('`', '')})")
        lines.append(f"      {setting.help.replace('`', '')}")
    return "\n".join(lines)


def settings_table() -> str:
    """The whole text of `docs/reference/settings.md`."""
    readers: dict[tuple[str, str, str, str], list[str]] = {}
    for role, kind in SETTINGS_OF_ROLE.items():
        for setting in describe(kind):
            default = "required" if setting.default is None else f"`{setting.default}`"
            row = (setting.variable, setting.allowed, default, setting.help)
            readers.setdefault(row, []).append(role)
    lines = [
        f"| `{variable}` | {_everyone(roles)} | {allowed} | {default} | {meaning} |"
        for (variable, allowed, default, meaning), roles in readers.items()
    ]
    return _INTRODUCTION + "\n".join(lines) + "\n"


def _everyone(roles: list[str]) -> str:
    if len(roles) == len(SETTINGS_OF_ROLE):
        return "all"
    if len(roles) == len(SETTINGS_OF_ROLE) - 1 and "client" not in roles:
        return "services"
    return ", ".join(roles)
