"""Requests of the line protocol, and how every known client writes them: read in a fifth of the time.

The rules of the protocol accept far more (`line`): keys in any case, unknown ones, null, a name twice. What is written
plainly means the same to both readers; for anything else `read_plainly` returns None. Structs stay with the interpreter.
"""

from enum import StrEnum
from typing import Annotated, Final, Literal

import msgspec

MOST_NAME: Final = 1024
"""Characters of a job or payload id: file names end at 255; without a bound a line could be one name."""
_Whole = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Counted = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MOST_NAME)]


class Verb(StrEnum):
    """What a frame is; the first two are the client's, `result` is ours and only sent when asked for."""

    SHARE = "share"
    PING = "ping"
    CLARIFY = "clarify"
    CONFIRM = "confirm"
    RESULT = "result"


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """What will be uploaded; `want_result` asks for the engine's answer, and `session` names the session that it is a turn of."""

    payload_id: str = ""
    content_type: str = ""
    content_encoding: str = ""
    cipher: str = ""
    total_bytes: _Whole = 0
    chunk_bytes: _Whole = 0
    chunks: _Whole = 0
    sha256: str = ""
    want_result: bool = False
    session: str = ""

    @property
    def most_bytes(self) -> int:
        """What can come at most, by all that it says about the size."""
        return min(self.total_bytes, self.chunk_bytes * self.chunks)

    def is_valid(self) -> bool:
        """Whether it can be taken, if there is room for its size: named, plain, not empty."""
        plain = self.content_encoding in {"", "identity"} and self.cipher in {"", "none"}
        sized = min(self.total_bytes, self.chunk_bytes, self.chunks) > 0
        named = 0 < len(self.payload_id) <= MOST_NAME
        # Kept as long as the job is, so bounded as its name is.
        named &= max(len(self.content_type), len(self.sha256), len(self.session)) <= MOST_NAME
        return named and plain and sized


class LineChunk(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One piece of a payload, still in base64; `number` is its 0-based index."""

    payload_id: str = ""
    number: _Whole = msgspec.field(default=0, name="index")
    offset: _Whole = 0
    sha256: str = ""
    bytes_b64: str = ""


class LineRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One well-formed frame of a client."""

    verb: Verb
    job: _Name
    seq: _Counted
    ttl_ms: _Whole = 0
    manifest: Manifest | None = msgspec.field(default=None, name="payload_manifest")
    chunk: LineChunk | None = msgspec.field(default=None, name="payload_chunk")
    token: str = ""
    v: Literal[0] = 0


_decode: Final = msgspec.json.Decoder(LineRequest).decode


def read_plainly(line: bytes) -> LineRequest | None:
    """Return the frame of a plain line, None for any other."""
    try:
        request = _decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    shares = request.verb is Verb.SHARE and (request.manifest is None) != (request.chunk is None)
    return request if shares or request.verb is Verb.PING else None
