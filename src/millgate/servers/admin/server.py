"""Serving the admin application on an address of its own.

Any client that reaches the door can connect; the token is asked for in a request. So before a request is whole nothing of it may
grow, and no number of connections may keep an operator out.
"""

import asyncio
import socket
from collections.abc import Iterable
from contextlib import aclosing
from typing import Any, Final, NamedTuple

import msgspec

from millgate.http1.server import HttpServer, ServerLimits
from millgate.http1.server.contract import Exchange, RefusedRequest, RequestHead
from millgate.observe.live.feed import MOST_WATCHERS, LiveFeed
from millgate.runtime.clock import boot_time
from millgate.servers.admin.answers import (
    AdminAnswer,
    AdminRequest,
    AdminRoute,
    ExplainQuery,
    error_answer,
    json_answer,
)
from millgate.servers.admin.guard import AdminGuard, Sessions, is_loopback, sign_in_route
from millgate.servers.admin.page import FEED_HEADERS, page_routes, why_route
from millgate.servers.admin.source import AdminSource, LocalSource, SourceSilentError, Views

MAX_QUERY_BYTES: Final = 64 * 1024  # a description of a request, not a request
MOST_CONNECTIONS: Final = MOST_WATCHERS + 64
"""All watchers, and beside them a scraper, a probe, a curious operator."""
MOST_HEAD_BYTES: Final = 32 * 1024
"""Four times as much as browsers send of cookies."""
MOST_BODY_BYTES: Final = 128 * 1024
"""Twice the longest that is read."""
REQUEST_WITHIN_S: Final = 10.0
"""As long as a head may take at the HTTP door."""
READ_WITHIN_S: Final = 30.0
"""As long as a client may read nothing at the HTTP door."""


class _UnderWay(NamedTuple):
    """A request that is being answered; `reads` is set while its client keeps up."""

    task: asyncio.Task[None]
    reads: asyncio.Event


class AdminApplication:
    """Answers over `source` what the guard lets pass; implements the HTTP server's `Application`."""

    def __init__(self, source: AdminSource, *, hosts: Iterable[str] = (), token: str | None = None) -> None:
        sessions = Sessions(token, boot_time) if token else None
        self._guard = AdminGuard(hosts=hosts, sessions=sessions)
        self._routes = _Door(source).routes()
        if source.feed is not None:
            self._routes |= {**page_routes(source, source.feed), "/login": sign_in_route(sessions)}
        if source.keeps_decisions:
            self._routes["/api/why"] = why_route(source.attempts)
        self._under_way: dict[Exchange, _UnderWay] = {}

    # ---- what the server calls

    def on_head(self, head: RequestHead) -> RefusedRequest | None:
        """Refuse what the guard does not let pass, before anything else is read."""
        refusal = self._guard.refusal(head)
        return None if refusal is None else _refused(refusal)

    def on_request(self, exchange: Exchange, body: bytes) -> None:
        """Answer in a task: metrics are written in pieces, and the page's feed has no end."""
        reads = asyncio.Event()
        reads.set()
        task = asyncio.get_running_loop().create_task(self._answer(exchange, body, reads))
        self._under_way[exchange] = _UnderWay(task, reads)
        task.add_done_callback(lambda _: self._under_way.pop(exchange))

    def on_gone(self, exchange: Exchange) -> None:
        """Make no answer for a client that has left."""
        if (under_way := self._under_way.get(exchange)) is not None:
            under_way.task.cancel()

    def on_slow(self, exchange: Exchange, slow: bool) -> None:
        """Go on when the client has caught up."""
        if (under_way := self._under_way.get(exchange)) is not None:
            (under_way.reads.clear if slow else under_way.reads.set)()

    def bad_request(
        self, status: int, code: str, message: str, head: RequestHead | None = None
    ) -> RefusedRequest:
        """Dress what is no request as every other error."""
        del head
        return _refused(error_answer(status, code, message))

    async def ended(self) -> None:
        """Return when nothing is being answered."""
        await asyncio.gather(*[each.task for each in self._under_way.values()], return_exceptions=True)

    # ---- within

    async def _answer(self, exchange: Exchange, body: bytes, reads: asyncio.Event) -> None:
        try:
            answer = await self._ask(AdminRequest(exchange.head, body))
        except SourceSilentError as error:
            answer = error_answer(503, "no_worker", f"{error}; try again soon")
        except Exception as error:  # noqa: BLE001 - a fault of ours, whatever it is
            context = {"message": "the admin door failed on a request", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
            answer = error_answer(500, "internal_error", "the gate failed on this request")
        if isinstance(answer, LiveFeed):
            await _show(exchange, answer, reads)
        else:
            exchange.respond(answer.status, answer.headers, answer.body)

    async def _ask(self, request: AdminRequest) -> AdminAnswer | LiveFeed[Any]:
        route = self._routes.get(request.head.path.decode())
        if route is None:
            return error_answer(404, "not_found", "there is no such path")
        allowed = (b"GET", b"HEAD", b"POST") if route.takes_post else (b"GET", b"HEAD")
        if request.head.method not in allowed:
            methods = b", ".join(allowed)
            message = f"allowed: {methods.decode()}"
            return error_answer(405, "method_not_allowed", message, ((b"allow", methods),))
        return await route.handler(request)


def _refused(answer: AdminAnswer) -> RefusedRequest:
    return RefusedRequest(answer.status, answer.headers, answer.body)


async def _show(exchange: Exchange, feed: LiveFeed[Any], reads: asyncio.Event) -> None:
    """Send frames until the watcher or the feed ends it; however that is, the watcher leaves."""
    try:
        exchange.start(200, FEED_HEADERS)
        if exchange.head.method == b"GET":
            async with aclosing(feed.frames()) as frames:
                async for frame in frames:
                    exchange.write(frame)
                    await reads.wait()
        exchange.finish()
    finally:
        feed.leave()
        exchange.abort()  # of an answer that is over it changes nothing


class _Door:
    """The endpoints; each asks the source one thing and answers JSON, metrics excepted."""

    def __init__(self, source: AdminSource) -> None:
        self._source = source

    def routes(self) -> dict[str, AdminRoute]:
        return {
            "/healthz": AdminRoute(self.healthz),
            "/readyz": AdminRoute(self.readyz),
            "/metrics": AdminRoute(self.metrics),
            "/api/state": AdminRoute(self.state),
            "/api/explain": AdminRoute(self.explain, takes_post=True),
        }

    async def healthz(self, _: AdminRequest) -> AdminAnswer:
        """The process answers: that is all this says."""
        return AdminAnswer(200, "text/plain; charset=utf-8", b"ok\n")

    async def readyz(self, _: AdminRequest) -> AdminAnswer:
        """200 while work should come here, else 503; the detail says which part is not ready."""
        readiness = await self._source.readiness()
        body = {"ready": readiness.ready, "detail": dict(readiness.detail)}
        return json_answer(body, 200 if readiness.ready else 503)

    async def metrics(self, request: AdminRequest) -> AdminAnswer:
        """The metrics of docs/reference/metrics.md, in the format that the Accept header asks for."""
        accept = (request.head.header(b"accept") or b"").decode("latin-1")
        body, content_type = await self._source.metrics(accept)
        return AdminAnswer(200, content_type, body)

    async def state(self, _: AdminRequest) -> AdminAnswer:
        """The whole snapshot of the core as it is now, and the page's sentence about it."""
        return json_answer(await self._source.state())

    async def explain(self, request: AdminRequest) -> AdminAnswer:
        """What an arrival like the one described would be told now, and the numbers behind it."""
        if len(request.body) > MAX_QUERY_BYTES:
            message = f"the description is longer than {MAX_QUERY_BYTES} bytes"
            return error_answer(413, "too_large", message)
        try:
            query = _read_query(request)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return error_answer(400, "invalid_query", str(error))
        lanes = [lane["name"] for lane in (await self._source.state())["lanes"]] if query.lane else []
        if query.lane and query.lane not in lanes:
            return error_answer(400, "invalid_query", f"lane: names none (there are {', '.join(lanes)})")
        return json_answer(await self._source.explanation(query))


def _read_query(request: AdminRequest) -> ExplainQuery:
    if request.head.method == b"POST":
        return msgspec.json.decode(request.body or b"{}", type=ExplainQuery)
    return msgspec.convert(request.parameters, ExplainQuery, strict=False)


class AdminServer:
    """The admin door on one address; `start` and `stop` once each, in the same loop."""

    def __init__(
        self,
        views: Views | AdminSource,
        host: str,
        port: int,
        *,
        token: str | None = None,
        hosts: Iterable[str] = (),
    ) -> None:
        if not is_loopback(host) and not token:
            raise ValueError(
                f"the admin door on {host} needs a token: any client that reaches it can read the gate's state"
            )
        self._address = (host, port)
        source = LocalSource(views) if isinstance(views, Views) else views
        self._live = source.feed
        self._application = AdminApplication(source, hosts=[*hosts, host], token=token)
        self._server: HttpServer | None = None
        self._socket: socket.socket | None = None

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return 0 if self._server is None else self._server.connections

    @property
    def port(self) -> int:
        """The port that is listened on, known from `bind` on."""
        assert self._socket is not None, "bind first"
        return int(self._socket.getsockname()[1])

    def bind(self) -> None:
        """Take the address now, serving later; raises OSError, the address as its file name, when that fails."""
        family = socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(self._address)
        except OSError as error:
            bound.close()
            raise OSError(error.errno, error.strerror, "{}:{}".format(*self._address)) from None
        self._socket = bound

    async def start(self) -> None:
        """Serve until `stop`; binds first if that has not been done. Raises OSError as `bind` does."""
        if self._socket is None:
            self.bind()
        assert self._socket is not None
        limits = ServerLimits(
            header_bytes=MOST_HEAD_BYTES,
            body_bytes=MOST_BODY_BYTES,
            head_s=REQUEST_WITHIN_S,
            body_s=REQUEST_WITHIN_S,
            write_stall_s=READ_WITHIN_S,
            connections=MOST_CONNECTIONS,
        )
        self._server = HttpServer(self._application, limits=limits, makes_room=True)
        await self._server.accept_on(self._socket)

    async def stop(self) -> None:
        """Close the door and every connection at once; harmless when never started."""
        if self._live is not None:
            self._live.close()
        if self._server is not None:
            await self._server.close()
            await self._application.ended()
        elif self._socket is not None:
            self._socket.close()
