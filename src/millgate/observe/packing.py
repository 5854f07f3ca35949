"""Steps to bytes and back: many at once, sequentially written, nothing in them for the garbage collector.

Records are written field by field, without the names of the fields. The form is MessagePack (https://msgpack.org), and JSON for
the rare batch with a value that MessagePack has no form for, an integer beyond 64 bits or half of a surrogate pair. The
first byte tells them apart: JSON's `[` would be a number in MessagePack.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from millgate.core.decisions import (
    Admit,
    Cancel,
    Candidate,
    Cause,
    Classed,
    Decision,
    Ended,
    Leg,
    Queue,
    QuotaState,
    Reshaped,
    Yield,
)
from millgate.core.words import ClassedBy, Counted, FailureKind, Outcome, QuotaKind, Reason, Stage

_Kind = type[Admit | Queue | Yield | Cancel | Ended]
_JSON: Final = ord("[")
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode
_OUTCOMES: Final = {word.value: word for word in Outcome}
_REASONS: Final = {word.value: word for word in Reason}
_CAUSES: Final[dict[str, Cause]] = {
    word.value: word for words in (Stage, FailureKind, Reason) for word in words
}
"""No two of these lists have a word in common, and outcomes have none with reasons."""


def _legs(packed: list[list[Any]]) -> tuple[Leg, ...]:
    return tuple([Leg._make(fields) for fields in packed])


def _candidates(packed: list[list[Any]]) -> tuple[Candidate, ...]:
    return tuple([Candidate._make(fields) for fields in packed])


def _quota(packed: list[list[Any]]) -> tuple[QuotaState, ...]:
    return tuple([QuotaState(rule, QuotaKind(kind), *numbers) for rule, kind, *numbers in packed])


def _classed(packed: list[Any]) -> Classed:
    lane, by, *numbers = packed
    return Classed(lane, ClassedBy(by), *numbers)


_READERS: Final[dict[_Kind, dict[str, Callable[[Any], Any]]]] = {
    Admit: {
        "legs": _legs,
        "would": _REASONS.get,
        "reshaped": Reshaped._make,
        "quota": _quota,
        "classed": _classed,
        "candidates": _candidates,
    },
    Queue: {"classed": _classed, "candidates": _candidates, "counted": Counted},
    Yield: {"reason": _REASONS.get, "quota": _quota, "counted": Counted, "classed": _classed},
    Cancel: {"reason": _REASONS.get},
    Ended: {"outcome": _OUTCOMES.get, "cause": _CAUSES.get},
}
"""What makes those fields again that are not packed as what they are; words by a table, as their lists are slow."""
_PLACES: Final = {
    kind: [(kind._fields.index(name), read) for name, read in readers.items()]
    for kind, readers in _READERS.items()
}


def pack(steps: Sequence[object]) -> bytes:
    """Return these steps as bytes, whatever strings are in them, and numbers of up to the 4,300 digits that Python reads."""
    try:
        return _encode(steps)
    except (OverflowError, UnicodeEncodeError):
        return json.dumps(steps).encode()


def unpack(packed: bytes) -> list[list[Any]]:
    """Return the steps again, records and tuples as lists, words of closed lists as strings."""
    found: list[list[Any]] = json.loads(packed) if packed[0] == _JSON else _decode(packed)
    return found


def may_name(packed: bytes, attempt: int) -> bool:
    """Return whether these steps may be about an attempt; False is certain, and much quicker to know than `unpack`."""
    return str(attempt).encode() in packed if packed[0] == _JSON else _encode(attempt) in packed


def unpack_decision(packed: Sequence[Any]) -> Decision:
    """Return a decision as it was made."""
    kind, fields = _kind(packed), list(packed)
    for place, read in _PLACES[kind]:
        value = fields[place]
        if value is not None:
            fields[place] = read(value)
    return kind._make(fields)


def _kind(packed: Sequence[Any]) -> _Kind:
    """Return what these are the fields of; after the attempt come legs, a place, an outcome or a reason."""
    second = packed[1]
    if isinstance(second, list):
        return Admit
    if isinstance(second, int):
        return Queue
    if second in _OUTCOMES:
        return Ended
    return Cancel if len(packed) == len(Cancel._fields) else Yield
