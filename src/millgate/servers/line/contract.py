"""What the pieces of the line door ask of each other, and its bounds with the source of each."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from millgate.dialects.line_requests import Manifest
from millgate.servers.line.buffer import Buffer


@dataclass(frozen=True, slots=True)
class LineLimits:
    """Bounds of the door; times are seconds.

    `line_bytes`, `jobs` (unfinished, per connection), `payload_bytes` and `idle_s` are the published daemon's. A
    silent gap must stay under 20 s for its client, and `keep_alive_s` is half of that. `unsent_bytes` of replies
    that a peer does not read stop the reading from it, and after `write_stall_s` it is cut. What a peer sends after the last
    reply is dropped for `linger_s`. An upload may be silent
    for `idle_s` and must come at `upload_rate` bytes a second, a slow phone line. It may find no room for `room_s`: by then those
    that stall have been given up.

    Before the token a line has at most `first_line_bytes`: two names of 1,024 characters, escaped, and the rest of a
    manifest. Lines are taken in turns of `turn_lines` or `turn_bytes`, about a millisecond, and then it is the others'
    turn. What is kept of lines beyond `unbooked_bytes` is booked on the byte budget.
    """

    connections: int = 4096
    line_bytes: int = 262_144
    jobs: int = 64
    payload_bytes: int = 50 * 1024 * 1024
    idle_s: float = 60.0
    room_s: float = 120.0
    keep_alive_s: float = 10.0
    write_stall_s: float = 30.0
    linger_s: float = 1.0
    upload_rate: float = 10_000.0
    unsent_bytes: int = 64 * 1024
    first_line_bytes: int = 16 * 1024
    turn_lines: int = 64
    turn_bytes: int = 128 * 1024
    unbooked_bytes: int = 4096


@dataclass(frozen=True, slots=True)
class LineSettings:
    """What the door may be told: the engines' path that payloads are posted to, one that has a reader, and the lane of its jobs.

    With a `token`, the first frame of a connection must carry it.
    """

    path: str = "/v1/chat/completions"
    lane: str = "line"
    token: str | None = None
    limits: LineLimits = field(default_factory=LineLimits)


class ErrorWords(NamedTuple):
    """What is said about a job that failed, beyond the protocol's codes; both may be empty."""

    message: str = ""
    request_id: str = ""


NO_WORDS: Final = ErrorWords()


class Readings(NamedTuple):
    """The numbers that every reply carries: permits out and their cap over all doors, starts and yields of this one."""

    inflight: int
    cap: int
    executed: int
    yielded: int

    @property
    def health(self) -> int:
        """1 ready, 0 saturated."""
        return int(self.inflight < self.cap)


# ---- what a session asks of its connection


class SendBytes(NamedTuple):
    """Write these whole lines."""

    data: bytes


class SendAll(NamedTuple):
    """Write these lines as fast as the peer reads them, then wipe the result that they are made of."""

    lines: Iterator[bytes]
    result: Buffer


class Ask(NamedTuple):
    """This upload is whole: ask for a slot.

    `mark` tells this job from every other, through all its returns; `first_asked_at` is None the first time.
    """

    job: int
    mark: int
    first_asked_at: float | None
    payload: Buffer
    manifest: Manifest


class Drop(NamedTuple):
    """The client has given up this job."""

    job: int


class Withdraw(NamedTuple):
    """The jobs with these marks were yielded, and their peer has left: nothing is kept free for them."""

    marks: tuple[int, ...]


class Close(NamedTuple):
    """SendBytes what was to be sent, these `words` last of all, then close."""

    words: bytes = b""


Wish = SendBytes | SendAll | Ask | Drop | Withdraw | Close
