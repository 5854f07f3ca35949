"""One line of JSON for every attempt that is over, made as its end is booked and written soon after.

A line holds numbers, names from the configuration, words of closed lists, and the request id; never a prompt, an answer,
a key, or a tenant's name that is not configured. JSON's escapes keep control characters out of it.
"""

import os
import re
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from hashlib import blake2b
from math import floor
from typing import Final

import msgspec

from headgate.core.decisions import Admit, Ended, Yield
from headgate.core.words import Outcome
from headgate.observe.attempt_line import Line
from headgate.observe.line_writer import LineWriter
from headgate.observe.ring import Facts, place_in_facts

_TENANT: Final = place_in_facts("tenant")
_LANE: Final = place_in_facts("lane")
_STREAM: Final = place_in_facts("stream")
_RETRY_COUNT: Final = place_in_facts("retry_count")
_PROMPT_BYTES: Final = place_in_facts("prompt_bytes")
_MOST_NAMES: Final = 4096
_LONGEST_S: Final = 1e9
_OPEN_TENANT: Final = re.compile(r"key-[0-9a-f]{24}|others")
"""The names that the gate makes of credentials are hashes already."""


class AttemptLog:
    """Writes to a file, or to standard output for the path `-`; `tenants` are the names that may stand in it.

    Raises OSError when the file cannot be opened. `boot` begins the ids that the door makes. Core time is the
    system's monotonic time. Other tenants' names are written as keyed hashes, another key for every process.
    """

    def __init__(
        self, path: str, *, boot: str = "", first_lane: str = "", tenants: Iterable[str] = ()
    ) -> None:
        self._boot = boot
        self._first_lane = first_lane
        self._tenants = {name: name for name in tenants}
        self._secret = os.urandom(32)
        self._core_second = -1
        self._core_epoch_s = 0.0
        self._second, self._second_words = 0, ""
        self._encode = msgspec.json.Encoder().encode
        self._writer = LineWriter(path)

    @property
    def dropped(self) -> int:
        """How many lines were lost: too many waited, or they could not be written."""
        return self._writer.dropped

    def add(
        self, at: float, facts: Facts, admit: Admit | None, final: Ended | Yield, request_id: bytes | None
    ) -> None:
        """Write soon what became of an attempt that is over at core time `at`.

        `facts` are what it asked, `admit` how it was admitted, `final` how it ended, `request_id` what its client calls it.
        """
        self._writer.add(self._encode(self._line(at, facts, admit, final, request_id)))

    def reopen(self) -> None:
        """Open the file anew soon and before the next line: its old name may have been moved away."""
        self._writer.reopen()

    def close(self) -> None:
        """Write what waits, within about a second, and stop."""
        self._writer.close()

    def _line(
        self, at: float, facts: Facts, admit: Admit | None, final: Ended | Yield, request_id: bytes | None
    ) -> Line:
        number = final.attempt
        line = Line(
            self._moment(at),
            f"{self._boot}-{number:x}" if request_id is None else request_id.decode("latin-1"),
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

    def _moment(self, at: float) -> str:
        """Return the time of day in UTC to the millisecond, as RFC 3339 writes it.

        Both clocks are compared, and the second is put into words, once a second.
        """
        core_second = floor(at)
        if core_second != self._core_second:
            self._core_second = core_second
            self._core_epoch_s = time.time() - time.monotonic()
        second, part = divmod(floor(1000.0 * (at + self._core_epoch_s) + 0.5), 1000)
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


def _rounded(seconds: float) -> float:
    """Return a time to a tenth of a millisecond, and one beyond all measure as it is: JSON has null for it.

    `round` finds the same number by writing and reading it, which takes five times as long.
    """
    if not -_LONGEST_S < seconds < _LONGEST_S:
        return seconds
    return floor(seconds * 10_000.0 + 0.5) / 10_000.0


def _say_expected(line: Line, admit: Admit) -> None:
    leg = admit.legs[0]
    line.engine = leg.engine
    line.expected_prompt_tokens = leg.prompt_tokens
    line.reserved_tokens = leg.kv_tokens
    line.expected_ttft_s = _rounded(admit.expected_ttft_s)
    line.window_s = _rounded(admit.window_s) or None


def _say_refused(line: Line, final: Yield) -> None:
    line.reason = final.reason
    line.retry = final.retry
    if final.retry:
        line.retry_after_s = _rounded(final.retry_after_s)


def _say_ended(line: Line, final: Ended) -> None:
    line.outcome = final.outcome
    line.reason = final.cause
    line.lane = final.lane
    line.waited_s = _rounded(final.waited_s)
    line.total_s = _rounded(final.total_s)
    line.ttft_s = None if final.ttft_s is None else _rounded(final.ttft_s)
    if final.engine is not None:
        line.engine = final.engine
        line.prompt_tokens = final.prompt_tokens
        line.cached_tokens = final.cached_tokens
        line.output_tokens = final.output_tokens
