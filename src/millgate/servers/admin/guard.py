"""Which requests the admin door serves: a known Host, no foreign web page, and the token where there is one.

A browser can be made to send requests to 127.0.0.1 by any page it shows, and DNS rebinding lets that page read
the answers. Its own name then points to 127.0.0.1. The Host header still carries that name, so only IP literals,
localhost and configured names pass. An Origin header must pass the same test, and an IP literal in it must be the
one in Host. A web page can be served from an address without a name.

Probes are exempt from the test of Host, where no page made them. A load balancer or an orchestrator probes by a name that
the gate cannot know, or by none. Their two answers tell a state and no numbers.

The token comes in an Authorization header, or as the session cookie that the sign-in form gives for it.
"""

from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millgate.servers.admin.answers import error_answer, too_many_guesses
from millgate.servers.admin.session import Sessions

_PROBES = frozenset({"/healthz", "/readyz"})
# Probes carry no token. An operator who signs in has no token yet, and the form's look is the same file for all.
_OPEN_PATHS = _PROBES | {"/login", "/page/style.css"}
_ANSWER_HEADERS = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]


class AdminGuard:
    """Wraps the admin application; refuses before a route is looked up."""

    def __init__(self, app: ASGIApp, *, hosts: Iterable[str] = (), sessions: Sessions | None = None) -> None:
        self._app = app
        self._hosts = frozenset({"localhost", *(host.lower() for host in hosts)})
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 403 (Host, Origin), 401 (token), or for the page 303 to its sign-in form."""
        assert scope["type"] == "http", "the admin door serves plain HTTP only"
        client = scope.get("client")
        refusal = self._refusal(scope["path"], scope["headers"], client[0] if client else "")
        await (refusal or self._app)(scope, receive, _with_answer_headers(send))

    def _refusal(self, path: str, headers: list[tuple[bytes, bytes]], peer: str) -> Response | None:
        hosts = [value for name, value in headers if name == b"host"]
        origins = [value for name, value in headers if name == b"origin"]
        if path in _PROBES and not origins:
            return None
        if len(hosts) != 1 or not self._knows("//" + hosts[0].decode("latin-1")):
            return error_answer(
                403, "host_not_allowed", "Host must be an IP address, localhost or listed in admin.hosts"
            )
        if not all(self._is_ours(value.decode("latin-1"), hosts[0].decode("latin-1")) for value in origins):
            return error_answer(403, "origin_not_allowed", "requests made by other web pages are refused")
        if self._sessions is None or path in _OPEN_PATHS:
            return None
        return _without_right(self._sessions, path, headers, peer)

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
        return name in self._hosts or _is_ip(name)


def _without_right(
    sessions: Sessions, path: str, headers: list[tuple[bytes, bytes]], peer: str
) -> Response | None:
    """Return why these headers carry no right to ask, None if they do; a session goes on whatever a peer guesses."""
    given = [value for name, value in headers if name == b"authorization"]
    if given:
        bearer = len(given) == 1 and given[0][:7].lower() == b"bearer "
        wait_s = sessions.try_token(given[0][7:].strip() if bearer else b"", peer)
        if wait_s is None:
            return None
        return too_many_guesses(wait_s) if wait_s > 0.0 else _sign_in_first(path)
    cookies = [value for name, value in headers if name == b"cookie"]
    if len(cookies) == 1 and sessions.is_open(cookies[0].decode("latin-1")):
        return None
    return _sign_in_first(path)


def _sign_in_first(path: str) -> Response:
    if path == "/":
        # Relative: the browser knows under which prefix it found us.
        return RedirectResponse("login", status_code=303)
    answer = error_answer(401, "token_required", "send Authorization: Bearer TOKEN")
    answer.headers["www-authenticate"] = "Bearer"
    return answer


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach this listening address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _is_ip(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _with_answer_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *_ANSWER_HEADERS]
        await send(message)

    return send_with_headers
