"""Failures that are part of a step's contract (K5)."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, Self, TypeVar, get_args, get_origin

from loom_mq.codec.values import ValueCodec, codec_for
from loom_mq.errors import ConfigurationError
from loom_mq.ids import check_id

T = TypeVar("T")


class TypedFailure(Exception, Generic[T]):  # a failure by name and by nature
    """A failure that a flow is meant to catch: recorded with its payload, rebuilt as is.

    Declare one class per failure, and name it in the step's `failures`::

        class CardDeclined(TypedFailure[DeclineReason], channel="card-declined"):
            '''The bank said no.'''

    On a re-run the step is not called again: the same class is raised with an equal
    payload.

    Args:
        payload: what the flow needs to know; any value of the declared type.
    """

    channel: ClassVar[str] = ""
    payload_codec: ClassVar[ValueCodec]

    def __init_subclass__(cls, *, channel: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.channel = check_id(channel or cls.__name__, f"failure {cls.__name__}: channel")
        for base in getattr(cls, "__orig_bases__", ()):
            if get_origin(base) is TypedFailure:
                argument = get_args(base)[0]
                if isinstance(argument, TypeVar):
                    raise ConfigurationError(
                        f"failure {cls.__name__} must name its payload's type: "
                        f"class {cls.__name__}(TypedFailure[SomeType])"
                    )
                cls.payload_codec = codec_for(argument)
        if not hasattr(cls, "payload_codec"):
            raise ConfigurationError(
                f"failure {cls.__name__} must name its payload's type: "
                f"class {cls.__name__}(TypedFailure[SomeType])"
            )

    def __init__(self, payload: T) -> None:
        super().__init__(payload)
        self.payload = payload

    @classmethod
    def rebuild(cls, data: bytes) -> Self:
        """The failure that was recorded with this payload."""
        failure = cls.__new__(cls)
        payload = cls.payload_codec.decode(data)
        Exception.__init__(failure, payload)
        failure.payload = payload  # type: ignore[assignment]  # decoded by the codec of T
        return failure
