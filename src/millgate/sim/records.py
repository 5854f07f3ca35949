"""What is kept of a run: counts, sums and sketches; memory does not grow with the run's length.

Everything is judged from the *user's* side: a request begins with its first attempt and ends when its client has
the answer or gives up. (The governor's own accounts are by attempt; a test holds the two against each other.)
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil, exp, log
from typing import Any

from millgate.core.settings import LaneSettings
from millgate.core.slo import streamed_in_time
from millgate.core.words import DeadlineFrom, Outcome
from millgate.sim.engines.contract import EngineTotals

# Any quantile is right within this share; 1 % needs some 1,400 buckets from a microsecond to a week.
RELATIVE_ERROR = 0.01
_WIDTH = log((1.0 + RELATIVE_ERROR) / (1.0 - RELATIVE_ERROR))
# What is shorter counts as zero.
_SMALLEST = 1e-6


class ResultSketch:
    """Count, sum, extremes and quantiles of positive numbers; memory grows with their range, not their number.

    A histogram with logarithmic buckets (Masson, Rim and Lee, DDSketch, VLDB 2019).
    """

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.most = 0.0
        self._zeros = 0
        self._buckets: dict[int, int] = {}

    def add(self, value: float) -> None:
        """Count one number; what is not positive counts as zero."""
        self.count += 1
        if value < _SMALLEST:
            self._zeros += 1
            return
        self.total += value
        if value > self.most:  # noqa: PLR1730 - max() would cost a call for every number
            self.most = value
        bucket = ceil(log(value) / _WIDTH)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1

    @property
    def mean(self) -> float:
        """The mean, 0 before the first number."""
        return self.total / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """Return the number below which this share lies, within `RELATIVE_ERROR`; 0 before the first number."""
        rank = share * (self.count - 1)
        seen = self._zeros
        if self.count == 0 or rank < seen:
            return 0.0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if rank < seen:
                return min(
                    self.most, 2.0 * exp((bucket - 0.5) * _WIDTH) / (exp(_WIDTH / 2) + exp(-_WIDTH / 2))
                )
        return self.most


@dataclass(frozen=True, slots=True)
class Times:
    """A law as it came out, in seconds."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    most: float


@dataclass(frozen=True, slots=True)
class Summary:
    """One run in numbers. `goodput_per_s` counts requests that ended good, over the time in which users came.

    `amplification` is attempts over requests; `waste` the share of the engines' computed tokens (prompt and
    output, warm-up and all) that went to anything but a good answer, what prefix caches had counted as computed;
    `returns_kept` the share of hinted returns that ran within a second of coming back; `hit_share` the share of the prompt
    tokens looked up that a prefix cache had.
    """

    requests: int
    attempts: int
    outcomes: dict[str, int]
    yields: dict[str, int]
    duration_s: float
    asked_per_s: float
    goodput_per_s: float
    good_share: float
    good_tokens_per_s: float
    amplification: float
    waste: float
    returns: int
    returns_kept: float
    preemptions: int
    hit_share: float
    ttft_s: Times
    tpot_s: Times
    total_s: Times
    yielded_after_s: Times

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)


class Recorder:
    """Listens to the world and keeps its accounts; times are virtual seconds.

    Requests that first come before `from_s` (the warm-up) are served and not counted.
    """

    def __init__(self, lanes: Sequence[LaneSettings], *, from_s: float = 0.0) -> None:
        self._lanes = {lane.name: lane for lane in lanes}
        self._first_lane = lanes[0]
        self._from_s = from_s
        self.requests = self.attempts = self.good_tokens = self.useful_tokens = 0
        self.returns = self.returns_kept = 0
        self.outcomes: Counter[str] = Counter()
        self.yields: Counter[str] = Counter()
        self.last_asked_s = from_s
        self.ttft, self.tpot, self.total, self.yielded_after = [ResultSketch() for _ in range(4)]

    def counts(self, first_at: float) -> bool:
        """Return whether a request that came then is counted."""
        return self._from_s <= first_at

    def asked(self, now: float) -> None:
        """A user comes with a new request."""
        if self.counts(now):
            self.requests += 1
            self.last_asked_s = now

    def tried(self, first_at: float) -> None:
        """One attempt arrives at the gate."""
        if self.counts(first_at):
            self.attempts += 1

    def yielded(self, reason: str, first_at: float, asked_at: float, now: float) -> None:
        """One attempt is refused."""
        if self.counts(first_at):
            self.yields[reason] += 1
            self.yielded_after.add(now - asked_at)

    def returned(self, first_at: float, *, kept: bool) -> None:
        """A hinted return has been answered: it ran within a second, or it did not."""
        if self.counts(first_at):
            self.returns += 1
            self.returns_kept += kept

    def answered(
        self,
        lane: str | None,
        first_at: float,
        asked_at: float,
        first_token_at: float,
        now: float,
        prompt_tokens: int,
        output_tokens: int,
    ) -> None:
        """A whole answer: judge it and keep its times."""
        settings = self._lanes.get(lane or "", self._first_lane)
        origin = first_at if settings.deadline_from is DeadlineFrom.FIRST_ATTEMPT else asked_at
        decode_s = now - first_token_at
        good = streamed_in_time(settings, first_token_at - origin, decode_s, output_tokens)
        self.over(Outcome.GOOD if good else Outcome.LATE, first_at)
        if good:
            self.useful_tokens += prompt_tokens + output_tokens
        if not self.counts(first_at):
            return
        if good:
            self.good_tokens += output_tokens
        self.ttft.add(first_token_at - first_at)
        self.total.add(now - first_at)
        if output_tokens > 1:
            self.tpot.add(decode_s / (output_tokens - 1))

    def over(self, outcome: Outcome, first_at: float) -> None:
        """A request is over, in this way."""
        if self.counts(first_at):
            self.outcomes[outcome.value] += 1

    def summary(self, engines: EngineTotals) -> Summary:
        """Return the run in numbers, with what the engines did for it."""
        computed_tokens = engines.prompt_tokens + engines.hit_tokens + engines.output_tokens
        good = self.outcomes[Outcome.GOOD.value]
        # Of requests that came all at once, the time until the last answer; without one there is no rate.
        duration_s = max(self.last_asked_s - self._from_s, 0.0) or self.total.most
        per_s = 1.0 / duration_s if duration_s else 0.0
        return Summary(
            requests=self.requests,
            attempts=self.attempts,
            outcomes=dict(sorted(self.outcomes.items())),
            yields=dict(sorted(self.yields.items())),
            duration_s=duration_s,
            asked_per_s=self.requests * per_s,
            goodput_per_s=good * per_s,
            good_share=good / max(1, self.requests),
            good_tokens_per_s=self.good_tokens * per_s,
            amplification=self.attempts / max(1, self.requests),
            waste=1.0 - self.useful_tokens / computed_tokens if computed_tokens else 0.0,
            returns=self.returns,
            returns_kept=self.returns_kept / max(1, self.returns),
            preemptions=engines.preemptions,
            hit_share=engines.hit_tokens / max(1, engines.queried_tokens),
            ttft_s=_times(self.ttft),
            tpot_s=_times(self.tpot),
            total_s=_times(self.total),
            yielded_after_s=_times(self.yielded_after),
        )


def _times(sketch: ResultSketch) -> Times:
    p50, p90, p95, p99 = [sketch.quantile(share) for share in (0.5, 0.9, 0.95, 0.99)]
    return Times(sketch.count, sketch.mean, p50, p90, p95, p99, sketch.most)
