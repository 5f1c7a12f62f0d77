"""Where in a value something cannot be stored, and why. Looked for only after a failure."""

from __future__ import annotations

import dataclasses
import enum
import inspect
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import msgspec

from loom_mq.codec.shapes import name_of
from loom_mq.codec.tagged import CONTAINERS, MAX_DEPTH, MAX_INT_BITS, SCALARS

_MAX_LOOKED_AT: Final = 200_000

_BUILT_IN: Final = (str, int, float, bytes, list, dict, tuple, set, frozenset)
_CONTAINERS: Final = (list, dict, tuple, set, frozenset)


BOXED: Final = "loom__value"
"""Field of the struct that holds a value while it is converted; not part of its place."""


class Fault(NamedTuple):
    """One thing that cannot be stored.

    Attributes:
        where: its place, such as ``$.items[3].price``.
        reason: what it is and what to do.
    """

    where: str
    reason: str


def find_fault(value: object, *, exact: bool, fits: Callable[[object], bool]) -> Fault | None:
    """The first part of `value` that cannot be stored.

    Args:
        value: what could not be encoded.
        exact: no class is known beforehand, so only built-in types themselves are good.
        fits: whether an object that is no container and no class with fields can be stored.

    Returns:
        None when nothing was found, or nothing within a bounded search.
    """
    return _Search(exact, fits).look(value, "$", frozenset())


class _Search:
    def __init__(self, exact: bool, fits: Callable[[object], bool]) -> None:
        self._exact = exact
        self._fits = fits
        self._left = _MAX_LOOKED_AT

    def look(self, value: object, where: str, above: frozenset[int]) -> Fault | None:
        self._left -= 1
        if self._left < 0:
            return None
        if isinstance(value, str):
            return _look_at_text(value, where, self._exact)
        if isinstance(value, int) and value.bit_length() > MAX_INT_BITS:
            return Fault(where, f"a whole number of more than {MAX_INT_BITS} bits")
        kind = type(value)
        if self._exact and kind not in CONTAINERS:
            return None if kind in SCALARS else Fault(where, why_not(value))
        parts = _parts(value, where)
        if parts is None:
            return None if self._fits(value) else Fault(where, why_not(value))
        if id(value) in above:
            return Fault(where, "it contains itself; return a copy without the loop")
        if len(above) >= MAX_DEPTH:
            return Fault(
                where[:60] + "…",
                f"nested deeper than {MAX_DEPTH} levels; flatten it or store a part",
            )
        within = above | {id(value)}
        for place, part in parts:
            fault = self.look(part, place, within)
            if fault is not None:
                return fault
        return None


def _look_at_text(value: str, where: str, exact: bool) -> Fault | None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        return Fault(
            where,
            f"the text has a lone surrogate at index {error.start}, which is no character; "
            "decode its bytes with the right encoding, or store the bytes",
        )
    if type(value) is str or (isinstance(value, enum.Enum) and not exact):
        return None
    return Fault(where, why_not(value))


def _parts(value: object, where: str) -> Iterator[tuple[str, object]] | None:
    """The parts of a value with their places; None when it has none."""
    if isinstance(value, dict):
        return _parts_of_dict(value, where)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return ((f"{where}.{name}", part) for name, part in zip(value._fields, value, strict=False))
    if isinstance(value, _CONTAINERS):
        return ((f"{where}[{index}]", part) for index, part in enumerate(value))
    names: tuple[str, ...]
    if isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = tuple(field.name for field in dataclasses.fields(value))
    else:
        return None
    return ((f"{where}.{name}", getattr(value, name)) for name in names if hasattr(value, name))


def _parts_of_dict(value: dict[object, object], where: str) -> Iterator[tuple[str, object]]:
    for key, part in value.items():
        plain = type(key) is str and key.isidentifier() and key.isascii()
        yield f"{where} key {shown(key)}", key
        yield f"{where}.{key}" if plain else f"{where}[{shown(key)}]", part


def shown(value: object) -> str:
    """A short, printable picture of a key; never raises."""
    if type(value) in (str, bytes):
        text = ascii(value[:40])  # type: ignore[index]  # by its exact type
    elif type(value) in (int, float, bool, type(None)):
        text = repr(value) if type(value) is not int or value.bit_length() < 200 else "a big int"
    else:
        text = f"<{type(value).__name__}>"
    return text[:60]


def why_not(value: object) -> str:
    """What an object is, why it cannot be stored there, and what to do."""
    kind = type(value)
    name = kind.__name__
    if inspect.isawaitable(value):
        return f"`{name}` is a result still to come: await it and return what it gives"
    if inspect.isgenerator(value) or inspect.isasyncgen(value) or hasattr(value, "__next__"):
        return f"`{name}` can be read only once; return a list of its items"
    if isinstance(value, BaseException):
        return f"`{name}` is an exception; raise it, or return its text"
    if isinstance(value, type):
        return f"it is the class `{value.__name__}` itself; return an instance or its name"
    has_fields = (
        isinstance(value, msgspec.Struct | enum.Enum)
        or dataclasses.is_dataclass(value)
        or hasattr(value, "_fields")
        or hasattr(value, "model_validate")
    )
    if has_fields:
        return (
            f"`{name}` would come back as something else, because no annotation names it; "
            "annotate the place (the step's or flow's return type, the flow's input, `type=`)"
        )
    for base in _BUILT_IN:
        if isinstance(value, base):
            return f"`{name}` would come back as `{base.__name__}`; convert it to that first"
    if callable(value):
        return f"`{name}` is code, not a value"
    return f"`{name}` cannot be stored; return plain data, a dataclass or a Struct instead"


def told_by(error: Exception, annotation: object) -> Fault:
    """Place and reason as msgspec, or code that it called, tells them.

    Args:
        error: what was raised.
        annotation: what the value should have been.
    """
    if isinstance(error, RecursionError):
        return Fault("$", f"nested deeper than {MAX_DEPTH} levels, or it contains itself")
    # msgspec says: ... - at `$.items[3].price`
    reason, marker, place = _text_of(error).rpartition(" - at `")
    if not marker:
        reason, place = place, "$"
    if isinstance(error, msgspec.ValidationError):
        reason = f"{reason}, so it does not fit `{name_of(annotation)}`"
    elif not isinstance(error, ValueError | msgspec.MsgspecError):
        reason = f"{type(error).__name__}: {reason}"
    return Fault(place.replace("`", "").replace(f"$.{BOXED}", "$", 1), reason)


def _text_of(error: Exception) -> str:
    try:
        return str(error)[:1000]
    except Exception:
        return type(error).__name__
