"""One line of JSON for every attempt that is over, made as its end is booked and written soon after.

A line holds numbers, names from the configuration, words of closed lists, the request id, and a plain name of a model.
Never a prompt, an answer, a key, or a tenant's name that is not configured. JSON's escapes keep control characters out
of it.
"""

import os
import re
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Final

import msgspec

from millgate.core.decisions import Admit, Ended, Yield
from millgate.core.words import Outcome, Reason
from millgate.observe.attempt_line import AttemptLine
from millgate.observe.line_writer import LineWriter
from millgate.observe.ring import Facts, place_in_facts

_TENANT: Final = place_in_facts("tenant")
_LANE: Final = place_in_facts("lane")
_MODEL: Final = place_in_facts("model")
_STREAM: Final = place_in_facts("stream")
_RETRY_COUNT: Final = place_in_facts("retry_count")
_PROMPT_BYTES: Final = place_in_facts("prompt_bytes")
_GOOD_WORD: Final = Outcome.GOOD.value
"""What most attempts end with; as a plain string it is encoded sooner than as a member of its list."""
_LAST_DIGITS: Final[tuple[str, ...]] = tuple([format(number, "02x") for number in range(256)])
_MOST_NAMES: Final = 4096
_LONGEST_S: Final = 1e9
_OPEN_TENANT: Final = re.compile(r"key-[0-9a-f]{24}|others")
"""The names that the gate makes of credentials are hashes already."""
_PLAIN_MODEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*")
"""How every engine and provider names its models; other text is a client's, and readers of logs might take it for theirs."""


class AttemptLog:
    """Writes to a file, or to standard output for the path `-`; `tenants` are the names that may stand in it.

    Raises OSError when the file cannot be opened. `boot` begins the ids that the door makes. Core time is the
    system's monotonic time. Other tenants' names are written as keyed hashes, another key for every process.
    """

    def __init__(
        self, path: str, *, boot: str = "", first_lane: str = "", tenants: Iterable[str] = ()
    ) -> None:
        self._prefix = boot + "-"
        self._tenants: dict[str, str] = {}
        self.adopt(first_lane, tenants)
        self._secret = os.urandom(32)
        self._core_second = -1
        self._core_epoch_s = 0.0
        self._second, self._second_words = 0, ""
        self._page, self._page_words = 0, ""
        self._millisecond, self._words = 0, ""
        self._lines: list[AttemptLine] = []
        self._encode_lines = msgspec.json.Encoder().encode_lines
        self._writer = LineWriter(path)

    @property
    def dropped(self) -> int:
        """How many lines were lost: too many waited, or they could not be written."""
        return self._writer.dropped

    def adopt(self, first_lane: str, tenants: Iterable[str]) -> None:
        """Name by this lane what names none, and let these tenants' names stand in the file, from the next line on; what runs of one that has left keeps its name."""
        own = [name for name, written in self._tenants.items() if name == written]
        self._first_lane = first_lane
        self._tenants = {name: name for name in (*tenants, *own[:_MOST_NAMES])}

    def add(
        self,
        at: float,
        facts: Facts,
        admit: Admit | None,
        final: Ended | Yield,
        request_id: bytes | None,
        upstream_id: bytes | None = None,
        trace: str | None = None,
    ) -> None:
        """Note what became of an attempt that is over at core time `at`; `hand_over` has it written soon.

        `facts` are what it asked, `admit` how it was admitted, `final` how it ended, `request_id` what its client calls it,
        `upstream_id` what its engine calls it, `trace` the id of its trace.
        """
        name = self._own_name(final.attempt) if request_id is None else request_id.decode("latin-1")
        moment, tenant = self._moment(at), self._tenant(facts[_TENANT])
        theirs = None if upstream_id is None else upstream_id.decode("latin-1")
        if type(final) is Ended:
            self._lines.append(_ended(moment, name, tenant, facts, admit, final, theirs, trace))
        elif type(final) is Yield:
            lane = facts[_LANE] or self._first_lane or None
            if final.classed is not None:
                lane = final.classed.lane
            asked_of = None if admit is None else admit.legs[0].engine
            self._lines.append(_refused(moment, name, tenant, lane, asked_of, facts, final, theirs, trace))

    def hand_over(self) -> None:
        """Let everything that was noted be written soon: one call makes the text of all of it."""
        if self._lines:
            lines, self._lines = self._lines, []
            self._writer.add(self._encode_lines(lines), len(lines))

    def reopen(self) -> None:
        """Open the file anew soon and before the next line: its old name may have been moved away."""
        self._writer.reopen()

    def close(self) -> None:
        """Write what waits, within about a second, and stop."""
        self.hand_over()
        self._writer.close()

    def _own_name(self, number: int) -> str:
        """Return the id that the door makes; all but the last two digits are the same for 256 attempts in a row."""
        page = number >> 8
        if page != self._page:
            self._page = page
            self._page_words = self._prefix + format(page, "x")
        return self._page_words + _LAST_DIGITS[number & 255] if page else self._prefix + format(number, "x")

    def _moment(self, at: float) -> str:
        """Return the time of day in UTC to the millisecond, as RFC 3339 writes it; words are made once for each.

        Both clocks are compared once a second.
        """
        core_second = int(at)
        if core_second != self._core_second:
            self._core_second = core_second
            self._core_epoch_s = time.time() - time.monotonic()
        millisecond = int(1000.0 * (at + self._core_epoch_s) + 0.5)
        if millisecond != self._millisecond:
            self._millisecond = millisecond
            self._words = self._in_words(millisecond)
        return self._words

    def _in_words(self, millisecond: int) -> str:
        second, part = divmod(millisecond, 1000)
        if second != self._second:
            self._second = second
            self._second_words = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return f"{self._second_words}.{str(1000 + part)[1:]}Z"

    def _tenant(self, tenant: str) -> str | None:
        """Return a configured name, a hash for any other, and None without a tenant."""
        if not tenant:
            return None
        known = self._tenants.get(tenant)
        if known is not None:
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
    return int(seconds * 10_000.0 + 0.5) / 10_000.0


# Lines are built by position: keywords make this record five times dearer, and one is built for every request. What goes
# into it as it came is not declared a number: compiled, it would be made one, and an object again.


def _refused(
    moment: str,
    name: str,
    tenant: str | None,
    lane: str | None,
    asked_of: str | None,
    facts: Facts,
    final: Yield,
    upstream_id: str | None,
    trace: str | None,
) -> AttemptLine:
    return AttemptLine(
        moment,
        name,
        final.attempt,
        Outcome.YIELDED,
        final.reason,
        _rounded(final.retry_after_s) if final.retry else None,
        final.retry,
        tenant,
        lane,
        asked_of,
        # Refused by its head alone: whether it is for a stream stands in the body.
        None if final.reason is Reason.OVERLOADED_GATE else facts[_STREAM],
        facts[_RETRY_COUNT],
        facts[_PROMPT_BYTES],
        upstream_id=upstream_id,
        trace_id=trace,
    )


def _ended(
    moment: str,
    name: str,
    tenant: str | None,
    facts: Facts,
    admit: Admit | None,
    final: tuple[Any, ...],
    upstream_id: str | None,
    trace: str | None,
) -> AttemptLine:
    attempt, outcome, lane, engine, waited_s, total_s, ttft_s, prompt, output, cause, cached = final
    asked_of = reserved = expected = None
    expected_ttft_s = window_s = expected_cached = None
    if admit is not None:
        asked_of, _, reserved, _ = admit.legs[0]
        expected = admit.prompt_tokens
        expected_ttft_s = _rounded(admit.expected_ttft_s)
        window_s = _rounded(admit.window_s) or None
        expected_cached = admit.cached_tokens
    if engine is None:
        engine, prompt, output, cached = asked_of, None, None, None
    names_model = engine is not None and _PLAIN_MODEL.fullmatch(facts[_MODEL]) is not None
    return AttemptLine(
        moment,
        name,
        attempt,
        _GOOD_WORD if outcome is Outcome.GOOD else outcome,
        cause,
        None,
        None,
        tenant,
        lane,
        engine,
        facts[_STREAM],
        facts[_RETRY_COUNT],
        facts[_PROMPT_BYTES],
        expected,
        reserved,
        prompt,
        cached,
        output,
        _rounded(waited_s),
        window_s,
        expected_ttft_s,
        None if ttft_s is None else _rounded(ttft_s),
        _rounded(total_s),
        upstream_id,
        trace,
        expected_cached,
        facts[_MODEL] if names_model else None,
    )
