"""The admin application: liveness, readiness, metrics, the state of the core, what it would decide, and the page."""

import time
from collections.abc import Iterable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from millgate.observe.traffic_records import TrafficSnapshot
from millgate.servers.admin.answers import error_answer, json_answer
from millgate.servers.admin.guard import AdminGuard
from millgate.servers.admin.page import page_routes
from millgate.servers.admin.queries import ExplainQuery, plain, plain_explanation
from millgate.servers.admin.session import Sessions
from millgate.servers.admin.sign_in import sign_in_route
from millgate.servers.admin.views import Views
from millgate.servers.admin.why import why_route

MAX_QUERY_BYTES = 64 * 1024  # a description of a request, not a request


def build_app(views: Views, *, hosts: Iterable[str] = (), token: str | None = None) -> ASGIApp:
    """Return the guarded ASGI application over `views`."""
    door = _Door(views)
    routes = [
        Route("/healthz", door.healthz),
        Route("/readyz", door.readyz),
        Route("/metrics", door.metrics),
        Route("/api/state", door.state),
        Route("/api/explain", door.explain, methods=["GET", "POST"]),
    ]
    sessions = Sessions(token, time.time) if token else None
    if views.live is not None:
        routes += [*page_routes(views.live), sign_in_route(sessions)]
    if views.why is not None:
        routes.append(why_route(views.why))
    return AdminGuard(Starlette(routes=routes), hosts=hosts, sessions=sessions)


class _Door:
    """The endpoints; each reads one view and answers JSON, metrics excepted."""

    def __init__(self, views: Views) -> None:
        self._views = views

    async def healthz(self, _: Request) -> Response:
        """The process answers: that is all this says."""
        return PlainTextResponse("ok\n")

    async def readyz(self, _: Request) -> Response:
        """200 while work should come here, else 503; the detail says which part is not ready."""
        readiness = self._views.ready()
        body = {"ready": readiness.ready, "detail": dict(readiness.detail)}
        return json_answer(body, 200 if readiness.ready else 503)

    async def metrics(self, request: Request) -> Response:
        """The metrics of docs/reference/metrics.md, in the format that the Accept header asks for."""
        body, content_type = await self._views.render_metrics(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    async def state(self, _: Request) -> Response:
        """The whole snapshot of the core as it is now, and the page's sentence about it."""
        state = plain(self._views.snapshot())
        if (live := self._views.live) is not None:
            state |= {"host": live.page_model.host, "verdict": plain(live.page_model.verdict())}
        if self._views.traffic is not None:
            _add_traffic(state, self._views.traffic())
        now = state["now"]
        health = {each.name: each for each in self._views.standings()}
        for engine in state["engines"]:
            if (standing := health.get(engine["name"])) is not None:
                engine["health"] = {
                    "stance": standing.stance,
                    "since_s": round(now - standing.since, 3),
                    "why": standing.why,
                }
        return json_answer(state)

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
        return json_answer(plain_explanation(self._views.explain(query.arrival())))


def _add_traffic(state: dict[str, Any], traffic: TrafficSnapshot) -> None:
    """Put what was seen lately beside the core's numbers, and what each tenant was served."""
    for rows, seen in ((state["lanes"], traffic.lanes), (state["engines"], traffic.engines)):
        lately = {each.name: plain(each.lately) for each in seen}
        for row in rows:
            row["lately"] = lately.get(row["name"])
    state["served"] = plain(traffic.tenants)
    state["models"] = plain(traffic.models)


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
