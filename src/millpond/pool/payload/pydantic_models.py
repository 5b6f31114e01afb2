"""Pydantic models, for those who have them: this library never imports pydantic."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, TypeGuard

import msgspec


class Model(Protocol):
    """As much of a pydantic model as is used here."""

    model_fields: ClassVar[dict[str, Any]]

    @classmethod
    def model_validate_json(cls, json_data: bytes) -> Model:
        """Make one from JSON."""

    def model_dump_json(self, *, by_alias: bool, round_trip: bool, warnings: bool) -> str:
        """Return it as JSON."""


def is_model(kind: type) -> TypeGuard[type[Model]]:
    """Whether a class is a pydantic model (version 2), by its ancestors' names."""
    return hasattr(kind, "model_validate_json") and any(
        base.__name__ == "BaseModel" and base.__module__.partition(".")[0] == "pydantic"
        for base in kind.__mro__
    )


def _is_instance(value: object) -> TypeGuard[Model]:
    return is_model(type(value))


def from_model(value: object) -> msgspec.Raw:
    """Return a model as JSON; anything else is refused, as msgspec asks of an encoding hook."""
    if not _is_instance(value):
        # msgspec knows these, so it can only have met them as a key.
        where = " as a key" if isinstance(value, (bool, frozenset, tuple, type(None))) else ""
        raise TypeError(f"{type(value).__name__} is not a type that JSON can hold{where}")
    # Whatever a warning would say, the comparison with what comes back says louder.
    text = value.model_dump_json(by_alias=True, round_trip=True, warnings=False)
    return msgspec.Raw(text.encode())


def to_model(kind: type, value: object) -> object:
    """Return a model made from decoded JSON; `object` takes the value as it is."""
    if not is_model(kind):
        return value
    # Through JSON once more: only there does pydantic take a list for a set, or text for bytes.
    return kind.model_validate_json(msgspec.json.encode(value))
