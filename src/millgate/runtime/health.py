"""Is an engine there? Its health page asked once a second, and what becomes of the requests that it gets.

Two readers of one engine come to one standing. The *page* says that a process answers: two bad looks take the engine
out, two good ones let it back. *Requests* say that it works: three failures in a row within ten seconds take it out
for a probation that doubles from 1 to 30 s. After that one single request is tried, and what becomes of it decides
(Envoy's outlier detection and its consecutive failures, with a half-open breaker's trial at the end).

What is no failure: anything that the engine says with a status below 500, 501 for what no request gets there, and 503
and 529, by which engines refuse what they have no room for. To a request a 4xx is no success either: it takes no
failure back, and the next request is the trial. An engine without a health page (404) answers, and that is enough. A
time that runs out counts only when nothing else was heard of the engine since: clients may be as impatient as they
like.

Some engines say 500 for what is wrong with a request: llama.cpp does for a text that is longer than its batch. So where
half of the others have answered with such a status as well within ten seconds, and this one has answered a request, the
requests are at fault and not the engine.

An engine that is alone in its pool is never taken out for failed requests, for then the outage would outlast its
cause. Failures only make us look more often, and the first good look brings it back.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

# A client may leave before a trial has shown anything; after this time another is let in.
_TRIAL_PATIENCE_S = 5.0
# An engine of which no request has failed for so long may be well again: without requests there is no telling.
_TOLD_FOR_S = 60.0


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """How an engine is looked at; times in seconds.

    `target` is the health page, None where requests alone shall tell. `quick_poll_s` is the pace while a lone engine is
    down or in doubt. `page_within_s` is three times what a loaded API server of vLLM takes. SGLang's page looks each
    second whether the engine has put anything out since (its `http_server.py`), and a chunk of a long prompt may take
    two seconds.
    """

    target: bytes | None = b"/health"
    poll_s: float = 1.0
    quick_poll_s: float = 0.2
    page_within_s: float = 3.5
    bad_looks: int = 2
    good_looks: int = 2
    failures: int = 3
    failures_within_s: float = 10.0
    shortest_probation_s: float = 1.0
    longest_probation_s: float = 30.0


class Stance(StrEnum):
    """How an engine stands: it takes work, takes none, or is tried with a single request."""

    UP = "up"
    DOWN = "down"
    TRIAL = "trial"


class EngineStanding(NamedTuple):
    """One engine's health for people: `since` is a clock time, `why` what took it out last, empty while all is well.

    `failing` says how requests fail at one that takes work all the same, because it is alone; else it is empty.
    """

    name: str
    stance: Stance
    since: float
    why: str
    failing: str = ""


class EngineHealth:
    """One engine's standing, by arithmetic: news and the time come in, `takes_work` is what follows.

    `alone` says whether no other engine takes work just now. One with a reason `unseen` is down from the start, for that.
    """

    def __init__(self, settings: HealthSettings, now: float, unseen: str = "") -> None:
        self.settings = settings
        self.stance = Stance.DOWN if unseen else Stance.UP
        self.since = now
        self.why = unseen
        self.in_doubt = False
        """Whether requests fail at an engine that stays because it is alone."""
        self._bad_looks = self._good_looks = 0
        self._failed_at: list[float] = []
        self._in_a_row = 0
        self._failed_why = ""
        self._probation_s = 0.0
        self._complained_at = self._worked_at = float("-inf")
        self._out_until = now
        self._up_since = now
        self._trial_at: float | None = None

    @property
    def takes_work(self) -> bool:
        """Whether requests may be sent to it now."""
        return self.stance is Stance.UP or (self.stance is Stance.TRIAL and self._trial_at is None)

    @property
    def anxious(self) -> bool:
        """Whether a request that is sent, or answered, would change anything."""
        return self.stance is not Stance.UP or bool(self._failed_at)

    def failing(self, now: float) -> str:
        """Return in words that request after request fails at an engine that is up, for some time after the last one."""
        why = self.last_failure(now)
        is_failing = why and self.stance is Stance.UP and self._in_a_row >= self.settings.failures
        return f"{self._in_a_row} requests in a row failed: {why}" if is_failing else ""

    def last_failure(self, now: float) -> str:
        """Return why a request failed last, for some time after it; empty where one has been answered since."""
        is_told = self._failed_at and now - self._failed_at[-1] <= _TOLD_FOR_S
        return self._failed_why if is_told else ""

    def complains(self, now: float) -> bool:
        """Whether it has answered a request with a status that may be its fault, so lately that it counts."""
        return now - self._complained_at <= self.settings.failures_within_s

    def looked(self, complaint: str | None, now: float, *, alone: bool) -> None:
        """The health page was asked: None is good, else what is wrong."""
        if complaint is not None:
            self._good_looks = 0
            self._bad_looks += 1
            if self.stance is not Stance.DOWN and self._bad_looks >= self.settings.bad_looks:
                self._out_until = now
                self._turn(Stance.DOWN, now, complaint)
            return
        self._bad_looks = 0
        self._good_looks += 1
        if self.stance is Stance.DOWN and (alone or self._good_looks >= self.settings.good_looks):
            self._return(now, alone=alone)
        elif self.stance is Stance.UP:
            self.in_doubt = False

    def waited(self, now: float, *, alone: bool) -> None:
        """Time has passed: a probation may be over, a trial forgotten."""
        if self.settings.target is None and self.stance is Stance.DOWN:
            self._return(now, alone=alone)
        if self._trial_at is not None and now - self._trial_at >= _TRIAL_PATIENCE_S:
            self._trial_at = None

    def sent(self, now: float) -> bool:
        """A request goes there; return whether it is the one that is tried."""
        if self.stance is not Stance.TRIAL or self._trial_at is not None:
            return False
        self._trial_at = now
        return True

    def worked(self, now: float) -> None:
        """Requests were answered, and none has failed."""
        self._worked_at = now

    def succeeded(self, now: float) -> None:
        """A request was answered."""
        self._failed_at.clear()
        self._in_a_row = 0
        self._worked_at = now
        if self.stance is Stance.TRIAL:
            self._turn(Stance.UP, now, "")

    def undecided(self) -> None:
        """The trial has shown nothing: the next request is tried."""
        self._trial_at = None

    def complained(self, why: str, now: float, *, alone: bool, common: bool) -> None:
        """A request was answered with a status that may be the engine's fault; it is `common` where others answer so too."""
        self._complained_at = now
        if not common or now - self._worked_at > self.settings.failures_within_s:
            self.failed(why, now, alone=alone)
        elif self.stance is Stance.TRIAL:
            self.undecided()

    def failed(self, why: str, now: float, *, alone: bool) -> None:
        """A request failed there, before or while it was answered."""
        self._in_a_row, self._failed_why = self._in_a_row + 1, why
        since = now - self.settings.failures_within_s
        self._failed_at = [*(at for at in self._failed_at if at > since), now][-self.settings.failures :]
        if self.stance is Stance.TRIAL:
            self._eject(f"a trial failed: {why}", now)
        elif self.stance is Stance.UP and len(self._failed_at) >= self.settings.failures:
            self.in_doubt = alone
            if not alone:
                self._eject(f"{self.settings.failures} requests in a row failed: {why}", now)

    def _eject(self, why: str, now: float) -> None:
        """Take it out, twice as long as the last time unless that is long ago."""
        settings = self.settings
        recently = self.stance is Stance.TRIAL or now - self._up_since < settings.longest_probation_s
        again = recently and self._probation_s > 0.0
        doubled = min(2.0 * self._probation_s, settings.longest_probation_s)
        self._probation_s = doubled if again else settings.shortest_probation_s
        self._out_until = now + self._probation_s
        self._turn(Stance.DOWN, now, why)

    def _return(self, now: float, *, alone: bool) -> None:
        """Let it back: at once if it is alone, to a trial if requests had taken it out, when its time is over."""
        on_probation = self._out_until > self.since
        if alone or not on_probation:
            self._turn(Stance.UP, now, "")
        elif now >= self._out_until:
            self._turn(Stance.TRIAL, now, self.why)

    def _turn(self, stance: Stance, now: float, why: str) -> None:
        if stance is Stance.UP:
            self._up_since = now
        self.stance, self.since, self.why = stance, now, why
        self._trial_at = None
        self._bad_looks = self._good_looks = 0
        self._failed_at.clear()
        self._in_a_row = 0
        self.in_doubt = False
