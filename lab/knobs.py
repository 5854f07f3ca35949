"""Knobs of experiments, fields of a dataclass that are set from text, and numbers on command lines: each within its limit."""

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from millgate.engine.profile import load_profiles

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Value = TypeVar("_Value")
_Record = TypeVar("_Record", bound="DataclassInstance")


class KnobLimit(NamedTuple):
    """What a knob may be, in words, and whether a value is that."""

    words: str
    allows: Callable[[Any], bool]


def at_least(least: float) -> KnobLimit:
    """A finite number from here on."""
    return KnobLimit(f"at least {least:g}", lambda value: least <= value < inf)


def one_of(*values: Any) -> KnobLimit:
    """One of these and nothing else."""
    return KnobLimit(f"one of {', '.join(map(str, values))}", values.__contains__)


ABOVE_0: Final = KnobLimit("above 0", lambda value: 0.0 < value < inf)
SHARE: Final = KnobLimit("a share from 0 to 1", lambda value: 0.0 <= value <= 1.0)
FINITE: Final = KnobLimit("a number", lambda value: -inf < value < inf)
PROFILE: Final = one_of(*sorted(load_profiles()))
FILE: Final = KnobLimit("a file", lambda path: path.is_file())
ANY: Final = KnobLimit("anything", lambda _value: True)

# The part of an engine's KV tokens that a gate fills (`sim.fleet`).
_HELD_SHARE: Final = 0.9

Limits = Mapping[str, KnobLimit]
"""The fields that can be set, and within which limits; the others are set by the series of a picture."""


def with_knobs(usual: _Record, knobs: Mapping[str, str], limits: Limits) -> _Record:
    """Return a dataclass with these fields set from text; a ValueError names the one that is unknown, unreadable or beyond its limit."""
    values = {}
    for name, text in knobs.items():
        if name not in limits:
            raise ValueError(f"{name}: not one of {', '.join(limits)}")
        kind = type(getattr(usual, name))
        try:
            values[name] = kind(text)
        except ValueError:
            raise ValueError(f"{name}: {text!r} is no {kind.__name__}") from None
        check(name, values[name], limits[name])
    return replace(usual, **values)


def check(name: str, value: Any, limit: KnobLimit) -> None:
    """Raise a ValueError that names the knob where it is beyond its limit."""
    if not limit.allows(value):
        raise ValueError(f"{name}: must be {limit.words}, got {value!r}")


def check_fits(name: str, tokens: float, profile: str, kv_tokens: int = 0) -> None:
    """Raise a ValueError where an engine of this profile, or with so many KV tokens, never holds a request of this size."""
    most = int(_HELD_SHARE * (kv_tokens or load_profiles()[profile].kv_tokens))
    words = f"at most {most} with its answer, the KV tokens that a gate lets into an engine of {profile}"
    check(name, tokens, KnobLimit(words, lambda value: value <= most))


def check_longer(name: str, lasts_s: float, least_s: float, what: str) -> None:
    """Raise a ValueError where a run is over before anything of it is counted."""
    check(name, lasts_s, KnobLimit(f"above {what} ({least_s:g})", lambda value: value > least_s))


def within(kind: Callable[[str], _Value], limit: KnobLimit) -> Callable[[str], _Value]:
    """Return the `type` of an argument of argparse that is refused beyond this limit."""

    def read(text: str) -> _Value:
        try:
            value = kind(text)
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is no {kind.__name__}") from None
        if not limit.allows(value):
            raise ArgumentTypeError(f"must be {limit.words}, got {text}")
        return value

    return read


def asked_seeds(arguments: list[str], program: str, description: str | None, **usual: int) -> range:
    """Return the seeds that a command line asks for: how many `seeds`, and the `first`, in the order in which these are given with what is usual."""
    least = {"seeds": 1, "first": 0}
    parser = ArgumentParser(prog=program, description=description)
    for name, number in usual.items():
        kind = within(int, at_least(least[name]))
        parser.add_argument(name, nargs="?", type=kind, default=number, help=f"({number})")
    asked = parser.parse_args(arguments)
    return range(asked.first, asked.first + asked.seeds)
