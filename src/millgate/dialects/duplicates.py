"""Does a JSON object name a field twice, or one that only the gate and trusted peers may send?

Every fast parser keeps the last of two equal keys, silently; an engine behind the gate may keep the first. Two
readings of one body are a way around a limit, so the few fields that limits hang on may appear once only.

Reserved fields tell an engine whose KV cache to read, where to write its own, and which session to go on with. A client that
could send them could read another client's prompt.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec import Raw, ValidationError

from millgate.dialects.arrays import read_keys
from millgate.dialects.contract import BadInputError

_LLAMAS = ("n_cmpl", "n_predict")
FIELDS = ("model", "stream", "max_tokens", "max_completion_tokens", "min_tokens", "ignore_eos", "n", *_LLAMAS)

_RESERVED: Final = (
    "session_params",
    "disaggregated_params",
    "migration_request",
    "with_cache",
    "preserve_cache",
)
"""SGLang's sessions; TensorRT-LLM's hand-over of a KV cache (`DisaggregatedParams`); LMDeploy's, and what keeps a cache there for one."""
_TRANSFER: Final = "_transfer_params"
"""vLLM's and its kin's hand-over: `kv_transfer_params` of prompts, `ec_transfer_params` of pictures."""
_RESERVED_PREFIX: Final = "bootstrap_"
"""SGLang's hand-over: `bootstrap_host`, `bootstrap_port`, `bootstrap_room`."""
_RESERVED_SIGNS: Final = (b'_params"', b'"bootstrap_', b'_cache"', b'"migration_request"')
"""One of them stands in every body that names such a field without an escape."""
_EXTRAS: Final = "vllm_xargs"
"""vLLM copies its members to where it looks for the hand-over (`to_sampling_params` of its protocol classes)."""

_SHOWN_CHARS: Final = 64
"""So much of a reserved field's name is told: what ends or begins as one may be as long as the body."""

MOST_MEMBERS: Final = 4_096
"""How many fields a body that has to be looked at again may have: providers document some forty."""
_LONG_BYTES: Final = 65_536
"""Beyond this one more reading takes less time than a search for each name."""
# An escaped letter or underscore: no encoder writes one, but "mod\u0065l" is a second "model".
_ESCAPED_LETTER = re.compile(rb"\\u00(?:5[fF]|[64][1-9a-fA-F]|[75][0-9aA])")


class Found(NamedTuple):
    """What is wrong with the fields of a body: one that is there twice, and a reserved one; empty for none."""

    twice: str = ""
    reserved: str = ""


_NOTHING: Final = Found()


class FieldGuard:
    """Watches over the fields of one kind of request."""

    def __init__(self, fields: tuple[str, ...]) -> None:
        self._fields = fields
        self._names = tuple(f'"{field}"'.encode() for field in fields)

    def find(self, body: bytes, arrays: Sequence[Raw] = ()) -> Found:
        """Return the guarded field that this valid JSON object names more than once, and a reserved one; BadInputError for a flood.

        `arrays` are values of its other fields, in which nothing needs to be looked at.

        A count of each quoted name decides nearly always; only bodies in which one of them stands twice, or a reserved one
        may stand, are looked at again.
        """
        if len(body) - sum(map(len, arrays), 0) > _LONG_BYTES:
            return self._look_again(body)
        outside = _outside(body, arrays)
        if outside.find(b"\\u00") >= 0 and _ESCAPED_LETTER.search(outside):
            return self._look_again(body)
        for sign in _RESERVED_SIGNS:
            if outside.find(sign) >= 0:
                return self._look_again(body)
        for quoted in self._names:
            if outside.count(quoted) > 1:
                return self._look_again(body)
        return _NOTHING

    def _look_again(self, body: bytes) -> Found:
        """Count the object's own keys as a parser reads them, without keeping any of it."""
        counts = dict.fromkeys(self._fields, 0)
        left = MOST_MEMBERS
        reserved, extras = "", False

        def note(key: str) -> None:
            nonlocal left, reserved, extras
            left -= 1
            if left < 0:
                raise ValueError("too many members")
            if key in counts:
                counts[key] += 1
            elif key in _RESERVED or key.endswith(_TRANSFER) or key.startswith(_RESERVED_PREFIX):
                reserved = key[:_SHOWN_CHARS]
            elif key == _EXTRAS:
                extras = True

        try:
            read_keys(body, note)
        except ValidationError:
            raise BadInputError(f"body: an object of at most {MOST_MEMBERS} fields is expected") from None
        if extras and not reserved and (name := _handed_over(body)):
            reserved = f"{_EXTRAS}.{name}"
        return Found(next((field for field, count in counts.items() if count > 1), ""), reserved)


_extras: Final = msgspec.json.Decoder(msgspec.defstruct("Extras", [(_EXTRAS, Raw)]))


def _handed_over(body: bytes) -> str:
    """Return the hand-over that the extras of this body name, nothing if none; extras that are no object are the engine's to refuse."""
    names = [""]

    def note(key: str) -> None:
        if key.endswith(_TRANSFER):
            names.append(key[:_SHOWN_CHARS])

    try:
        read_keys(bytes(getattr(_extras.decode(body), _EXTRAS)), note)
    except ValidationError:
        return ""
    return names[-1]


def _outside(body: bytes, arrays: Sequence[Raw]) -> bytes:
    """Return the body without these arrays, as far as they can be found at once."""
    if len(arrays) == 1:
        begin, end = body.find(b"["), body.rfind(b"]") + 1
        if end - begin == len(arrays[0]):  # from the first bracket to the last: no other array is as long
            return body[:begin] + body[end:]
    return _cut(body, [bytes(array) for array in arrays])


def _cut(body: bytes, arrays: list[bytes]) -> bytes:
    """Cut out arrays from the left, as long as it is one of them that begins at the next bracket.

    Should that bracket be part of a string, what is cut out may begin and end inside strings. No name is lost then:
    what the body reads as strings there is what stands between an array's strings, which is no letter of a name but
    those of true, false and null.
    """
    pieces: list[bytes] = []
    at = 0
    begin = body.find(b"[")
    while begin >= 0:
        found = next((array for array in arrays if body.startswith(array, begin)), None)
        if found is None:
            break
        arrays.remove(found)
        pieces.append(body[at:begin])
        at = begin + len(found)
        begin = body.find(b"[", at)
    return b"".join((*pieces, body[at:])) if pieces else body


COMMON: Final = FieldGuard(FIELDS)
"""The guard of the fields that chat completions, completions and messages have in common."""
