"""The live page: its files, its feed, and the decisions that it asks for.

The content security policy allows what we serve and nothing else: no inline script or style, no other host, no
framing. Addresses in the page are relative, so it works under any prefix that a proxy strips.
"""

from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from millgate.observe.explanation import ExplainedAttempt
from millgate.observe.live.feed import LiveFeed, TooManyWatchersError
from millgate.servers.admin.answers import error_answer, json_answer
from millgate.servers.admin.queries import DecisionQuery
from millgate.servers.admin.source import AdminSource

PAGE_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "referrer-policy": "same-origin",
    "x-frame-options": "DENY",
}
_TYPES: Final = {"css": "text/css", "js": "text/javascript", "html": "text/html"}
_COME_BACK_S = "5"


class LiveResponse(StreamingResponse):
    """The stream of one watcher that has joined; however it ends, the watcher leaves."""

    def __init__(self, feed: LiveFeed[Any]) -> None:
        # Proxies that collect an answer before they pass it on are told not to (nginx's X-Accel-Buffering).
        super().__init__(feed.frames(), media_type="text/event-stream", headers={"x-accel-buffering": "no"})
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send frames until the watcher or the feed ends it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._feed.leave()


def page_routes(source: AdminSource, feed: LiveFeed[Any]) -> list[Route]:
    """Return the routes of the page over this source and its feed."""
    page = _Page(source, feed)
    return [
        Route("/", page.document),
        Route("/page/{name}", page.asset),
        Route("/api/live", page.live),
        Route("/api/decisions", page.decisions),
    ]


class _Page:
    def __init__(self, source: AdminSource, feed: LiveFeed[Any]) -> None:
        self._source = source
        self._feed = feed
        self._assets = read_assets()

    async def document(self, _: Request) -> Response:
        """The page itself."""
        return asset_response("index.html", self._assets["index.html"])

    async def asset(self, request: Request) -> Response:
        """One of its files."""
        name = request.path_params["name"]
        content = self._assets.get(name)
        return Response("not found\n", 404) if content is None else asset_response(name, content)

    async def live(self, _: Request) -> Response:
        """Pictures, twice a second, as server-sent events; 503 when as many watch as may."""
        await self._source.open_feed()
        try:
            self._feed.join()
        except TooManyWatchersError:
            message = f"{self._feed.watchers} watch already, which is as many as may"
            answer = error_answer(503, "too_many_watchers", message)
            answer.headers["retry-after"] = _COME_BACK_S
            return answer
        return LiveResponse(self._feed)

    async def decisions(self, request: Request) -> Response:
        """The kept decisions that a query wants, newest first."""
        try:
            query = msgspec.convert(dict(request.query_params), DecisionQuery, strict=False)
        except msgspec.ValidationError as error:
            return error_answer(400, "invalid_query", str(error))
        return json_answer(await self._source.decisions(query))


def read_assets() -> dict[str, bytes]:
    """Return the page's files by name: a handful of small ones, read once."""
    folder = files("millgate.observe.live") / "page"
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.name.split(".")[-1] in _TYPES}


def asset_response(name: str, content: bytes, status: int = 200) -> Response:
    """Return one of the page's files under the page's policy."""
    return Response(content, status, PAGE_HEADERS, media_type=_TYPES[name.rsplit(".", maxsplit=1)[-1]])


_LONGEST_ID: Final = 128
"""As long as a request id may be that the HTTP door takes from a client."""

Ask = Callable[[str], Awaitable[Sequence[ExplainedAttempt]]]
"""Returns the attempts under a request id or an attempt's number, newest first."""


def why_route(find: Ask) -> Route:
    """Return the route that answers `?id=` with the attempts found, 404 when none is kept."""

    async def why(request: Request) -> Response:
        wanted = request.query_params.get("id", "")
        if not 0 < len(wanted) <= _LONGEST_ID:
            message = f"id: give a request id or an attempt's number, at most {_LONGEST_ID} characters"
            return error_answer(400, "invalid_query", message)
        found = await find(wanted)
        if not found:
            message = "no decision is kept under this id: it is not known here, or too long ago"
            return error_answer(404, "not_found", message)
        return json_answer({"id": wanted, "attempts": found})

    return Route("/api/why", why)
