"""What a payload asks of the engines: a short one is read at once, a long one elsewhere."""

from collections.abc import Callable
from json import detect_encoding
from typing import Final

from millgate.dialects import READERS
from millgate.dialects.bodies import no_such_model, not_yours
from millgate.dialects.contract import BadInputError, RequestFacts
from millgate.dialects.far_reading import Question
from millgate.runtime.long_bodies import LONG_BYTES, LongBodies, Outcome, WaitingBody
from millgate.servers.line.buffer import Buffer

_NO_FACTS: Final = RequestFacts(model="", stream=False, max_tokens=None, answers=1, include_usage=None)
_OPENING_BYTES: Final = 1024
_DISGUISED: Final = BadInputError("body: JSON is UTF-8 without a byte order mark")
_STORED: Final = "previous_response_id or conversation: the line door keeps no answers to go on from; send the whole conversation"
_UNREAD: Final = "the gateway could not read this payload; send it again"


class Payloads:
    """Reads payloads as requests to the engines' `path`, one of `READERS`; what is no JSON object is the engine's to judge."""

    def __init__(self, path: bytes, bodies: LongBodies) -> None:
        self._path = path
        self._read = READERS[path]
        self._bodies = bodies

    def read(
        self, payload: Buffer, told: Callable[[Outcome], None], mark_seed: int | None = None
    ) -> WaitingBody | None:
        """Tell what this payload asks for: now, or in a later turn of the loop, for which something waits then.

        With a `mark_seed` the prefixes of a long one are marked.
        """
        if not _may_be_object(payload):
            told(_DISGUISED if _is_disguised(payload) else _NO_FACTS)
            return None
        body = bytes(payload.data)
        if len(body) > LONG_BYTES:
            return self._bodies.read(Question(self._path, b"", len(body), mark_seed), body, told)
        try:
            outcome: Outcome = self._read(body)
        except BadInputError as error:
            outcome = error
        told(outcome)
        return None


def why_refused(outcome: Outcome, models: frozenset[str] | None) -> str:
    """Say for the client why its payload is refused, empty where it is not; `models` None lets every name pass."""
    if not isinstance(outcome, RequestFacts):
        return outcome.message if isinstance(outcome, BadInputError) else _UNREAD
    if outcome.reserved:
        return not_yours(outcome.reserved).message
    if models is not None and outcome.model not in models:
        return no_such_model(outcome.model).message
    return _STORED if outcome.previous_id else ""


def _may_be_object(payload: Buffer) -> bool:
    """Look at how it begins; a megabyte of white space leaves that open."""
    opening = bytes(payload.data[:LONG_BYTES]).lstrip()[:1]
    return opening == b"{" or (not opening and len(payload) > LONG_BYTES)


def _is_disguised(payload: Buffer) -> bool:
    """Whether an engine may read an object here all the same: Python's decoder, which most have, takes UTF-16 and more."""
    opening = bytes(payload.data[:_OPENING_BYTES])
    encoding = detect_encoding(opening)
    text = "" if encoding == "utf-8" else opening.decode(encoding, "ignore")
    return text != "" and text.lstrip()[:1] in {"{", ""}
