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
from urllib.parse import parse_qs, urlsplit

from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from millgate.runtime.guesses import Guesses
from millgate.servers.admin.answers import too_many_guesses
from millgate.servers.admin.page import asset_response, read_assets

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


MOST_FORM_BYTES: Final = 8192
"""A token and its field name."""
_COMPLAINT_PLACE = b"<!-- complaint -->"


def sign_in_route(sessions: Sessions | None) -> Route:
    """Return the route of the form; without sessions it leads straight to the page."""
    return Route("/login", _SignIn(sessions).answer, methods=["GET", "POST"])


class _SignIn:
    def __init__(self, sessions: Sessions | None) -> None:
        self._sessions = sessions
        self._form = read_assets()["login.html"]

    async def answer(self, request: Request) -> Response:
        """Show the form, or take the token that it sends."""
        if self._sessions is None:
            return _to_the_page()
        if request.method != "POST":
            return asset_response("login.html", self._form)
        peer = request.client.host if request.client is not None else ""
        wait_s = self._sessions.try_token(await _read_token(request), peer)
        if wait_s is None:
            return _signed_in(self._sessions, request)
        if wait_s > 0.0:
            return too_many_guesses(wait_s)
        complaint = b'<p class="complaint" role="alert">That is not the token of this gate.</p>'
        return asset_response("login.html", self._form.replace(_COMPLAINT_PLACE, complaint), 401)


def _signed_in(sessions: Sessions, request: Request) -> Response:
    answer = _to_the_page()
    # Behind a proxy with TLS the browser says in Origin that its side is https, which a proxy does not change.
    secure = urlsplit(request.headers.get("origin", "")).scheme == "https"
    answer.set_cookie(COOKIE, sessions.open(), path=None, httponly=True, samesite="strict", secure=secure)
    return answer


def _to_the_page() -> Response:
    return RedirectResponse("./", status_code=303)


async def _read_token(request: Request) -> bytes:
    """Return the form's token; of a form that is too long, or does not come whole, nothing is taken."""
    body = b""
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MOST_FORM_BYTES:
                return b""
    except ClientDisconnect:
        return b""
    return parse_qs(body.decode("latin-1")).get("token", [""])[0].strip().encode()
