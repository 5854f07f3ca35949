"""Several requests for embeddings as one, and its answer as theirs.

Merged are requests that differ in their texts alone: every other member but `user` must be the same, byte for byte. An
answer's `data` is parted by its `index`, which is counted anew for each owner, and its `usage` so that the parts sum up
to the whole.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

_INPUT: Final = "input"
_OWN: Final = frozenset((_INPUT, "user"))
_Members = dict[str, Raw]
_members: Final = msgspec.json.Decoder(_Members)
_list: Final = msgspec.json.Decoder(list[Raw])
_counts: Final = msgspec.json.Decoder(dict[str, Any])
_encode: Final = msgspec.json.Encoder().encode


class TextsRequest(NamedTuple):
    """A request that may be merged: its texts as they stand in its JSON, and everything else; equal `key`s may share a call."""

    key: bytes
    rest: dict[str, Raw]
    texts: tuple[bytes, ...]


def texts_of(body: bytes) -> TextsRequest | None:
    """Read a request whose input is a text or a list of texts; None for any other, tokens and conversations included."""
    try:
        members = _members.decode(body)
        given = bytes(members.get(_INPUT, Raw()))
        texts = tuple(map(bytes, _list.decode(given))) if given[:1] == b"[" else (given,)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not texts or any(text[:1] != b'"' for text in texts):
        return None
    rest = {name: value for name, value in members.items() if name not in _OWN}
    return TextsRequest(
        _encode(sorted((name, bytes(value).decode()) for name, value in rest.items())), rest, texts
    )


def joined(requests: Sequence[TextsRequest]) -> bytes:
    """Return one request with all texts of these, in their order."""
    texts = b"[" + b",".join([text for request in requests for text in request.texts]) + b"]"
    return _encode({**requests[0].rest, _INPUT: Raw(texts)})


def parted(answer: bytes, requests: Sequence[TextsRequest]) -> list[bytes] | None:
    """Return each request's own answer; None for what is no answer to all of them."""
    try:
        whole = _members.decode(answer)
        rows = [_members.decode(row) for row in _list.decode(whole["data"])]
        places = [int(bytes(row["index"])) for row in rows]
        usage = _counts.decode(whole["usage"]) if "usage" in whole else {}
    except (msgspec.DecodeError, RecursionError, KeyError, ValueError):
        return None
    counts = [len(request.texts) for request in requests]
    if sorted(places) != list(range(sum(counts))):
        return None
    by_place = [row for _place, row in sorted(zip(places, rows, strict=True), key=lambda pair: pair[0])]
    usages = _parted_usage(usage, [sum(map(len, request.texts)) for request in requests])
    answers = []
    for count, own_usage in zip(counts, usages, strict=True):
        own = [{**row, "index": place} for place, row in enumerate(by_place[:count])]
        del by_place[:count]
        told = {**whole, "data": own}
        answers.append(_encode({**told, "usage": own_usage} if usage else told))
    return answers


def _parted_usage(usage: dict[str, Any], weights: Sequence[int]) -> list[dict[str, Any]]:
    """Split every count of tokens by these weights; what is no count is the same for all."""
    owners: list[dict[str, Any]] = [dict(usage) for _ in weights]
    for name, total in usage.items():
        if type(total) is int and total >= 0:
            for owner, own in zip(owners, shares(total, weights), strict=True):
                owner[name] = own
    return owners


def shares(total: int, weights: Sequence[int]) -> list[int]:
    """Split a whole number by weights above 0 so that the parts sum up to it: the largest remainders get one more."""
    whole = sum(weights)
    parts = [total * weight // whole for weight in weights]
    remainders = [total * weight % whole for weight in weights]
    order = sorted(range(len(weights)), key=lambda place: (-remainders[place], place))
    for place in order[: total - sum(parts)]:
        parts[place] += 1
    return parts
