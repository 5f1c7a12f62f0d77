"""What people type: JSON and labels, and JSON that they could type."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from msgspec import inspect

from loom_mq.errors import InputError

_DEPTH: Final = 8


def parse_json(text: str, what: str) -> object:
    """Read JSON from the command line.

    Raises:
        InputError: it is none; the sentence says where.
    """
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        shown = text if len(text) <= 60 else text[:59] + "…"
        raise InputError(
            f"{what} {shown!r} is not JSON: {error}; text needs double quotes inside the shell's, "
            "as in '\"text\"'"
        ) from None


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON number")


def parse_labels(pairs: Sequence[str]) -> dict[str, str]:
    """Read ``NAME=VALUE``.

    Raises:
        InputError: one has no ``=``.
    """
    labels = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"--label {pair!r} must be NAME=VALUE")
        labels[name] = value
    return labels


def example_of(annotation: object) -> str:
    """JSON that fits a type, to be copied and changed."""
    try:
        return json.dumps(_example(inspect.type_info(annotation), _DEPTH))
    except (TypeError, NameError):
        return "null"


def _example(info: inspect.Type, depth: int) -> object:
    if depth == 0:
        return None
    match info:
        case inspect.StructType(fields=fields) | inspect.DataclassType(fields=fields):
            return _fields(fields, depth)
        case inspect.TypedDictType(fields=fields):
            return _fields(fields, depth)
        case inspect.CollectionType(item_type=item):
            return [_example(item, depth - 1)]
        case inspect.TupleType(item_types=items):
            return [_example(item, depth - 1) for item in items]
        case inspect.DictType(key_type=key, value_type=value):
            return {str(_example(key, depth - 1)): _example(value, depth - 1)}
        case inspect.UnionType(types=types):
            return _example(types[0], depth - 1)
        case inspect.LiteralType(values=values):
            return next(iter(values))
        case inspect.EnumType(cls=cls):
            return next(iter(cls)).value
        case inspect.Metadata(type=inner):
            return _example(inner, depth)
    return _SIMPLE.get(type(info))


def _fields(fields: Sequence[inspect.Field], depth: int) -> dict[str, object]:
    return {
        field.encode_name: _example(field.type, depth - 1) for field in fields if field.required
    }


_SIMPLE: Final[dict[type[inspect.Type], object]] = {
    inspect.BoolType: True,
    inspect.IntType: 1,
    inspect.FloatType: 1.5,
    inspect.StrType: "text",
    inspect.BytesType: "AAAA",
    inspect.DecimalType: "1.50",
    inspect.DateTimeType: "2030-01-01T12:00:00Z",
    inspect.DateType: "2030-01-01",
    inspect.TimeType: "12:00:00",
    inspect.TimeDeltaType: "PT1M",
    inspect.UUIDType: "00000000-0000-7000-8000-000000000000",
}
