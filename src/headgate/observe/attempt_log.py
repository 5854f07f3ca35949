"""One line of JSON for every attempt that is over, written by a thread in batches, never in the way of a request.

The path appends a record to a bounded list. A thread takes what has gathered, makes lines of it and writes them. A
full disk, a closed pipe or a reader that has stopped costs lines, which are counted, and never a request. A line
holds numbers, names from the configuration, words of closed lists, and the request id; never a prompt, an answer, a
key, or a tenant's name that is not configured. JSON's escapes keep control characters out of it.
"""

import contextlib
import os
import re
import threading
import time
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec

from headgate.core.decisions import Admit, Ended, Yield
from headgate.core.words import Outcome
from headgate.observe.ring import Facts, place_in_facts

MOST_WAITING_LINES: Final = 20_000
"""Records between the path and a slow disk; at some 700 bytes each they hold 14 MB (INV-5)."""
STDOUT: Final = "-"
"""The path that means standard output."""
_BATCH_S: Final = 0.1
"""How long lines gather before they are written: at 5,000 attempts a second 500 lines for one write."""
_LAST_WORDS_S: Final = 1.0
_TENANT: Final = place_in_facts("tenant")
_LANE: Final = place_in_facts("lane")
_STREAM: Final = place_in_facts("stream")
_RETRY_COUNT: Final = place_in_facts("retry_count")
_PROMPT_BYTES: Final = place_in_facts("prompt_bytes")
_STDOUT: Final = 1
_MOST_NAMES: Final = 4096
_OPEN_TENANT: Final = re.compile(r"key-[0-9a-f]{24}|others")
"""The names that the gate makes of credentials are hashes already."""


class Finish(NamedTuple):
    """One attempt that is over at core time `at`: what it asked, how it was admitted, how it ended, its given id."""

    at: float
    facts: Facts
    admit: Admit | None
    final: Ended | Yield
    request_id: bytes | None


class Line(msgspec.Struct, omit_defaults=True, gc=False):
    """What is written; times are seconds, what was never reached is left out. docs/how-to/logs-and-why.md explains it."""

    time: str
    id: str
    attempt: int
    outcome: str
    reason: str | None = None
    retry_after_s: float | None = None
    retry: bool | None = None
    tenant: str | None = None
    lane: str | None = None
    engine: str | None = None
    stream: bool | None = None
    retry_count: int | None = None
    prompt_bytes: int | None = None
    expected_prompt_tokens: int | None = None
    reserved_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    waited_s: float | None = None
    window_s: float | None = None
    expected_ttft_s: float | None = None
    ttft_s: float | None = None
    total_s: float | None = None


class AttemptLog:
    """Writes to a file, or to standard output for the path `-`; `tenants` are the names that may stand in it.

    Raises OSError when the file cannot be opened. `boot` begins the ids that the door makes. Core time is the
    system's monotonic time. Other tenants' names are written as keyed hashes, another key for every process.
    """

    def __init__(
        self, path: str, *, boot: str = "", first_lane: str = "", tenants: Iterable[str] = ()
    ) -> None:
        self._crowded_out = 0
        self._unwritten = 0
        self._path = path
        self._boot = boot
        self._first_lane = first_lane
        self._tenants = {name: name for name in tenants}
        self._secret = os.urandom(32)
        self._waiting: deque[Finish] = deque()
        self._told = False
        self._wake = threading.Event()
        self._ending = False
        self._reopening = False
        self._torn = False
        self._second, self._second_words = 0, ""
        self._encode = msgspec.json.Encoder().encode
        self._descriptor: int | None = _open(path)
        self._thread = threading.Thread(target=self._run, name="attempt log", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """How many lines were lost: too many waited, or they could not be written."""
        return self._crowded_out + self._unwritten  # one counter for each thread: neither waits for the other

    # ---- on the path

    def add(self, finish: Finish) -> None:
        """Write this soon, or drop and count it when too many wait."""
        if len(self._waiting) >= MOST_WAITING_LINES:
            self._crowded_out += 1
            return
        self._waiting.append(finish)
        if not self._told:
            self._told = True
            self._wake.set()

    def reopen(self) -> None:
        """Open the file anew soon and before the next line: its old name may have been moved away."""
        self._reopening = True
        self._wake.set()

    def close(self) -> None:
        """Write what waits, within about a second, and stop."""
        self._ending = True
        self._wake.set()
        self._thread.join(_LAST_WORDS_S)

    # ---- in the thread

    def _run(self) -> None:
        while not self._ending:
            self._wake.wait()
            if not self._ending:
                time.sleep(_BATCH_S)
            self._wake.clear()
            self._told = False
            self._write_waiting()
        self._write_waiting()
        if self._descriptor is not None and self._descriptor != _STDOUT:
            os.close(self._descriptor)

    def _write_waiting(self) -> None:
        batch = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if self._reopening or self._descriptor is None:
            self._open_again()
        if batch and not self._write(self._lines(batch)):
            self._unwritten += len(batch)

    def _open_again(self) -> None:
        self._reopening = False
        if self._path == STDOUT:
            return
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        with contextlib.suppress(OSError):
            self._descriptor = _open(self._path)
            self._torn = self._torn and os.fstat(self._descriptor).st_size > 0

    def _write(self, data: bytes) -> bool:
        """Write a batch whole; return False when it could not be, which loses all of it but what is on the disk."""
        if self._descriptor is None:
            return False
        if self._torn:
            data = b"\n" + data
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
                self._torn = True
        except OSError:
            return False
        self._torn = False
        return True

    def _lines(self, batch: list[Finish]) -> bytes:
        epoch_s = time.time() - time.monotonic()
        encode = self._encode
        return b"".join([encode(self._line(finish, epoch_s)) + b"\n" for finish in batch])

    def _line(self, finish: Finish, epoch_s: float) -> Line:
        at, facts, admit, final, given = finish
        number = final.attempt
        line = Line(
            self._moment(at + epoch_s),
            f"{self._boot}-{number:x}" if given is None else given.decode("latin-1"),
            number,
            Outcome.YIELDED,
        )
        line.tenant = self._tenant(facts[_TENANT])
        line.lane = facts[_LANE] or self._first_lane or None
        line.stream = facts[_STREAM]
        line.retry_count = facts[_RETRY_COUNT]
        line.prompt_bytes = facts[_PROMPT_BYTES]
        if admit is not None:
            _say_expected(line, admit)
        if isinstance(final, Yield):
            _say_refused(line, final)
        else:
            _say_ended(line, final)
        return line

    def _moment(self, epoch_s: float) -> str:
        """Return the time of day in UTC to the millisecond, as RFC 3339 writes it; seconds repeat and are kept."""
        second, part = divmod(round(1000.0 * epoch_s), 1000)
        if second != self._second:
            self._second = second
            self._second_words = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return f"{self._second_words}.{part:03d}Z"

    def _tenant(self, tenant: str) -> str | None:
        """Return a configured name, a hash for any other, and None for nobody's."""
        known = self._tenants.get(tenant)
        if known is not None or not tenant:
            return known
        if _OPEN_TENANT.fullmatch(tenant):
            return tenant
        hashed = "tenant-" + blake2b(tenant.encode(), digest_size=8, key=self._secret).hexdigest()
        if len(self._tenants) < _MOST_NAMES:
            self._tenants[tenant] = hashed
        return hashed


def _open(path: str) -> int:
    if path == STDOUT:
        return _STDOUT
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)


def _say_expected(line: Line, admit: Admit) -> None:
    leg = admit.legs[0]
    line.engine = leg.engine
    line.expected_prompt_tokens = leg.prompt_tokens
    line.reserved_tokens = leg.kv_tokens
    line.expected_ttft_s = round(admit.expected_ttft_s, 4)
    line.window_s = round(admit.window_s, 4) or None


def _say_refused(line: Line, final: Yield) -> None:
    line.reason = final.reason
    line.retry = final.retry
    if final.retry:
        line.retry_after_s = round(final.retry_after_s, 3)


def _say_ended(line: Line, final: Ended) -> None:
    line.outcome = final.outcome
    line.reason = final.cause
    line.lane = final.lane
    line.waited_s = round(final.waited_s, 4)
    line.total_s = round(final.total_s, 4)
    line.ttft_s = None if final.ttft_s is None else round(final.ttft_s, 4)
    if final.engine is not None:
        line.engine = final.engine
        line.prompt_tokens = final.prompt_tokens
        line.cached_tokens = final.cached_tokens
        line.output_tokens = final.output_tokens
