"""Admission at the HTTP door: keys, tenants and lanes, and the one answer for every refused caller.

A missing, a wrong and an overlong key get the same answer after the same work. It says nothing about which of them
it was, and after too many of them a peer is told to stop instead; see `Guesses`.
"""

import asyncio
from collections.abc import Callable
from math import ceil
from typing import Final

from millgate.http1.server.contract import RefusedRequest, RequestHead
from millgate.runtime.callers import Caller, Callers, CallerSettings
from millgate.runtime.guesses import Guesses

_UNKNOWN: Final = "a valid API key is needed: send it as Authorization: Bearer KEY or as x-api-key: KEY"
_TOO_MANY: Final = "too many requests without a valid API key"
_CHALLENGE: Final = (b"www-authenticate", b"Bearer")

Dress = Callable[[int, str, str], RefusedRequest]
"""Dresses status, code and message in the dialect of the door."""


class Authentication:
    """Asks `callers` about every request; `refused` counts requests without a good key."""

    def __init__(self, callers: Callers | None = None) -> None:
        self.callers = callers or Callers(CallerSettings())
        self.refused = 0
        self._guesses = Guesses()
        self._time = asyncio.get_running_loop().time

    def replace(self, settings: CallerSettings) -> None:
        """Check by these rules from now on; admitted callers stay in."""
        self.callers = Callers(settings, self.callers)

    def refusal(self, head: RequestHead, dress: Dress) -> RefusedRequest | None:
        """Return why this caller may not ask, None if it may; made before a byte of the body is read."""
        named = head.named if head.named is not None else dict(reversed(head.headers))
        if self.callers.admits(named, head.headers, head.peer):
            return None
        self.refused += 1
        wait_s = self._guesses.failed(head.peer, self._time())
        if wait_s <= 0.0:
            refusal = dress(401, "invalid_api_key", _UNKNOWN)
            return refusal._replace(headers=[*refusal.headers, _CHALLENGE])
        refusal = dress(429, "too_many_failures", _TOO_MANY)
        return refusal._replace(headers=[*refusal.headers, (b"retry-after", b"%d" % ceil(wait_s))])

    def tenant(self, head: RequestHead) -> str:
        """Return whose request this is by its head, empty where no tenants are told apart; counts nothing."""
        named = head.named if head.named is not None else dict(reversed(head.headers))
        return self.callers.tenant(named, head.headers, head.peer, self._time())

    def caller(self, head: RequestHead) -> Caller | None:
        """Return the caller, None when a reload has taken the key away while the body came."""
        named = head.named if head.named is not None else dict(reversed(head.headers))
        return self.callers.identify(named, head.headers, head.peer, head.path, self._time())
