"""The request id that an engine or provider gives an answer: what its support asks for."""

import re
from collections.abc import Sequence
from typing import Final

ID_NAMES: Final = frozenset((b"x-request-id", b"request-id"))
"""Header names of a request id: those of OpenAI and of Anthropic."""

# Three underscores in a row begin an address in the ids of vLLM's P2pNcclConnector, which read them there (removed in 2026).
_HARMLESS: Final = re.compile(rb"(?!.*___)[A-Za-z0-9._:/+=@-]{1,128}\Z")


def is_harmless_id(given: bytes) -> bool:
    """Return whether a request id from outside is short, and harmless in logs, in headers and to engines."""
    return _HARMLESS.match(given) is not None


def upstream_id(headers: Sequence[tuple[bytes, bytes]]) -> bytes | None:
    """Return the request id that an engine gave its answer; None without one that is harmless in logs and headers."""
    for name, value in headers:
        if name in ID_NAMES and is_harmless_id(value):
            return value
    return None
