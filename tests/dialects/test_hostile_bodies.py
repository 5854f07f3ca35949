"""Bodies made to be slow to read: none costs much more than a parser and a few searches need for its length."""

import time
from collections.abc import Callable
from typing import Final

import msgspec
import pytest

from millgate.dialects import dialect_of
from millgate.dialects.contract import BadInputError, RequestFacts
from millgate.dialects.duplicates import COMMON, MOST_MEMBERS
from millgate.dialects.media import MEDIA_TOKENS, MOST_TYPED, measure

SIZE_BYTES: Final = 8 * 1024 * 1024
LARGEST_BYTES: Final = 32 * 1024 * 1024
"""The default of `limits.body`."""
MESSAGES: Final = b'"messages":[{"role":"user","content":"x"}]'
CHAT: Final = b"/v1/chat/completions"
SEARCHES: Final = 11
MARGIN: Final = 3
_PARSER: Final = msgspec.json.Decoder(msgspec.Raw)


def flood(before: bytes, unit: bytes, behind: bytes) -> bytes:
    return before + unit * ((SIZE_BYTES - len(before) - len(behind)) // len(unit)) + behind


HOSTILE: Final = {
    "empty data in an array": flood(b'{"a":[', b'{"data":""},', b'0],"type":0,' + MESSAGES + b"}"),
    "empty data side by side": flood(b'{"type":0,', b'"data":"",', MESSAGES + b"}"),
    "data URLs of nothing": flood(b'{"type":0,"x":"', b";base64,", b'",' + MESSAGES + b"}"),
    "one name again and again": flood(b"{", b'"model":"",', MESSAGES + b"}"),
    "a name twice among many": flood(b'{"model":"","model":"",', b'"":0,', MESSAGES + b"}"),
    "many small names": flood(b"{", b'"":0,', MESSAGES + b"}"),
    "typed parts": flood(b'{"x":[', b'{"type":"file"},', b"{}]," + MESSAGES + b"}"),
    "typed parts of text": flood(b'{"x":[', b'{"type":"text"},', b"{}]," + MESSAGES + b"}"),
    "typed parts as messages": flood(b'{"messages":[', b'{"type":"file"},', b"{}]}"),
    "messages": flood(b'{"messages":[', b"{},", b"{}]}"),
    "numbers as messages": flood(b'{"messages":[', b"0,", b"0]}"),
    "arrays": flood(b'{"x":[', b"[],", b"0]," + MESSAGES + b"}"),
    "white space": flood(b"{", b" ", MESSAGES + b"}"),
    "escaped letters": flood(b'{"x":"', b"\\u0061", b'",' + MESSAGES + b"}"),
    "a long escaped name": flood(b'{"', b"\\u0061", b'":0,' + MESSAGES + b"}"),
    "emoji": flood(b'{"x":"', "\N{GRINNING FACE}".encode(), b'",' + MESSAGES + b"}"),
    "biases": flood(b'{"logit_bias":{', b'"":0,', b'"":0},' + MESSAGES + b"}"),
    "tools": flood(b'{"tools":[', b"{},", b"{}]," + MESSAGES + b"}"),
}


def read(body: bytes) -> RequestFacts | None:
    """Read a chat request as the door does; None for a body that is refused."""
    try:
        return dialect_of(CHAT, names_anthropic=False).readers[CHAT](body)
    except BadInputError:
        return None


def cpu_s(work: Callable[[], object]) -> float:
    """Return the least CPU time of three runs."""
    times = []
    for _ in range(3):
        begun = time.thread_time()
        work()
        times.append(time.thread_time() - begun)
    return min(times)


def needed_s(body: bytes) -> float:
    """Return what a parser and a few searches need for this body."""
    return cpu_s(lambda: _PARSER.decode(body)) + SEARCHES * cpu_s(lambda: body.find(b'"no such name"'))


def test_no_hostile_body_costs_much_more_than_its_length() -> None:
    """Prints how long each would hold the loop at the largest size, in CPU time."""
    ratios = {}
    for name, body in HOSTILE.items():
        queued_s = cpu_s(lambda body=body: read(body))  # type: ignore[misc]  # mypy cannot infer the default
        ratios[name] = queued_s / needed_s(body)
        print(f"{name:28} {1000 * queued_s * LARGEST_BYTES / SIZE_BYTES:8.1f} ms  {ratios[name]:5.2f}")  # noqa: T201 - the table is for people
    assert {name: ratio for name, ratio in ratios.items() if ratio > MARGIN} == {}


def test_a_body_with_a_name_twice_and_a_flood_of_others_is_refused_early() -> None:
    others = b'"x":0,' * MOST_MEMBERS
    with pytest.raises(BadInputError, match=f"at most {MOST_MEMBERS} fields"):
        COMMON.find(b'{"model":1,"model":2,' + others + b'"y":0}')
    assert COMMON.find(b'{"model":1,"model":2,' + others[:-18] + b'"y":0}').twice == "model"


def test_a_flood_of_typed_parts_is_refused_and_pictures_beyond_thousands_still_count() -> None:
    part = b'{"type":"image"},'
    assert measure(b"[" + part * MOST_TYPED + b"0]")[0] == MEDIA_TOKENS * MOST_TYPED
    with pytest.raises(BadInputError, match=f"at most {MOST_TYPED} parts"):
        measure(b"[" + part * (MOST_TYPED + 1) + b"0]")
    mixed = b'[{"type":"text"},{"type" : "image_url"},{"type":"images"},{"type":"file"}]'
    assert measure(mixed)[0] == 2 * MEDIA_TOKENS
