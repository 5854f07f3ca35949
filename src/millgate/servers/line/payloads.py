"""What a payload asks of the engines: a short one is read at once, a long one elsewhere."""

from collections.abc import Callable
from typing import Final

from millgate.dialects.contract import BadInputError, Reader, RequestFacts
from millgate.dialects.far_reading import Question
from millgate.runtime.long_bodies import LONG_BYTES, LongBodies, Outcome, WaitingBody
from millgate.servers.line.buffer import Buffer

_NO_FACTS: Final = RequestFacts(model="", stream=False, max_tokens=None, answers=1, include_usage=None)
_UNREAD: Final = "the gateway could not read this payload; send it again"


class Payloads:
    """Reads payloads as requests to the engines' `path`; anything that is no JSON object is the engine's to judge."""

    def __init__(self, path: bytes, reader: Reader | None, bodies: LongBodies) -> None:
        self._path = path
        self._reader = reader
        self._bodies = bodies

    def read(
        self, payload: Buffer, told: Callable[[Outcome], None], mark_seed: int | None = None
    ) -> WaitingBody | None:
        """Tell what this payload asks for: now, or in a later turn of the loop, for which something waits then.

        With a `mark_seed` the prefixes of a long one are marked.
        """
        reader = self._reader
        if reader is None or not _may_be_object(payload):
            told(_NO_FACTS)
            return None
        body = bytes(payload.data)
        if len(body) > LONG_BYTES:
            return self._bodies.read(Question(self._path, b"", len(body), mark_seed), body, told)
        try:
            outcome: Outcome = reader(body)
        except BadInputError as error:
            outcome = error
        told(outcome)
        return None


def why_unread(outcome: Exception) -> str:
    """Say for the client why there are no facts."""
    return outcome.message if isinstance(outcome, BadInputError) else _UNREAD


def _may_be_object(payload: Buffer) -> bool:
    """Look at how it begins; a megabyte of white space leaves that open."""
    opening = bytes(payload.data[:LONG_BYTES]).lstrip()[:1]
    return opening == b"{" or (not opening and len(payload) > LONG_BYTES)
