"""Reads settings from the environment, and tells people what is wrong with them."""

from __future__ import annotations

import difflib
import enum
import math
import re
from collections.abc import Mapping
from typing import Annotated, Final, TypeVar, cast, get_args, get_origin

import msgspec
from msgspec import Meta
from msgspec.structs import FieldInfo

from loom_mq.errors import ConfigurationError, SettingsError
from loom_mq.runtime.addresses import SHAPES, Address, parse_address, redact
from loom_mq.runtime.settings import SETTINGS_OF_ROLE, CommonSettings

PREFIX: Final = "LOOM_"
FOREIGN_PREFIXES: Final = ("LOOM_TEST_", "LOOM_BENCH_")
"""Variables of the project's own tools, of no concern to a process of the fleet."""

S = TypeVar("S", bound=CommonSettings)

_DURATION: Final = re.compile(r"^(\d+(?:\.\d+)?|\.\d+)\s*(ms|s|m|h|)$", re.ASCII)
_UNIT_SECONDS: Final = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting as people need to know it.

    Attributes:
        field: its name in the Struct.
        variable: its name in the environment.
        allowed: which values, for people.
        default: as one would write it; None when it must be given.
        help: one line.
    """

    field: str
    variable: str
    allowed: str
    default: str | None
    help: str


def read_settings(kind: type[S], environ: Mapping[str, str]) -> S:
    """Read the settings of one process.

    Args:
        kind: one of the Structs of `settings`.
        environ: usually ``os.environ``.

    Raises:
        SettingsError: one sentence that names every wrong or missing variable, what it
            says (addresses without their secrets) and what is allowed.
    """
    values: dict[str, object] = {}
    problems: list[str] = []
    for field in msgspec.structs.fields(kind):
        setting = _describe(field)
        text = environ.get(setting.variable, "").strip()
        if not text:
            if setting.default is None:
                problems.append(
                    f"{setting.variable} is not set; it must be {_plain(setting.allowed)} "
                    f"({_plain(setting.help)})"
                )
            continue
        try:
            values[field.name] = _value(field, text)
        except ConfigurationError as error:
            problems.append(f"{setting.variable} is {redact(text)!r}: {error.message}")
        except (msgspec.ValidationError, ValueError):
            problems.append(
                f"{setting.variable} is {_excerpt(text)}, allowed is {_plain(setting.allowed)}"
            )
    if problems:
        raise SettingsError("; ".join(problems))
    settings = msgspec.convert(values, kind, dec_hook=_keep)
    try:
        settings.check()
    except ConfigurationError as error:
        raise SettingsError(error.message) from None
    return settings


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """One sentence per ``LOOM_*`` variable that no process of this release reads.

    Values are never shown: a misspelt name may hold a password.
    """
    known = sorted(
        {setting.variable for kind in SETTINGS_OF_ROLE.values() for setting in describe(kind)}
    )
    sentences = []
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in known or name.startswith(FOREIGN_PREFIXES):
            continue
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
        hint = f"did you mean {close[0]}?" if close else "see --help for those that are"
        sentences.append(f"{name} is not a setting; {hint}")
    return sentences


def describe(kind: type[CommonSettings]) -> list[Setting]:
    """The settings of one process, in the order of its Struct."""
    return [_describe(field) for field in msgspec.structs.fields(kind)]


def shown_settings(settings: CommonSettings) -> dict[str, str]:
    """What is set, by variable, safe to be logged."""
    return {
        setting.variable: _written(getattr(settings, setting.field))
        for setting in describe(type(settings))
    }


def parse_seconds(text: str) -> float:
    """Read a duration: ``5``, ``5s``, ``500ms``, ``2m`` or ``1h``.

    Raises:
        ValueError: it is none.
    """
    match = _DURATION.match(text.strip().lower())
    if match is None:
        raise ValueError("not a duration")
    return float(match[1]) * _UNIT_SECONDS[match[2]]


def _keep(kind: type, value: object) -> object:
    if kind is Address and isinstance(value, Address):
        return value
    raise TypeError(f"{kind} is not converted here")


def _meta(field: FieldInfo) -> tuple[object, Meta]:
    annotation = field.type
    if get_origin(annotation) is Annotated:
        kind, *notes = get_args(annotation)
        for note in notes:
            if isinstance(note, Meta):
                return kind, note
    raise AssertionError(f"the setting {field.name} lacks its Meta")


def _extra(meta: Meta, name: str) -> object:
    return (meta.extra or {}).get(name)


def _value(field: FieldInfo, text: str) -> object:
    kind, meta = _meta(field)
    if kind is Address:
        return parse_address(text, cast(tuple[str, ...], _extra(meta, "schemes")))
    raw: object = text
    if _extra(meta, "unit") == "s":
        raw = parse_seconds(text)
    elif _extra(meta, "unit") == "comma list":
        raw = tuple(part.strip() for part in text.split(",") if part.strip())
    elif _extra(meta, "bounds") is not None:
        return _optional_port(text, cast(tuple[int, int], _extra(meta, "bounds")))
    elif kind is not str:
        raw = text.lower()
    return msgspec.convert(raw, field.type, strict=False)


def _optional_port(text: str, bounds: tuple[int, int]) -> int | None:
    if text.lower() == "off":
        return None
    port = msgspec.convert(text, int, strict=False)
    if not bounds[0] <= port <= bounds[1]:
        raise ValueError("out of range")
    return port


def _describe(field: FieldInfo) -> Setting:
    kind, meta = _meta(field)
    return Setting(
        field=field.name,
        variable=PREFIX + field.name.upper(),
        allowed=_allowed(kind, meta),
        default=None if field.required else _written(field.default),
        help=meta.description or "",
    )


def _allowed(kind: object, meta: Meta) -> str:
    written = _extra(meta, "range")
    if isinstance(written, str):
        return written
    if kind is Address:
        schemes = cast(tuple[str, ...], _extra(meta, "schemes"))
        return " or ".join(f"`{SHAPES[scheme]}`" for scheme in schemes)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return " or ".join(f"`{member.value}`" for member in kind)
    if kind is bool:
        return "`true` or `false`"
    if meta.le is not None:
        unit = _extra(meta, "unit")
        low = _written(meta.ge) if meta.ge is not None else f"over {_written(meta.gt)}"
        return f"{low} to {_written(meta.le)}{f' {unit}' if unit else ''}"
    return "a comma list" if _extra(meta, "unit") == "comma list" else "text"


def _written(value: object) -> str:
    if value is None:
        return "off"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}" if not math.isclose(value, round(value)) else str(round(value))
    if isinstance(value, tuple):
        return ",".join(str(part) for part in value)
    return str(value)


def _plain(text: str) -> str:
    return text.replace("`", "")


def _excerpt(text: str) -> str:
    if "://" in text:
        return repr(redact(text))
    return repr(text if len(text) <= 60 else text[:57] + "...")
