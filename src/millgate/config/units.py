"""Quantities and objectives as people write them: "250ms", "8k", "64KiB", `{p99: 2s}`; every refusal says what would have been understood."""

import math
import re
from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

_QUANTILE = re.compile(r"p(\d{2}(?:\.\d{1,3})?)", re.ASCII)
_IN_ONE_WORD = re.compile(r"\s*(p[^:]*):\s*(.*)", re.ASCII)
_LEAST_PERCENT, _MOST_PERCENT = 50.0, 99.9
_HOUR_S = 3600.0
_NUMBER = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))\s*([A-Za-z]*)", re.ASCII)

DURATION_UNITS_S = {"us": 1e-6, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
# Powers of ten for plain letters and powers of two only with the "i": what SI and IEC say.
COUNT_UNITS = {
    "": 1,
    "k": 1000,
    "K": 1000,
    "M": 1000**2,
    "G": 1000**3,
    "Ki": 1024,
    "Mi": 1024**2,
    "Gi": 1024**3,
}
SIZE_UNITS_BYTES = {
    "": 1,
    "B": 1,
    "kB": 1000,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
}


def parse_duration(value: object) -> float:
    """Return seconds for "30s", "250ms", "5m", "1h"; a bare number other than 0 is refused as ambiguous.

    Raises ValueError naming the value and the units.
    """
    amount, unit = _split(value, "a duration", "30s, 250ms, 5m or 1h")
    if unit == "" and amount == 0:
        return 0.0
    if unit == "":
        bare = f"{amount:g}"
        raise ValueError(f"{shown(value)} has no unit: write {bare}s, {bare}ms or {bare}m")
    return amount * _factor(value, unit, DURATION_UNITS_S, "a duration")


def parse_duration_or_never(value: object) -> float | Literal["never"]:
    """Return seconds as `parse_duration` does, or the word; ValueError says that it may be either."""
    if value == "never":
        return "never"
    try:
        return parse_duration(value)
    except ValueError as error:
        raise ValueError(f"{error}, or `never`") from None


def parse_count(value: object) -> int:
    """Return a whole number for 200, "8k" (8,000) or "8Ki" (8,192).

    Raises ValueError naming the value and the suffixes.
    """
    return _whole(value, "a whole number", "200, 8k (8,000) or 8Ki (8,192)", COUNT_UNITS)


def parse_size(value: object) -> int:
    """Return bytes for 512, "64KiB" (65,536) or "256MB" (256,000,000).

    Raises ValueError naming the value and the units.
    """
    return _whole(value, "a size", "512, 64KiB (65,536) or 256MB (256,000,000)", SIZE_UNITS_BYTES)


def parse_number(value: object) -> float:
    """Return a plain finite number; text is accepted where it is only a number.

    Raises ValueError naming the value.
    """
    amount, unit = _split(value, "a number", "0.5 or 12")
    if unit:
        raise ValueError(f"{shown(value)} is not a number: it takes no unit")
    return amount


def format_duration(seconds: float) -> str:
    """Return the shortest text that `parse_duration` reads back as `seconds`."""
    for unit in ("h", "m", "s"):
        if seconds >= DURATION_UNITS_S[unit] and math.isclose(seconds % DURATION_UNITS_S[unit], 0.0):
            return f"{seconds / DURATION_UNITS_S[unit]:g}{unit}"
    if seconds >= 1.0 or seconds == 0:
        return f"{seconds:g}s"
    return f"{seconds * 1000:g}ms" if seconds >= 0.001 else f"{seconds * 1e6:g}us"


def format_size(size_bytes: int) -> str:
    """Return the shortest exact text that `parse_size` reads back as `size_bytes`."""
    for unit in ("GiB", "GB", "MiB", "MB", "KiB", "kB"):
        if size_bytes and size_bytes % SIZE_UNITS_BYTES[unit] == 0:
            return f"{size_bytes // SIZE_UNITS_BYTES[unit]}{unit}"
    return str(size_bytes)


def shown(value: object) -> str:
    """Return what the user wrote, quoted, at most 60 characters of it."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _whole(value: object, what: str, examples: str, units: Mapping[str, int]) -> int:
    amount, unit = _split(value, what, examples)
    total = amount * _factor(value, unit, units, what)
    if not math.isclose(total, round(total), rel_tol=1e-12):  # 1.005k is 1004.9999999999999 in binary
        raise ValueError(f"{shown(value)} is not {what}: it comes to {total:g}")
    return round(total)


def _split(value: object, what: str, examples: str) -> tuple[float, str]:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{shown(value)} is not {what}: write it like {examples}")  # noqa: TRY004 - pydantic reads ValueError
    match = _NUMBER.fullmatch(str(value).strip()) if isinstance(value, str) else None
    if isinstance(value, str) and match is None:
        raise ValueError(f"{shown(value)} is not {what}: write it like {examples}")
    amount, unit = (float(match[1]), match[2]) if match else (float(value), "")
    if not math.isfinite(amount) or amount < 0:
        raise ValueError(f"{shown(value)} is not {what}: it must be finite and not negative")
    return amount, unit


def _factor(value: object, unit: str, units: Mapping[str, float], what: str) -> float:
    factor = units.get(unit)
    if factor is None:
        known = ", ".join(name for name in units if name)
        raise ValueError(f"{shown(value)} is not {what}: unit {unit!r} is not one of {known}")
    return factor


class Objective(NamedTuple):
    """A time, and the share of requests that is to be within it; None where no quantile is named (`2s`), which means p95."""

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
