"""The sign-in form: a token in, a session cookie out."""

from typing import Final
from urllib.parse import parse_qs, urlsplit

from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from millgate.servers.admin.answers import too_many_guesses
from millgate.servers.admin.page import asset_response, read_assets
from millgate.servers.admin.session import COOKIE, Sessions

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
