"""A session without a socket, and the frames that a client would send to it."""

import hashlib
import json
from base64 import b64encode
from collections.abc import Iterable
from itertools import count
from typing import Any

from millgate.dialects.line import Fault, LineReply, Need, OutcomeReason, read_reply
from millgate.http1.server.budget import ByteBudget, Share
from millgate.servers.line.buffer import Buffer
from millgate.servers.line.contract import (
    Ask,
    Close,
    Drop,
    ErrorWords,
    LineLimits,
    Readings,
    SendAll,
    SendBytes,
    Wish,
    Withdraw,
)
from millgate.servers.line.session import Session


def frame(verb: str, job: str = "J", seq: int = 1, **more: Any) -> bytes:
    """Return one line of a client."""
    return json.dumps({"v": 0, "verb": verb, "job": job, "seq": seq, **more}).encode() + b"\n"


def ping(job: str = "P", seq: int = 1, **more: Any) -> bytes:
    """Return a ping."""
    return frame("ping", job, seq, **more)


def manifest(payload: bytes, job: str = "J", seq: int = 1, step: int = 4, **more: Any) -> bytes:
    """Return the manifest of a payload, changed by `more`."""
    fields = {
        "payload_id": "p",
        "content_type": "application/json",
        "total_bytes": len(payload),
        "chunk_bytes": step,
        "chunks": max(1, -(-len(payload) // step)),
        "sha256": hashlib.sha256(payload).hexdigest(),
    }
    return frame("share", job, seq, payload_manifest={**fields, **more})


def chunk(payload: bytes, index: int, job: str = "J", seq: int = 2, step: int = 4, **more: Any) -> bytes:
    """Return one chunk of a payload, changed by `more`."""
    piece = payload[index * step : (index + 1) * step]
    fields = {
        "payload_id": "p",
        "index": index,
        "offset": index * step,
        "sha256": hashlib.sha256(piece).hexdigest(),
        "bytes_b64": b64encode(piece).decode(),
    }
    return frame("share", job, seq, payload_chunk={**fields, **more})


def upload(payload: bytes, job: str = "J", step: int = 4, **more: Any) -> bytes:
    """Return every line of an upload."""
    chunks = max(1, -(-len(payload) // step))
    lines = [chunk(payload, index, job, index + 2, step) for index in range(chunks)]
    return manifest(payload, job, 1, step, **more) + b"".join(lines)


class Stand:
    """One session and what it wished for, sorted."""

    def __init__(
        self,
        limits: LineLimits | None = None,
        budget_bytes: int = 1 << 20,
        token: str | None = None,
        share: Share | None = None,
    ) -> None:
        self.now = 0.0
        self.budget = ByteBudget(budget_bytes)
        self.readings = Readings(0, 4, 0, 0)
        marks = count(1)
        trusts = None if token is None else token.__eq__
        self.share = share = share or self.budget.share("", "")
        self.session = Session(
            limits or LineLimits(), lambda: self.readings, share, share, lambda: next(marks), 0.0, trusts
        )
        self.replies: list[LineReply] = []
        self.asks: list[Ask] = []
        self.drops: list[int] = []
        self.withdrawn: list[int] = []
        self.closed = False

    def send(self, data: bytes) -> list[LineReply]:
        """SendBytes bytes and return the replies to them, in as many turns as it takes."""
        said = self.take(self.session.receive(data, self.now))
        while self.session.pending:
            said += self.take(self.session.receive(b"", self.now))
        return said

    def tick(self, at: float) -> list[LineReply]:
        """Let time pass and return what is said then."""
        self.now = at
        return self.take(self.session.tick(at))

    def yielded(self, job: int, hint_s: float = 1.0) -> list[LineReply]:
        """Refuse a job."""
        return self.take(self.session.yielded(job, hint_s, self.now))

    def done(self, job: int, result: bytes | None = None) -> list[LineReply]:
        """Execute a job."""
        answer = None
        if result is not None:
            answer = Buffer(self.share)
            assert answer.append(result)
        return self.take(self.session.done(job, 7, answer, "application/json", self.now))

    def failed(self, job: int) -> list[LineReply]:
        """Fail a job."""
        words = (Need.BACKEND_ERROR, Fault.BACKEND_ERROR, OutcomeReason.BACKEND_ERROR)
        return self.take(self.session.failed(job, *words, ErrorWords(), self.now))

    def take(self, wishes: Iterable[Wish]) -> list[LineReply]:
        """Carry wishes out as a connection would."""
        said: list[LineReply] = []
        for wish in wishes:
            assert not self.closed, "a closed connection was asked for more"
            if isinstance(wish, SendBytes):
                assert wish.data.endswith(b"\n")
                said += [read_reply(line) for line in wish.data.splitlines()]
            elif isinstance(wish, SendAll):
                said += [read_reply(line) for line in wish.lines]
                wish.result.wipe()
            elif isinstance(wish, Ask):
                self.asks.append(wish)
            elif isinstance(wish, Drop):
                self.drops.append(wish.job)
            elif isinstance(wish, Withdraw):
                self.withdrawn += wish.marks
            else:
                assert isinstance(wish, Close)
                said += [read_reply(line) for line in wish.words.splitlines()]
                self.closed = True
        self.replies += said
        return said


def brief(reply: LineReply) -> str:
    """Return a reply in one word each: `clarify/need chunk_expected_index J 3`."""
    need = f" {reply.need}" if reply.need else ""
    return f"{reply.verb}/{reply.status}{need} {reply.job} {reply.seq}"
