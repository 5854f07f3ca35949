"""Objectives as people write them: `2s`, or with the quantile that it is promised at, `{p99: 2s}` (`p99:2s` in one word)."""

import re
from collections.abc import Mapping
from typing import Annotated, NamedTuple

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from millgate.config.units import format_duration, parse_duration, shown

_QUANTILE = re.compile(r"p(\d{2}(?:\.\d{1,3})?)", re.ASCII)
_IN_ONE_WORD = re.compile(r"\s*(p[^:]*):\s*(.*)", re.ASCII)
_LEAST_PERCENT, _MOST_PERCENT = 50.0, 99.9
_HOUR_S = 3600.0


class Objective(NamedTuple):
    """A time, and the share of requests that is to be within it; None where no quantile is named, which means p95."""

    time_s: float
    share: float | None = None


class ObjectiveWithin(NamedTuple):
    """Reads objectives of at most `most_s` seconds."""

    most_s: float

    def __call__(self, value: object) -> Objective:
        """Return what "2s", {"p99": "2s"} or "p99:2s" says; ValueError naming the value and what is allowed."""
        if isinstance(value, Objective):
            return value
        match = _IN_ONE_WORD.fullmatch(value) if isinstance(value, str) else None
        if match is not None:
            value = {match[1].strip(): match[2]}
        if not isinstance(value, Mapping):
            return Objective(self._time_s(value))
        if len(value) != 1:
            raise ValueError(f"must name one quantile, as in {{p99: 2s}}, not {len(value)}")
        ((name, time),) = value.items()
        return Objective(self._time_s(time), parse_quantile(name))

    def _time_s(self, value: object) -> float:
        time_s = parse_duration(value)
        if not time_s > 0.0:
            raise ValueError(f"must be more than 0s, not {shown(value)}")
        if time_s > self.most_s:
            raise ValueError(f"must be at most {format_duration(self.most_s)}, not {shown(value)}")
        return time_s


def parse_quantile(name: object) -> float:
    """Return 0.99 for "p99"; ValueError naming the value and the limits for anything but p50 to p99.9."""
    match = _QUANTILE.fullmatch(name) if isinstance(name, str) else None
    percent = float(match[1]) if match is not None else 0.0
    if not _LEAST_PERCENT <= percent <= _MOST_PERCENT:
        raise ValueError(f"{shown(name)} is not a quantile from p50 to p99.9: write {{p99: 2s}}")
    return round(percent / 100.0, 6)


def format_objective(objective: Objective) -> str:
    """Return the shortest text that says the same: `2s`, `p99:2s`."""
    time = format_duration(objective.time_s)
    return time if objective.share is None else f"p{100.0 * objective.share:g}:{time}"


def _as_data(objective: Objective) -> float | dict[str, float]:
    """Return seconds, by the quantile where one is named."""
    if objective.share is None:
        return objective.time_s
    return {f"p{100.0 * objective.share:g}": objective.time_s}


_TIME_SCHEMA = {"type": ["string", "number"], "pattern": r"^(p\d\d(\.\d{1,3})?: ?)?\d+(\.\d+)?(us|ms|s|m|h)$"}
_SCHEMA = WithJsonSchema(
    {
        "anyOf": [
            _TIME_SCHEMA,
            {
                "type": "object",
                "patternProperties": {r"^p[5-9]\d(\.\d{1,3})?$": _TIME_SCHEMA},
                "additionalProperties": False,
                "minProperties": 1,
                "maxProperties": 1,
            },
        ],
        "examples": ["2s", {"p99": "2s"}],
    }
)
TtftObjective = Annotated[
    Objective, PlainValidator(ObjectiveWithin(24.0 * _HOUR_S)), PlainSerializer(_as_data), _SCHEMA
]
TpotObjective = Annotated[
    Objective, PlainValidator(ObjectiveWithin(60.0)), PlainSerializer(_as_data), _SCHEMA
]
