"""How the admin door answers: JSON, and errors with a code and a message."""

from math import ceil

import msgspec
from starlette.responses import Response


def json_answer(content: object, status: int = 200) -> Response:
    """Return this content as JSON; records become objects."""
    return Response(msgspec.json.encode(content), status, media_type="application/json")


def error_answer(status: int, code: str, message: str) -> Response:
    """Return an error as JSON: `code` for programs, `message` for people."""
    return json_answer({"error": {"code": code, "message": message}}, status)


def too_many_guesses(wait_s: float) -> Response:
    """Return the answer to a peer whose tokens are not looked at for so many seconds."""
    answer = error_answer(429, "too_many_failures", "too many requests with a wrong token")
    answer.headers["retry-after"] = str(ceil(wait_s))
    return answer
