"""Classes that msgspec does not know, made known by two functions.

Pydantic models are adapted by what they can do, so pydantic need not be installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, get_origin


class TypeAdapter(NamedTuple):
    """How instances of a class become values that can be stored, and come back.

    Attributes:
        encode: takes an instance, returns built-in types, dataclasses or Structs.
        decode: takes the class and what was stored, in which tuples and sets have become
            lists and most scalars may have become text; returns the instance.
    """

    encode: Callable[[Any], object]
    decode: Callable[[type, Any], object]


_registered: dict[type, TypeAdapter] = {}


def register_type_adapter(
    kind: type, encode: Callable[[Any], object], decode: Callable[[type, Any], object]
) -> None:
    """Make a class and its subclasses usable in annotations. Call it before using them.

    Args:
        kind: the class.
        encode: see `TypeAdapter`.
        decode: see `TypeAdapter`; raises ValueError or TypeError for a value that does not fit.
    """
    _registered[kind] = TypeAdapter(encode, decode)


def adapter_of(kind: type) -> TypeAdapter | None:
    """The adapter of a class; None when there is none."""
    for base in kind.__mro__:
        adapter = _registered.get(base)
        if adapter is not None:
            return adapter
    if hasattr(kind, "__pydantic_validator__") and hasattr(kind, "model_validate"):
        return _PYDANTIC
    return None


def _dump_model(model: Any) -> object:
    return model.model_dump(by_alias=True, round_trip=True)


def _load_model(kind: Any, value: object) -> object:
    return kind.model_validate(value)


_PYDANTIC = TypeAdapter(_dump_model, _load_model)


class Hooks:
    """The adapters of the classes that one annotation names, in the form msgspec wants."""

    def __init__(self, adapters: dict[type, TypeAdapter]) -> None:
        self._adapters = adapters

    def encode(self, value: object) -> object:
        """Called for what msgspec cannot encode."""
        adapter = self._adapters.get(type(value))
        if adapter is None:
            raise TypeError(f"objects of type {type(value).__name__} cannot be stored here")
        return adapter.encode(value)

    def decode(self, kind: type, value: object) -> object:
        """Called for a class that msgspec cannot decode to."""
        real = get_origin(kind) or kind
        adapter = self._adapters.get(real)
        return value if adapter is None else adapter.decode(real, value)
