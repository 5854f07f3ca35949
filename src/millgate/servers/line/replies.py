"""Every reply that the line door can give, with the receipts that belong to it."""

import hashlib
from base64 import b64encode
from collections.abc import Iterator
from math import ceil
from typing import Final, NamedTuple

from millgate.dialects.line import (
    NO_JOB,
    Fault,
    JobOutcome,
    LineReply,
    Need,
    OutcomeReason,
    Receipt,
    Status,
    write_reply,
)
from millgate.dialects.line_requests import LineChunk, Manifest, Verb
from millgate.servers.line.buffer import Buffer
from millgate.servers.line.contract import NO_WORDS, ErrorWords, Readings

_RESULT_CHUNK_BYTES: Final = 48 * 1024
"""64 KiB in base64: well within the shortest line that a reader of 262,144 bytes takes."""


class To(NamedTuple):
    """What a reply answers: the job, its newest frame, and the time to live that is echoed."""

    job: str = NO_JOB
    seq: int = 0
    ttl_ms: int = 0


def core_receipts(readings: Readings, bytes_in: int) -> list[Receipt]:
    """Return the six numbers that every reply carries."""
    return [
        Receipt("server.health", readings.health),
        Receipt("backend.inflight", readings.inflight),
        Receipt("backend.cap", readings.cap),
        Receipt("server.executed_total", readings.executed),
        Receipt("server.yielded_total", readings.yielded),
        Receipt("cdr.bytes_in", bytes_in),
    ]


def _ending(outcome: JobOutcome, reason: OutcomeReason | None = None) -> list[Receipt]:
    receipts = [Receipt("conn.outcome", outcome)]
    if reason is not None:
        receipts.append(Receipt("conn.outcome_reason", reason))
    return receipts


def taken(to: To, core: list[Receipt], verb: Verb = Verb.CLARIFY) -> bytes:
    """So far so good; also what keeps a client of a long job patient, and with CONFIRM the answer to a ping."""
    return write_reply(LineReply(verb, to.job, to.seq + 1, Status.OK, ttl_ms=to.ttl_ms, receipts=core))


def needed(to: To, core: list[Receipt], need: Need, fault: Fault, message: str = "") -> bytes:
    """Something has to be sent differently."""
    reply = LineReply(Verb.CLARIFY, to.job, to.seq + 1, Status.NEED, need, fault, 0, to.ttl_ms, core)
    return write_reply(reply._replace(message=message))


def yielded(to: To, core: list[Receipt], hint_s: float) -> bytes:
    """Not now: come back with the same frame in `hint_s`."""
    hint_ms = max(1, ceil(hint_s * 1000))
    ending = _ending(JobOutcome.YIELDED, OutcomeReason.BUSY)
    receipts = [*core, *ending, Receipt("conn.retry_hint_ms", hint_ms)]
    need, fault, seq = Need.SERVER_BUSY, Fault.BUSY, to.seq + 2
    return write_reply(
        LineReply(Verb.CLARIFY, to.job, seq, Status.YIELD, need, fault, hint_ms, to.ttl_ms, receipts)
    )


def done(to: To, core: list[Receipt], backend_ms: int) -> bytes:
    """The job has been executed."""
    receipts = [*core, *_ending(JobOutcome.DONE), Receipt("cdr.backend.ms", backend_ms)]
    return write_reply(
        LineReply(Verb.CONFIRM, to.job, to.seq + 2, Status.DONE, ttl_ms=to.ttl_ms, receipts=receipts)
    )


def aborted(
    to: To,
    core: list[Receipt],
    need: Need,
    fault: Fault,
    reason: OutcomeReason,
    outcome: JobOutcome = JobOutcome.ABORTED,
    words: ErrorWords = NO_WORDS,
    hint_s: float = 0.0,
) -> bytes:
    """The job, or the whole connection where no job is named, ends here; the same may be tried anew in `hint_s`, 0 for never."""
    seq = to.seq + (1 if to.job == NO_JOB else 2)
    receipts = [*core, *_ending(outcome, reason)]
    hint_ms = ceil(hint_s * 1000)
    reply = LineReply(Verb.CONFIRM, to.job, seq, Status.ABORT, need, fault, hint_ms, to.ttl_ms, receipts)
    return write_reply(reply._replace(message=words.message, request_id=words.request_id))


def result_lines(
    to: To, core: list[Receipt], payload_id: str, content_type: str, result: Buffer, last: bytes
) -> Iterator[bytes]:
    """Yield an answer as a manifest and chunks, then `last`."""
    data, step = result.data, _RESULT_CHUNK_BYTES
    chunks = max(1, -(-len(data) // step))
    digest = hashlib.sha256(data).hexdigest()
    manifest = Manifest(payload_id, content_type, "", "", len(data), step, chunks, digest)
    yield write_reply(
        LineReply(Verb.RESULT, to.job, to.seq + 1, Status.OK, "", "", 0, to.ttl_ms, core, manifest)
    )
    for index in range(chunks):
        piece = bytes(data[index * step : (index + 1) * step])
        chunk = LineChunk(
            payload_id, index, index * step, hashlib.sha256(piece).hexdigest(), b64encode(piece).decode()
        )
        yield write_reply(
            LineReply(Verb.RESULT, to.job, to.seq + 1, Status.OK, "", "", 0, to.ttl_ms, core, None, chunk)
        )
    yield last
