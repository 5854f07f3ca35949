"""Signed-in browsers: a page cannot put a token into an EventSource's headers, so it trades it for a cookie.

Not in the address: addresses stand in histories, logs and Referer fields. The cookie is a proof of its own, not the
token. It is an issue time with a keyed hash under a secret of this process, so nothing is stored and a restart ends all
sessions. It is HttpOnly (no script reads it) and SameSite=Strict (no other site's page can make use of it). It has
no Domain, and no Path, which ties it to the folder of the login page also behind a prefix.
"""

import hmac
import secrets
from collections.abc import Callable
from hashlib import blake2b, sha256
from http.cookies import CookieError, SimpleCookie
from typing import Final

from millgate.runtime.guesses import Guesses

COOKIE: Final = "millgate_session"
LASTS_S: Final = 12 * 3600
"""A shift: an operator who watches all day signs in again after it."""
_SECRET_BYTES = 32


class Sessions:
    """Checks the admin door's token and the cookies that were given for it; `wall` is seconds since the epoch."""

    def __init__(self, token: str, wall: Callable[[], float]) -> None:
        self._token_digest = sha256(token.encode()).digest()
        self._secret = secrets.token_bytes(_SECRET_BYTES)
        self._wall = wall
        self._guesses = Guesses()

    def try_token(self, given: bytes, peer: str) -> float | None:
        """Return None for the token; else 0, or for how many seconds no token of this peer is looked at.

        An operator may choose a short token, so that a limit which the right one passes would be none.
        """
        now = self._wall()
        wait_s = self._guesses.wait_s(peer, now)
        if wait_s > 0.0:
            return wait_s
        return None if self.is_token(given) else self._guesses.failed(peer, now)

    def is_token(self, given: bytes) -> bool:
        """Return whether this is the token, in a time that tells neither its length nor where it differs."""
        return hmac.compare_digest(sha256(given).digest(), self._token_digest)

    def open(self) -> str:
        """Return the value of a new cookie."""
        issued = str(int(self._wall()))
        return f"{issued}.{self._proof(issued)}"

    def is_open(self, cookies: str) -> bool:
        """Return whether a Cookie field carries a session of this process that has not run out."""
        issued, _, proof = _session_of(cookies).partition(".")
        # The proof is checked first: only what we wrote ourselves is read as a number.
        if not hmac.compare_digest(proof.encode(), self._proof(issued).encode()):
            return False
        return 0.0 <= self._wall() - int(issued) + 1.0 <= LASTS_S

    def _proof(self, issued: str) -> str:
        return blake2b(issued.encode(), key=self._secret, digest_size=32).hexdigest()


def _session_of(cookies: str) -> str:
    try:
        morsel = SimpleCookie(cookies).get(COOKIE)
    except CookieError:
        return ""
    return morsel.value if morsel is not None else ""
