"""Frames of the line protocol: newline-delimited JSON over TCP, wire version 0 of the Heptamini ingress governor.

Both sides use this page: the door reads requests and writes replies, the client writes requests and reads replies.
Reading follows the rules of the JSON decoder that the protocol was published with (Go's). Key names match without
case, unknown keys are ignored, the last duplicate wins, null leaves a field as it was, and a number of the wrong
kind spoils the line. Some fields are ours and optional: `token` in a request, `want_result` and `session` in a manifest, and
`message` and `request_id` in a reply that aborts a job, `message` also where a manifest is too large.
"""

import json
import re
from collections.abc import Mapping, Sequence
from enum import IntEnum, StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from millgate.dialects.line_requests import MOST_NAME, LineChunk, LineRequest, Manifest, Verb, read_plainly

PORT: Final = 7777
MOST_SEQ: Final = 2**64 - 1
NO_JOB: Final = "J_?"
"""The job of a reply to something that names none."""
_MOST_WORDS: Final = 500
"""Characters of a message: a sentence or two of an engine, and a line on a terminal."""
_MOST_RECEIPTS: Final = 64
"""So many are looked at: a reply carries ten, and a line of nothing else would take 0.1 s."""
MOST_NESTED: Final = 1_024
"""Arrays and objects of one line: a reply has a dozen, and a line of nothing else would hold the loop for 0.05 s."""
_INT64: Final = 2**63 - 1
_encode: Final = msgspec.json.Encoder().encode
# For a name with half of a surrogate pair, which JSON can spell and UTF-8 cannot.
_ESCAPED: Final = json.JSONEncoder(separators=(",", ":"))


class Status(StrEnum):
    """How a reply stands."""

    OK = "ok"
    NEED = "need"
    YIELD = "yield"
    DONE = "done"
    ABORT = "abort"


class Need(StrEnum):
    """What exactly a `need`, `yield` or `abort` is about."""

    MANIFEST_INVALID = "manifest_invalid"
    MANIFEST_MISSING = "manifest_missing"
    PAYLOAD_ID_MISMATCH = "payload_id_mismatch"
    CHUNK_EXPECTED_INDEX = "chunk_expected_index"
    CHUNK_B64_INVALID = "chunk_b64_invalid"
    CHUNK_TOO_LARGE = "chunk_too_large"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    CHUNK_HASH_MISMATCH = "chunk_hash_mismatch"
    PAYLOAD_SIZE_MISMATCH = "payload_size_mismatch"
    PAYLOAD_HASH_MISMATCH = "payload_hash_mismatch"
    SERVER_BUSY = "server_busy"
    BACKEND_ERROR = "backend_error"
    HTTP_REQUEST = "http_request"
    BINARY_GIF = "binary_gif"
    HTML_DOCUMENT = "html_document"
    XML_DOCUMENT = "xml_document"
    JSON_ARRAY = "json_array"
    JSON_MALFORMED = "json_malformed"
    NOT_JSON = "not_json"
    ENVELOPE_INVALID = "envelope_invalid"
    LINE_TOO_LARGE = "line_too_large"
    IDLE_TIMEOUT = "idle_timeout"
    TOO_MANY_JOBS = "too_many_jobs"
    UNAUTHORIZED = "unauthorized"


class Fault(StrEnum):
    """The kind of trouble, `error_code` on the wire."""

    NEED_MANIFEST_FIX = "need_manifest_fix"
    NEED_MORE = "need_more"
    BUSY = "busy"
    BACKEND_ERROR = "backend_error"
    BAD_FRAME = "bad_frame"
    BAD_ENVELOPE = "bad_envelope"
    TIMEOUT = "timeout"
    QUOTA = "quota"


class JobOutcome(IntEnum):
    """`conn.outcome`: how a job, or the connection with it, ended."""

    DONE = 1
    ABORTED = 2
    YIELDED = 3
    TIMEOUT = 4
    PEER_GONE = 5


class OutcomeReason(IntEnum):
    """`conn.outcome_reason`: why."""

    BUSY = 1
    BAD_FRAME = 2
    INVALID_MANIFEST = 3
    INVALID_CHUNK = 4
    QUOTA = 5
    PEER_GONE = 7
    BACKEND_ERROR = 8
    IDLE_TIMEOUT = 9


class Complaint(NamedTuple):
    """Why a line is no request, and the job that it names, if any."""

    need: Need
    fault: Fault
    job: str = NO_JOB
    seq: int = 0
    ttl_ms: int = 0


class Receipt(NamedTuple):
    """One number that a reply carries."""

    kind: str
    value: int


class LineReply(NamedTuple):
    """One frame of a server; empty fields are not sent."""

    verb: Verb
    job: str
    seq: int
    status: Status
    need: str = ""
    error: str = ""
    retry_hint_ms: int = 0
    ttl_ms: int = 0
    receipts: Sequence[Receipt] = ()
    manifest: Manifest | None = None
    chunk: LineChunk | None = None
    message: str = ""
    request_id: str = ""

    def receipt(self, kind: str) -> int | None:
        """Return the value of this receipt, or None."""
        return next((each.value for each in self.receipts if each.kind == kind), None)


class FrameError(ValueError):
    """A server sent something that is no reply of this protocol."""


def plain_words(text: str) -> str:
    """Return this text as one bounded line of characters that can be printed anywhere."""
    # Cut first: what is left out is not looked at. White space shrinks, so there may be a little less than the bound.
    begun = text[: 2 * _MOST_WORDS]
    line = " ".join("".join(each if each.isprintable() else " " for each in begun).split())
    return line if len(line) <= _MOST_WORDS else line[: _MOST_WORDS - 1] + "…"


# ---- requests


def read_request(line: bytes) -> LineRequest | Complaint:
    """Read one line of a client, without its end; never raises."""
    plain = read_plainly(line)
    return read_by_the_rules(line) if plain is None else plain


def read_by_the_rules(line: bytes) -> LineRequest | Complaint:
    """Read a line that may be written in any way that the protocol accepts, or be none; never raises."""
    fields = _load(line)
    if fields is None:
        return Complaint(_kind_of(line), Fault.BAD_FRAME)
    try:
        return _request(fields)
    except _WrongTypeError:
        return Complaint(Need.JSON_MALFORMED, Fault.BAD_FRAME)


def write_request(request: LineRequest) -> bytes:
    """Return the line of a request."""
    fields: dict[str, Any] = {"v": 0, "verb": request.verb, "job": request.job, "seq": request.seq}
    fields["ttl_ms"] = request.ttl_ms
    if request.token:
        fields["token"] = request.token
    _put_payload(fields, request.manifest, request.chunk)
    return _line(fields)


# What only a server may set.
_SERVERS_TEXTS: Final = ("status", "need_code", "error_code")


def _request(fields: Mapping[str, Any]) -> LineRequest | Complaint:
    version = _whole(fields, "v", least=-_INT64 - 1, most=_INT64)
    verb, job = _text(fields, "verb"), _text(fields, "job")
    seq, ttl_ms = _whole(fields, "seq"), _whole(fields, "ttl_ms")
    token = _text(fields, "token")
    manifest, chunk = _manifest(fields), _chunk(fields)
    foreign = bool("".join(_text(fields, name) for name in _SERVERS_TEXTS))
    foreign |= bool(_whole(fields, "retry_hint_ms")) | bool(_receipts(fields))
    named = 0 < len(job) <= MOST_NAME
    known = verb in {Verb.SHARE, Verb.PING}
    shares = (manifest is None) != (chunk is None) if verb == Verb.SHARE else True
    if version != 0 or not named or not known or not shares or seq < 1 or foreign:
        return Complaint(Need.ENVELOPE_INVALID, Fault.BAD_ENVELOPE, job if named else NO_JOB, seq, ttl_ms)
    return LineRequest(Verb(verb), job, seq, ttl_ms, manifest, chunk, token)


_STARTS: Final = (
    (re.compile(rb"(?:GET|POST|PUT|HEAD) "), Need.HTTP_REQUEST),
    (re.compile(rb"GIF8"), Need.BINARY_GIF),
    (re.compile(rb"\s*<(?:!doctype\s+html|html)", re.IGNORECASE), Need.HTML_DOCUMENT),
    (re.compile(rb"\s*<"), Need.XML_DOCUMENT),
    (re.compile(rb"\s*\["), Need.JSON_ARRAY),
    (re.compile(rb"\s*\{"), Need.JSON_MALFORMED),
)


def _kind_of(line: bytes) -> Need:
    """Say what this line is instead of a frame."""
    return next((need for start, need in _STARTS if start.match(line)), Need.NOT_JSON)


# ---- replies


def write_reply(reply: LineReply) -> bytes:
    """Return the line of a reply."""
    fields: dict[str, Any] = {"v": 0, "verb": reply.verb, "job": reply.job, "seq": reply.seq & MOST_SEQ}
    fields["ttl_ms"] = reply.ttl_ms
    fields["status"] = reply.status
    if reply.need:
        fields["need_code"] = reply.need
    if reply.error:
        fields["error_code"] = reply.error
    if reply.retry_hint_ms:
        fields["retry_hint_ms"] = reply.retry_hint_ms
    if reply.message:
        fields["message"] = reply.message
    if reply.request_id:
        fields["request_id"] = reply.request_id
    _put_payload(fields, reply.manifest, reply.chunk)
    fields["receipts"] = [{"kind": each.kind, "value_u64": each.value} for each in reply.receipts]
    return _line(fields)


def read_reply(line: bytes) -> LineReply:
    """Read one line of a server; raises FrameError for what is no reply."""
    fields = _load(line)
    try:
        if fields is None or _whole(fields, "v") != 0:
            raise FrameError("the server's line is no frame of this protocol")
        return LineReply(
            verb=Verb(_text(fields, "verb")),
            job=_text(fields, "job"),
            seq=_whole(fields, "seq"),
            status=Status(_text(fields, "status")),
            need=_text(fields, "need_code"),
            error=_text(fields, "error_code"),
            retry_hint_ms=_whole(fields, "retry_hint_ms"),
            ttl_ms=_whole(fields, "ttl_ms"),
            receipts=_receipts(fields),
            manifest=_manifest(fields),
            chunk=_chunk(fields),
            message=plain_words(_text(fields, "message")),
            request_id=plain_words(_text(fields, "request_id")),
        )
    except (_WrongTypeError, ValueError) as error:
        raise FrameError("the server's line is no frame of this protocol") from error


# ---- fields


class _WrongTypeError(Exception):
    """A field is not of its type."""


def _folded(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key.casefold(): value for key, value in pairs if value is not None}


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_folded, parse_constant=_refuse_constant)


def _load(line: bytes) -> dict[str, Any] | None:
    """Return the object on this line with its keys folded, None for anything else."""
    if line.count(b"[") + line.count(b"{") > MOST_NESTED:
        return None
    try:
        fields = _DECODER.decode(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name, "")
    if not isinstance(value, str):
        raise _WrongTypeError(name)
    return value


def _whole(fields: Mapping[str, Any], name: str, least: int = 0, most: int = MOST_SEQ) -> int:
    value = fields.get(name, 0)
    if type(value) is not int or not least <= value <= most:
        raise _WrongTypeError(name)
    return value


def _truth(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise _WrongTypeError(name)
    return value


def _object(fields: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, dict):
        raise _WrongTypeError(name)
    return value


def _manifest(fields: Mapping[str, Any]) -> Manifest | None:
    inner = _object(fields, "payload_manifest")
    if inner is None:
        return None
    return Manifest(
        payload_id=_text(inner, "payload_id"),
        content_type=_text(inner, "content_type"),
        content_encoding=_text(inner, "content_encoding"),
        cipher=_text(inner, "cipher"),
        total_bytes=_whole(inner, "total_bytes"),
        chunk_bytes=_whole(inner, "chunk_bytes"),
        chunks=_whole(inner, "chunks"),
        sha256=_text(inner, "sha256"),
        want_result=_truth(inner, "want_result"),
        session=_text(inner, "session"),
    )


def _chunk(fields: Mapping[str, Any]) -> LineChunk | None:
    inner = _object(fields, "payload_chunk")
    if inner is None:
        return None
    index, offset = _whole(inner, "index"), _whole(inner, "offset")
    return LineChunk(
        _text(inner, "payload_id"), index, offset, _text(inner, "sha256"), _text(inner, "bytes_b64")
    )


def _receipts(fields: Mapping[str, Any]) -> list[Receipt]:
    value = fields.get("receipts", [])
    if not isinstance(value, list):
        raise _WrongTypeError("receipts")
    looked_at = value[:_MOST_RECEIPTS]
    if not all(isinstance(each, dict) for each in looked_at):
        raise _WrongTypeError("receipts")
    return [Receipt(_text(each, "kind"), _whole(each, "value_u64")) for each in looked_at]


def _put_payload(fields: dict[str, Any], manifest: Manifest | None, chunk: LineChunk | None) -> None:
    if manifest is not None:
        fields["payload_manifest"] = written = msgspec.to_builtins(manifest)
        for ours in ("want_result", "session"):
            if not written[ours]:
                del written[ours]
    if chunk is not None:
        fields["payload_chunk"] = msgspec.to_builtins(chunk)


def _line(fields: Mapping[str, Any]) -> bytes:
    try:
        return _encode(fields) + b"\n"
    except UnicodeEncodeError:
        return _ESCAPED.encode(fields).encode() + b"\n"
