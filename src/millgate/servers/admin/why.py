"""`/api/why`: what was decided about one request, in order, each decision retold with its numbers."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from millgate.observe.explanation import ExplainedAttempt
from millgate.servers.admin.answers import error_answer, json_answer

_LONGEST_ID: Final = 128
"""As long as a request id may be that the HTTP door takes from a client."""

Find = Callable[[str], Sequence[ExplainedAttempt]]
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
