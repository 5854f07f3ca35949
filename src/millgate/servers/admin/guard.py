"""Which requests the admin door serves: a known Host, no foreign web page, and the token where there is one.

A browser can be made to send requests to 127.0.0.1 by any page it shows, and DNS rebinding lets that page read
the answers. Its own name then points to 127.0.0.1. The Host header still carries that name, so only IP literals,
localhost and configured names pass. An Origin header must pass the same test, and an IP literal in it must be the
one in Host. A web page can be served from an address without a name.

Probes are exempt from the test of Host, where no page made them. A load balancer or an orchestrator probes by a name that
the gate cannot know, or by none. Their two answers tell a state and no numbers.

The token comes in an Authorization header, or as the session cookie that the sign-in form gives for it: a page cannot put a
token into an EventSource's headers. Not in the address: addresses stand in histories, logs and Referer fields. The cookie is a
proof of its own, not the token. It is an issue time with a keyed hash under a secret of this process, so nothing is stored and a
restart ends all sessions. It is HttpOnly (no script reads it) and SameSite=Strict (no other site's page can make use of it). It
has no Domain, and no Path, which ties it to the folder of the login page also behind a prefix.
"""

import hmac
import secrets
from collections.abc import Callable, Iterable
from hashlib import blake2b, sha256
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from typing import Final
from urllib.parse import parse_qs, urlsplit

from millgate.http1.server.contract import RequestHead
from millgate.runtime.guesses import Guesses
from millgate.servers.admin.answers import (
    AdminAnswer,
    AdminRequest,
    AdminRoute,
    error_answer,
    see_other,
    too_many_guesses,
)
from millgate.servers.admin.page import asset_answer, read_assets
from millgate.sockets.listening import is_ip

COOKIE: Final = "millgate_session"
LASTS_S: Final = 12 * 3600
"""A shift: an operator who watches all day signs in again after it."""
_SECRET_BYTES = 32


class Sessions:
    """Checks the admin door's token and the cookies that were given for it; `now` gives seconds that no step of the clock moves."""

    def __init__(self, token: str, now: Callable[[], float]) -> None:
        self._token_digest = sha256(token.encode()).digest()
        self._secret = secrets.token_bytes(_SECRET_BYTES)
        self._now = now
        self._guesses = Guesses()

    def try_token(self, given: bytes, peer: str) -> float | None:
        """Return None for the token; else 0, or for how many seconds no token of this peer is looked at.

        An operator may choose a short token, so that a limit which the right one passes would be none.
        """
        now = self._now()
        wait_s = self._guesses.wait_s(peer, now)
        if wait_s > 0.0:
            return wait_s
        # In a time that tells neither the token's length nor where it differs.
        is_token = hmac.compare_digest(sha256(given).digest(), self._token_digest)
        return None if is_token else self._guesses.failed(peer, now)

    def open(self) -> str:
        """Return the value of a new cookie."""
        issued = str(int(self._now()))
        return f"{issued}.{self._proof(issued)}"

    def is_open(self, cookies: str) -> bool:
        """Return whether a Cookie field carries a session of this process that has not run out."""
        issued, _, proof = _session_of(cookies).partition(".")
        # The proof is checked first: only what we wrote ourselves is read as a number.
        if not hmac.compare_digest(proof.encode(), self._proof(issued).encode()):
            return False
        return 0.0 <= self._now() - int(issued) + 1.0 <= LASTS_S

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


def sign_in_route(sessions: Sessions | None) -> AdminRoute:
    """Return the route of the form; without sessions it leads straight to the page."""
    form = read_assets()["login.html"]

    async def answer(request: AdminRequest) -> AdminAnswer:
        if sessions is None:
            return see_other(b"./")
        if request.head.method != b"POST":
            return asset_answer("login.html", form)
        wait_s = sessions.try_token(_token_in(request.body), request.head.peer)
        if wait_s is None:
            return _signed_in(sessions, request.head)
        if wait_s > 0.0:
            return too_many_guesses(wait_s)
        complaint = b'<p class="complaint" role="alert">That is not the token of this gate.</p>'
        return asset_answer("login.html", form.replace(_COMPLAINT_PLACE, complaint), 401)

    return AdminRoute(answer, takes_post=True)


def _token_in(form: bytes) -> bytes:
    """Return the form's token; of a form that is too long nothing is taken."""
    if len(form) > MOST_FORM_BYTES:
        return b""
    return parse_qs(form.decode("latin-1")).get("token", [""])[0].strip().encode()


def _signed_in(sessions: Sessions, head: RequestHead) -> AdminAnswer:
    # Behind a proxy with TLS the browser says in Origin that its side is https, which a proxy does not change.
    origin = (head.header(b"origin") or b"").decode("latin-1")
    secure = "; Secure" if urlsplit(origin).scheme == "https" else ""
    cookie = f"{COOKIE}={sessions.open()}; HttpOnly; SameSite=strict{secure}"
    return see_other(b"./", ((b"set-cookie", cookie.encode()),))


_PROBES = frozenset({"/healthz", "/readyz"})
# Probes carry no token. An operator who signs in has no token yet, and the form's look is the same file for all.
_OPEN_PATHS = _PROBES | {"/login", "/page/style.css"}


class AdminGuard:
    """Refuses by their heads, before a route is looked up: 403 (Host, Origin), 401 (token), or for the page 303 to its sign-in form."""

    def __init__(self, *, hosts: Iterable[str] = (), sessions: Sessions | None = None) -> None:
        self._hosts = frozenset({"localhost", *(host.lower() for host in hosts)})
        self._sessions = sessions

    def refusal(self, head: RequestHead) -> AdminAnswer | None:
        """Return why a request is refused, None to let it pass."""
        path, host, origins = head.path.decode(), head.header(b"host"), _values(head, b"origin")
        if path in _PROBES and not origins:
            return None
        if host is None or not self._knows("//" + host.decode("latin-1")):
            return error_answer(
                403, "host_not_allowed", "Host must be an IP address, localhost or listed in admin.hosts"
            )
        if not all(self._is_ours(value.decode("latin-1"), host.decode("latin-1")) for value in origins):
            return error_answer(403, "origin_not_allowed", "requests made by other web pages are refused")
        if self._sessions is None or path in _OPEN_PATHS:
            return None
        return _without_right(self._sessions, head, path)

    def _is_ours(self, origin: str, host: str) -> bool:
        """Say whether a page of this origin is ours: any page may be served from an address, so the address must be Host's."""
        if not self._knows(origin):
            return False
        there, here = urlsplit(origin), urlsplit("//" + host)
        return there.hostname in self._hosts or there.hostname == here.hostname

    def _knows(self, address: str) -> bool:
        try:
            name = urlsplit(address).hostname or ""
        except ValueError:
            return False
        return name in self._hosts or is_ip(name)


def _without_right(sessions: Sessions, head: RequestHead, path: str) -> AdminAnswer | None:
    """Return why this head carries no right to ask, None if it does; a session goes on whatever a peer guesses."""
    given = _values(head, b"authorization")
    if given:
        bearer = len(given) == 1 and given[0][:7].lower() == b"bearer "
        wait_s = sessions.try_token(given[0][7:].strip() if bearer else b"", head.peer)
        if wait_s is None:
            return None
        return too_many_guesses(wait_s) if wait_s > 0.0 else _sign_in_first(path)
    cookies = _values(head, b"cookie")
    if len(cookies) == 1 and sessions.is_open(cookies[0].decode("latin-1")):
        return None
    return _sign_in_first(path)


def _values(head: RequestHead, name: bytes) -> list[bytes]:
    return [value for field, value in head.headers if field == name]


def _sign_in_first(path: str) -> AdminAnswer:
    if path == "/":
        return see_other(b"login")
    message = "send Authorization: Bearer TOKEN"
    return error_answer(401, "token_required", message, ((b"www-authenticate", b"Bearer"),))


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach this listening address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
