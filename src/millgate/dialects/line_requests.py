"""Requests of the line protocol as every known client writes them, read in a fifth of the time.

The rules of the protocol accept far more (`line`): keys in any case, unknown ones, null, a name twice. What is written
plainly means the same to both readers; for anything else `read_plainly` returns None. Structs stay with the interpreter.
"""

from typing import Annotated, Final, Literal

import msgspec

MOST_NAME: Final = 1024
"""Characters of a job or payload id: file names end at 255; without a bound a line could be one name."""
_Whole = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Counted = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MOST_NAME)]


class PlainManifest(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """What a payload will be."""

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


class PlainChunk(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """One piece of a payload, in base64."""

    payload_id: str = ""
    index: _Whole = 0
    offset: _Whole = 0
    sha256: str = ""
    bytes_b64: str = ""


class PlainRequest(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """One frame of a client."""

    verb: Literal["share", "ping"]
    job: _Name
    seq: _Counted
    v: Literal[0] = 0
    ttl_ms: _Whole = 0
    token: str = ""
    payload_manifest: PlainManifest | None = None
    payload_chunk: PlainChunk | None = None


_decode: Final = msgspec.json.Decoder(PlainRequest).decode


def read_plainly(line: bytes) -> PlainRequest | None:
    """Return the frame of a plain line, None for any other."""
    try:
        request = _decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    shares = (request.payload_manifest is None) != (request.payload_chunk is None)
    return request if shares or request.verb == "ping" else None
