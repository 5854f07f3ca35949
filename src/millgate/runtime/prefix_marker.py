"""Marks of prefixes for the doors of one gate: made when the core asks, but for long bodies, which are marked where they are read."""

from millgate.core.events import PrefixMarks
from millgate.dialects.contract import RequestFacts
from millgate.dialects.conversations import prefix_marks
from millgate.dialects.prefix_chain import ConversationReader, mark_seed
from millgate.runtime.long_bodies import LONG_BYTES


class PrefixMarker:
    """Makes marks with a seed from this secret; gates that share the secret agree on them."""

    def __init__(self, secret: bytes) -> None:
        self.seed = mark_seed(secret)

    def marks(
        self, read: ConversationReader | None, facts: RequestFacts, body: bytes | bytearray
    ) -> PrefixMarks:
        """Return the marks of a body's conversation: those that came with a long one, and none of one that is gone."""
        if facts.marks is not None or read is None or len(body) > LONG_BYTES:
            return facts.marks or ()
        return prefix_marks(read, bytes(body), self.seed)

    def long_seed(self, engines: int) -> int | None:
        """Return the seed with which the reader of a long body marks it; None where there is one engine to choose from."""
        return self.seed if engines > 1 else None
