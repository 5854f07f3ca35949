"""Token counts as engines report them: found by pattern in the last bytes of an answer, and believed within reason."""

import re

from headgate.dialects.contract import MOST_TOKENS


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
