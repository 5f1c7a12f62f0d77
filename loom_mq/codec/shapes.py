"""What an annotation consists of, as far as the choice of a stored form depends on it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Final, Never, NoReturn

import msgspec
from msgspec import inspect as mi

from loom_mq.codec.adapters import TypeAdapter, adapter_of
from loom_mq.errors import ConfigurationError

_UNTYPED: Final = (Any, object, inspect.Parameter.empty, Never, NoReturn)

_SORTABLE: Final = (mi.StrType, mi.IntType, mi.BytesType, mi.UUIDType, mi.DateType)

_REMEDY: Final = (
    "use a dataclass, a msgspec Struct, a TypedDict, a NamedTuple, an Enum of texts or of "
    "integers, or built-in types, or leave the annotation out"
)


class Shape(msgspec.Struct, frozen=True):
    """See the module's docstring.

    Attributes:
        untyped: nothing is declared at all.
        opaque: some part is declared as Any.
        timed: some part is a datetime.
        clock: some part is a time of day.
        classes: some part is an instance of a class (not a TypedDict).
        recursive: values may be nested without a bound.
        sorts: it has sets, whose order differs from process to process, and they can be
            sorted without touching the order of a dict.
        adapters: the classes in it that msgspec does not know.
    """

    untyped: bool = False
    opaque: bool = False
    timed: bool = False
    clock: bool = False
    classes: bool = False
    recursive: bool = False
    sorts: bool = False
    adapters: dict[type, TypeAdapter] = {}


def shape_of(annotation: object) -> Shape:
    """Look at an annotation.

    Raises:
        ConfigurationError: values of it cannot be stored; says which type and what to use.
    """
    if any(annotation is untyped for untyped in _UNTYPED):
        return Shape(untyped=True, opaque=True)
    try:
        root = mi.type_info(annotation)
        msgspec.msgpack.Decoder(annotation)
    except (TypeError, NameError, ValueError, NotImplementedError, RecursionError) as error:
        raise _unusable(annotation, str(error)) from error
    look = _Look(annotation)
    look.at(root, ())
    untyped = isinstance(root, mi.AnyType) or _is_object(root)
    return Shape(
        untyped=untyped,
        opaque=look.opaque,
        timed=look.timed,
        clock=look.clock,
        classes=look.classes,
        recursive=look.recursive,
        sorts=look.sets and not look.unsortable,
        adapters=look.adapters,
    )


def name_of(annotation: object) -> str:
    """How an annotation reads in a sentence."""
    if isinstance(annotation, type) and not hasattr(annotation, "__args__"):
        return annotation.__qualname__
    return repr(annotation)[:200]


def _unusable(annotation: object, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"values of type `{name_of(annotation)}` cannot be stored: {why}; {_REMEDY}"
    )


def _is_object(info: mi.Type) -> bool:
    return isinstance(info, mi.CustomType) and info.cls is object


class _Look:
    """One walk through an annotation's parts."""

    def __init__(self, annotation: object) -> None:
        self._annotation = annotation
        self._seen: set[int] = set()
        self.opaque = False
        self.timed = False
        self.clock = False
        self.classes = False
        self.recursive = False
        self.sets = False
        self.unsortable = False
        self.adapters: dict[type, TypeAdapter] = {}

    def at(self, info: mi.Type, above: tuple[int, ...]) -> None:
        self.recursive |= id(info) in above
        if id(info) in self._seen:
            return
        self._seen.add(id(info))
        if isinstance(info, mi.AnyType) or _is_object(info):
            self.opaque = True
        elif isinstance(info, mi.CustomType):
            self._adapt(info.cls)
        elif isinstance(info, mi.DateTimeType):
            self.timed = True
        elif isinstance(info, mi.TimeType):
            self.clock = True
        elif isinstance(info, mi.StructType | mi.DataclassType | mi.NamedTupleType | mi.EnumType):
            self.classes = True
        elif isinstance(info, mi.SetType | mi.FrozenSetType):
            self.sets = True
            self.unsortable |= not isinstance(info.item_type, _SORTABLE)
        self.unsortable |= isinstance(info, mi.DictType | mi.TypedDictType)
        for part in _parts(info):
            self.at(part, (*above, id(info)))

    def _adapt(self, kind: type) -> None:
        adapter = adapter_of(kind)
        if adapter is None:
            raise _unusable(
                self._annotation, f"`{kind.__module__}.{kind.__qualname__}` is unknown to msgspec"
            )
        self.adapters[kind] = adapter


def _parts(info: mi.Type) -> Iterator[mi.Type]:
    if isinstance(info, mi.CollectionType):
        yield info.item_type
    elif isinstance(info, mi.DictType):
        yield info.key_type
        yield info.value_type
    elif isinstance(info, mi.TupleType):
        yield from info.item_types
    elif isinstance(info, mi.UnionType):
        yield from info.types
    elif isinstance(info, mi.Metadata):
        yield info.type
    elif isinstance(info, mi.StructType | mi.DataclassType | mi.NamedTupleType | mi.TypedDictType):
        for field in info.fields:
            yield field.type
