"""What the admin door is asked, and how it answers: JSON, and errors with a code and a message."""

from collections.abc import Awaitable, Callable
from dataclasses import fields, is_dataclass
from functools import cache
from math import ceil
from typing import Annotated, Any, Final, NamedTuple, get_args, get_origin
from urllib.parse import parse_qsl

import msgspec

from millgate.core.decisions import Explanation
from millgate.core.events import Arrived
from millgate.http1.server.contract import RequestHead
from millgate.observe.explanation import class_words, placement_words
from millgate.observe.live.feed import LiveFeed
from millgate.observe.live.recent import DecisionFilter

_Name = Annotated[str, msgspec.Meta(max_length=256)]
MOST_DECISIONS_ASKED: Final = 200
_Tokens = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]
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


class ExplainQuery(msgspec.Struct, forbid_unknown_fields=True):
    """An imagined arrival; every field has the default of a small chat request."""

    prompt_bytes: _Tokens = 1000
    body_bytes: _Tokens | None = None
    max_tokens: _Tokens | None = None
    min_tokens: _Tokens = 0
    fixed_tokens: _Tokens = 0
    may_clip: bool = False
    answers: Annotated[int, msgspec.Meta(ge=1, le=128)] = 1
    stream: bool = True
    model: _Name = ""
    lane: _Name | None = None
    tenant: _Name = ""
    max_wait_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)] | None = None

    def arrival(self) -> Arrived:
        """Return the event that such a request would be; its attempt number, 0, belongs to no attempt."""
        return Arrived(
            attempt=0,
            tenant=self.tenant,
            lane=self.lane,
            model=self.model,
            prompt_bytes=self.prompt_bytes,
            body_bytes=self.prompt_bytes if self.body_bytes is None else self.body_bytes,
            max_tokens=self.max_tokens,
            answers=self.answers,
            stream=self.stream,
            max_wait_s=self.max_wait_s,
            min_tokens=self.min_tokens,
            fixed_tokens=self.fixed_tokens,
            may_clip=self.may_clip,
            hands_over=True,
            bootstraps=True,
        )


class DecisionQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Which decisions an operator wants to see; an empty word is no filter."""

    word: _Name = ""
    lane: _Name = ""
    engine: _Name = ""
    attempt: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)] | None = None
    most: Annotated[int, msgspec.Meta(ge=1, le=MOST_DECISIONS_ASKED)] = 100

    def filter(self) -> DecisionFilter:
        """Return the filter that this query describes."""
        return DecisionFilter(self.word or None, self.lane or None, self.engine or None, self.attempt)


def plain(value: Any) -> Any:
    """Return records as mappings, all the way down: counts by word become {word: count}, enums their words."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: plain(item) for name, item in value._asdict().items()}
    if is_dataclass(value) and not isinstance(value, type):
        counted = _counted_fields(type(value))
        return {
            field.name: {str(word): count for word, count in getattr(value, field.name)}
            if field.name in counted
            else plain(getattr(value, field.name))
            for field in fields(value)
        }
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value


def plain_explanation(explanation: Explanation) -> dict[str, Any]:
    """Return an explanation as mappings; its decision says of itself which kind it is."""
    kind = type(explanation.decision).__name__.lower()
    told = {**plain(explanation), "decision": {"kind": kind, **plain(explanation.decision)}}
    if explanation.classed is not None:
        told["lane_because"] = class_words(explanation.classed)
    if explanation.candidates:
        told["engine_because"] = placement_words(explanation.candidates)
    return told


@cache
def _counted_fields(record: type) -> frozenset[str]:
    """Return the fields that are declared as pairs: an empty one must become {} and not []."""
    return frozenset(
        field.name
        for field in fields(record)
        if any(get_origin(item) is tuple and len(get_args(item)) == 2 for item in get_args(field.type))
    )
