"""Knobs of experiments: fields of a dataclass, set from text."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Record = TypeVar("_Record", bound="DataclassInstance")


def with_knobs(usual: _Record, knobs: Mapping[str, str]) -> _Record:
    """Return a dataclass with these fields set from text; a ValueError names the one that is unknown or unreadable."""
    known = {each.name: type(getattr(usual, each.name)) for each in fields(usual)}
    values = {}
    for name, text in knobs.items():
        if name not in known:
            raise ValueError(f"{name}: not one of {', '.join(known)}")
        try:
            values[name] = known[name](text)
        except ValueError:
            raise ValueError(f"{name}: {text!r} is no {known[name].__name__}") from None
    return replace(usual, **values)
