"""What an engine says in place of an answer, for a client that sees only a line."""

import json
from typing import Any, Final

from millgate.dialects.line import plain_words

_MOST_READ_BYTES: Final = 16 * 1024
"""Complaints are short; of a longer one its beginning is shown as it is."""


def words_of(status: int, body: bytes) -> str:
    """Return the status and the engine's own words, as one bounded line of printable characters."""
    said = body[:_MOST_READ_BYTES].decode(errors="replace")
    words = plain_words(_message(said) or said)
    return plain_words(f"the engine answered {status}" + (f": {words}" if words else ""))


def _message(said: str) -> str:
    """Return the message within a complaint as engines write it, empty where there is none."""
    try:
        found: Any = json.loads(said)
    except (ValueError, RecursionError):
        return ""
    if isinstance(found, dict):
        found = found.get("error", found)
    if isinstance(found, dict):
        found = found.get("message") or found.get("detail")
    return found if isinstance(found, str) else ""
