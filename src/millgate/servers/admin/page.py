"""The live page: its files, its feed, and the decisions that it asks for.

The content security policy allows what we serve and nothing else: no inline script or style, no other host, no
framing. Addresses in the page are relative, so it works under any prefix that a proxy strips.
"""

from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files
from typing import Any, Final

import msgspec

from millgate.observe.explanation import ExplainedAttempt
from millgate.observe.live.feed import LiveFeed, TooManyWatchersError
from millgate.servers.admin.answers import (
    AdminAnswer,
    AdminRequest,
    AdminRoute,
    DecisionQuery,
    Fields,
    error_answer,
    json_answer,
)
from millgate.servers.admin.source import AdminSource

_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    b"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
PAGE_HEADERS: Final[Fields] = (
    (b"content-security-policy", _POLICY),
    (b"referrer-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
)
# Proxies that collect an answer before they pass it on are told not to (nginx's X-Accel-Buffering).
FEED_HEADERS: Final = AdminAnswer(200, "text/event-stream", b"", ((b"x-accel-buffering", b"no"),)).headers
_TYPES: Final = {"css": "text/css", "js": "text/javascript", "html": "text/html"}
_COME_BACK_S: Final = b"5"


def page_routes(source: AdminSource, feed: LiveFeed[Any]) -> dict[str, AdminRoute]:
    """Return the routes of the page over this source and its feed, by path."""
    page, assets = _Page(source, feed), read_assets()
    documents = {"/": "index.html", **{f"/page/{name}": name for name in assets}}
    return {
        **{path: _document(name, assets[name]) for path, name in documents.items()},
        "/api/live": AdminRoute(page.live),
        "/api/decisions": AdminRoute(page.decisions),
    }


def _document(name: str, content: bytes) -> AdminRoute:
    answer = asset_answer(name, content)

    async def document(_: AdminRequest) -> AdminAnswer:
        return answer

    return AdminRoute(document)


class _Page:
    def __init__(self, source: AdminSource, feed: LiveFeed[Any]) -> None:
        self._source = source
        self._feed = feed

    async def live(self, _: AdminRequest) -> AdminAnswer | LiveFeed[Any]:
        """Pictures, twice a second, as server-sent events; 503 when as many watch as may."""
        await self._source.open_feed()
        try:
            self._feed.join()
        except TooManyWatchersError:
            message = f"{self._feed.watchers} watch already, which is as many as may"
            return error_answer(503, "too_many_watchers", message, ((b"retry-after", _COME_BACK_S),))
        return self._feed

    async def decisions(self, request: AdminRequest) -> AdminAnswer:
        """The kept decisions that a query wants, newest first."""
        try:
            query = msgspec.convert(request.parameters, DecisionQuery, strict=False)
        except msgspec.ValidationError as error:
            return error_answer(400, "invalid_query", str(error))
        return json_answer(await self._source.decisions(query))


def read_assets() -> dict[str, bytes]:
    """Return the page's files by name: a handful of small ones, read once."""
    folder = files("millgate.observe.live") / "page"
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.name.split(".")[-1] in _TYPES}


def asset_answer(name: str, content: bytes, status: int = 200) -> AdminAnswer:
    """Return one of the page's files under the page's policy."""
    content_type = f"{_TYPES[name.rpartition('.')[2]]}; charset=utf-8"
    return AdminAnswer(status, content_type, content, PAGE_HEADERS)


_LONGEST_ID: Final = 128
"""As long as a request id may be that the HTTP door takes from a client."""

Ask = Callable[[str], Awaitable[Sequence[ExplainedAttempt]]]
"""Returns the attempts under a request id or an attempt's number, newest first."""


def why_route(find: Ask) -> AdminRoute:
    """Return the route that answers `?id=` with the attempts found, 404 when none is kept."""

    async def why(request: AdminRequest) -> AdminAnswer:
        wanted = request.parameters.get("id", "")
        if not 0 < len(wanted) <= _LONGEST_ID:
            message = f"id: give a request id or an attempt's number, at most {_LONGEST_ID} characters"
            return error_answer(400, "invalid_query", message)
        found = await find(wanted)
        if not found:
            message = "no decision is kept under this id: it is not known here, or too long ago"
            return error_answer(404, "not_found", message)
        return json_answer({"id": wanted, "attempts": found})

    return AdminRoute(why)
