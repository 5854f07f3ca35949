"""The admin application: liveness, readiness, metrics, the state of the core, what it would decide, and the page."""

import time
from collections.abc import Iterable

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from millgate.servers.admin.answers import error_answer, json_answer
from millgate.servers.admin.guard import AdminGuard, Sessions, sign_in_route
from millgate.servers.admin.page import page_routes, why_route
from millgate.servers.admin.queries import ExplainQuery
from millgate.servers.admin.source import AdminSource, SourceSilentError

MAX_QUERY_BYTES = 64 * 1024  # a description of a request, not a request


def build_app(source: AdminSource, *, hosts: Iterable[str] = (), token: str | None = None) -> ASGIApp:
    """Return the guarded ASGI application over `source`."""
    door = _Door(source)
    routes = [
        Route("/healthz", door.healthz),
        Route("/readyz", door.readyz),
        Route("/metrics", door.metrics),
        Route("/api/state", door.state),
        Route("/api/explain", door.explain, methods=["GET", "POST"]),
    ]
    sessions = Sessions(token, time.time) if token else None
    if source.feed is not None:
        routes += [*page_routes(source, source.feed), sign_in_route(sessions)]
    if source.keeps_decisions:
        routes.append(why_route(source.attempts))
    app = Starlette(routes=routes, exception_handlers={SourceSilentError: _silent})
    return AdminGuard(app, hosts=hosts, sessions=sessions)


async def _silent(_: Request, error: Exception) -> Response:
    del error
    return error_answer(503, "no_worker", "no worker of this gate answers just now; try again soon")


class _Door:
    """The endpoints; each asks the source one thing and answers JSON, metrics excepted."""

    def __init__(self, source: AdminSource) -> None:
        self._source = source

    async def healthz(self, _: Request) -> Response:
        """The process answers: that is all this says."""
        return PlainTextResponse("ok\n")

    async def readyz(self, _: Request) -> Response:
        """200 while work should come here, else 503; the detail says which part is not ready."""
        readiness = await self._source.readiness()
        body = {"ready": readiness.ready, "detail": dict(readiness.detail)}
        return json_answer(body, 200 if readiness.ready else 503)

    async def metrics(self, request: Request) -> Response:
        """The metrics of docs/reference/metrics.md, in the format that the Accept header asks for."""
        body, content_type = await self._source.metrics(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    async def state(self, _: Request) -> Response:
        """The whole snapshot of the core as it is now, and the page's sentence about it."""
        return json_answer(await self._source.state())

    async def explain(self, request: Request) -> Response:
        """What an arrival like the one described would be told now, and the numbers behind it."""
        try:
            query = await _read_query(request)
        except msgspec.DecodeError as error:
            return error_answer(400, "invalid_query", str(error))
        except ClientDisconnect:
            return error_answer(400, "invalid_query", "the description did not come whole")
        except _TooLargeError:
            message = f"the description is longer than {MAX_QUERY_BYTES} bytes"
            return error_answer(413, "too_large", message)
        lanes = [lane["name"] for lane in (await self._source.state())["lanes"]] if query.lane else []
        if query.lane and query.lane not in lanes:
            return error_answer(400, "invalid_query", f"lane: names none (there are {', '.join(lanes)})")
        return json_answer(await self._source.explanation(query))


class _TooLargeError(Exception):
    """The body is longer than MAX_QUERY_BYTES."""


async def _read_query(request: Request) -> ExplainQuery:
    if request.method == "GET":
        return msgspec.convert(dict(request.query_params), ExplainQuery, strict=False)
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_QUERY_BYTES:
            raise _TooLargeError
    return msgspec.json.decode(body or b"{}", type=ExplainQuery)
