"""Token counts as engines report them: found by pattern in the last bytes of an answer, and believed within reason."""

import re
from typing import Final

from msgspec import Raw

from millgate.dialects.contract import MOST_TOKENS, UNREADABLE
from millgate.dialects.openai_bodies import PROMPT_DETAILS

_CACHED: Final = re.compile(rb'"cached_tokens"\s*:\s*(\d{1,8})[,}\s]')
_LEAST_DETAILS_BYTES: Final = len('{"cached_tokens":0}')


def cached(details: Raw) -> int | None:
    """Return the cached tokens in OpenAI's details of a prompt, None where there are none to read.

    The details are read apart, so that an unexpected shape costs this number and no other.
    """
    if len(details) < _LEAST_DETAILS_BYTES:
        return None
    try:
        return sane(PROMPT_DETAILS.decode(details).cached_tokens)
    except UNREADABLE:
        return None


def find_cached(answer: bytes, start: int) -> int | None:
    """Return the cached tokens that stand at or after `start`, None without any: most answers have none."""
    at = answer.find(b'"cached_tokens"', start)
    return None if at < 0 else count(_CACHED, answer, at)


def sane(tokens: int | None) -> int | None:
    """Return the count, None when it is missing, negative or absurd."""
    return tokens if tokens is not None and 0 <= tokens <= MOST_TOKENS else None


def count(pattern: re.Pattern[bytes], answer: bytes, start: int) -> int | None:
    """Return the number in the pattern's first match at or after `start`, None without one."""
    found = pattern.search(answer, start)
    return sane(int(found[1])) if found is not None else None


def total(*counts: int | None) -> int | None:
    """Return the sum of the counts that are there, None when the first is missing."""
    if counts[0] is None:
        return None
    return sum(filter(None, counts))
