"""What the admin door is asked, and how it answers: JSON, and errors with a code and a message."""

from collections.abc import Awaitable, Callable
from math import ceil
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl

import msgspec

from millgate.http1.server.contract import RequestHead
from millgate.observe.live.feed import LiveFeed

Fields = tuple[tuple[bytes, bytes], ...]
_IN_EVERY_HEAD: Final[Fields] = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))


class AdminRequest(NamedTuple):
    """One whole request."""

    head: RequestHead
    body: bytes

    @property
    def parameters(self) -> dict[str, str]:
        """What its query says by name, the last of several."""
        query = self.head.target.partition(b"?")[2].decode()
        return dict(parse_qsl(query, keep_blank_values=True))


class AdminAnswer(NamedTuple):
    """One whole answer; `more` are header fields beside its content type."""

    status: int
    content_type: str
    body: bytes
    more: Fields = ()

    @property
    def headers(self) -> Fields:
        """The header fields that go out."""
        return ((b"content-type", self.content_type.encode()), *_IN_EVERY_HEAD, *self.more)


Handler = Callable[[AdminRequest], Awaitable[AdminAnswer | LiveFeed[Any]]]
"""Answers what is asked of one path; a feed is one that the client has joined, to be shown to it."""


class AdminRoute(NamedTuple):
    """What answers one path, and whether it may be asked with POST, too."""

    handler: Handler
    takes_post: bool = False


def json_answer(content: object, status: int = 200, more: Fields = ()) -> AdminAnswer:
    """Return this content as JSON; records become objects."""
    return AdminAnswer(status, "application/json", msgspec.json.encode(content), more)


def error_answer(status: int, code: str, message: str, more: Fields = ()) -> AdminAnswer:
    """Return an error as JSON: `code` for programs, `message` for people."""
    return json_answer({"error": {"code": code, "message": message}}, status, more)


def too_many_guesses(wait_s: float) -> AdminAnswer:
    """Return the answer to a peer whose tokens are not looked at for so many seconds."""
    retry_after = (b"retry-after", b"%d" % ceil(wait_s))
    return error_answer(429, "too_many_failures", "too many requests with a wrong token", (retry_after,))


def see_other(address: bytes, more: Fields = ()) -> AdminAnswer:
    """Return the answer that leads on to this address, a relative one: the browser knows under which prefix it found us."""
    return AdminAnswer(303, "text/plain", b"", ((b"location", address), *more))
