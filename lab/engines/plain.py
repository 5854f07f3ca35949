"""Servers without batching, for queueing truths: how long an attempt takes is drawn, not computed.

A `DelayStation` serves everything that it is given at once and independently; behind a gate of c permits it is c
parallel servers. A `SharedStation` shares one server equally among all present (processor sharing).
"""

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf

from millgate.sim.engines.contract import EngineTotals, GaugeReading, Reports
from millgate.sim.jobs import Job
from millgate.sim.loop import ENGINES, Loop
from millgate.sim.randomness import Draws


class _Tokenless:
    """A server that counts no tokens, or whose tokens are never asked for."""

    def produced(self, attempt: int) -> int:
        """Nothing is known before the end."""
        del attempt
        return 0

    def totals(self) -> EngineTotals:
        """Return nothing."""
        return EngineTotals(0, 0, 0)


class DelayStation(_Tokenless):
    """As many independent servers as it is given attempts.

    `seen` is told of every service time drawn; `announces` lets each attempt's first token come as it starts, so
    that no request in service grows impatient.
    """

    def __init__(
        self,
        name: str,
        loop: Loop,
        reports: Reports,
        service: Draws,
        seen: Callable[[int, float], None] | None = None,
        *,
        announces: bool = False,
    ) -> None:
        self.name = name
        self._seen = seen
        self._announces = announces
        self._loop = loop
        self._reports = reports
        self._service = service
        self._present: set[int] = set()

    def start(self, attempt: int, job: Job) -> None:
        """Serve it for a time drawn now."""
        del job
        service_s = self._service.next()
        if self._seen is not None:
            self._seen(attempt, service_s)
        self._present.add(attempt)
        if self._announces:
            self._reports.first_token(attempt)
        self._loop.at(self._loop.now + service_s, self._done, attempt, ENGINES)

    def hang_up(self, attempt: int) -> None:
        """Let go at once."""
        self._present.discard(attempt)

    def read(self) -> GaugeReading:
        """Return how many it serves."""
        return GaugeReading(len(self._present), 0)

    def _done(self, attempt: int) -> None:
        if attempt in self._present:
            self._present.discard(attempt)
            self._reports.finished(attempt, 1)


class PacedStation(_Tokenless):
    """As many streams as it is given attempts, each at its own steady pace, whatever runs beside it.

    An answer of n tokens takes `first_token_s` + n x `pace_s`.
    """

    def __init__(self, name: str, loop: Loop, reports: Reports, first_token_s: float, pace_s: float) -> None:
        self.name = name
        self._loop = loop
        self._reports = reports
        self._first_token_s = first_token_s
        self._pace_s = pace_s
        self._begun_at: dict[int, float] = {}

    def start(self, attempt: int, job: Job) -> None:
        """Read its prompt, then stream at the pace."""
        begun_at = self._begun_at[attempt] = self._loop.now + self._first_token_s
        self._loop.at(begun_at, self._begun, attempt, ENGINES)
        tokens = job.output_tokens
        self._loop.at(begun_at + tokens * self._pace_s, self._done, (attempt, tokens), ENGINES)

    def hang_up(self, attempt: int) -> None:
        """Let go at once."""
        self._begun_at.pop(attempt, None)

    def produced(self, attempt: int) -> int:
        """Return the tokens of its time so far."""
        begun_at = self._begun_at.get(attempt)
        return 0 if begun_at is None else max(0, int((self._loop.now - begun_at) / self._pace_s))

    def read(self) -> GaugeReading:
        """Return how many it serves."""
        return GaugeReading(len(self._begun_at), 0)

    def _begun(self, attempt: int) -> None:
        if attempt in self._begun_at:
            self._reports.first_token(attempt)

    def _done(self, ended: tuple[int, int]) -> None:
        attempt, tokens = ended
        if self._begun_at.pop(attempt, None) is not None:
            self._reports.finished(attempt, tokens)


class SharedStation(_Tokenless):
    """One server shared equally: with n present each proceeds at 1 / n.

    Attained service per attempt is one number for all; each ends when it reaches its own mark.
    """

    def __init__(
        self,
        name: str,
        loop: Loop,
        reports: Reports,
        service: Draws,
        seen: Callable[[int, float], None] | None = None,
    ) -> None:
        self.name = name
        self._loop = loop
        self._reports = reports
        self._service = service
        self._seen = seen
        self._marks: list[tuple[float, int]] = []
        self._attained_s = 0.0
        self._at = 0.0
        self._wake_at = inf

    def start(self, attempt: int, job: Job) -> None:
        """Let it share from now on; its whole need is drawn now."""
        del job
        need_s = self._service.next()
        if self._seen is not None:
            self._seen(attempt, need_s)
        self._attain()
        heappush(self._marks, (self._attained_s + need_s, attempt))
        self._arm()

    def hang_up(self, attempt: int) -> None:
        """Let go at once."""
        self._attain()
        self._marks = sorted(mark for mark in self._marks if mark[1] != attempt)
        self._arm()

    def read(self) -> GaugeReading:
        """Return how many share it."""
        return GaugeReading(len(self._marks), 0)

    def _attain(self) -> None:
        if self._marks:
            self._attained_s += (self._loop.now - self._at) / len(self._marks)
        self._at = self._loop.now

    def _arm(self) -> None:
        """The next end moves later with every arrival, so the alarm is set anew each time."""
        self._wake_at = inf
        if self._marks:
            left_s = max(0.0, self._marks[0][0] - self._attained_s) * len(self._marks)
            self._wake_at = self._loop.now + left_s
            self._loop.at(self._wake_at, self._wake, self._wake_at, ENGINES)

    def _wake(self, set_for: float) -> None:
        if set_for != self._wake_at:
            return
        self._attain()
        # It was woken for the first mark; rounding must not leave it a hair short.
        mark, attempt = heappop(self._marks)
        self._attained_s = max(self._attained_s, mark)
        self._arm()
        self._reports.finished(attempt, 1)
