"""Overload seen coming: alarms from the balance of arriving and finished work, before any request is late.

In front of engines the earliest sign is the drift lambda x E[work] - mu. The queue only integrates it (dQ/dt =
lambda - mu), waiting times follow the queue and errors follow the waits. Three signals raise an alarm:

- `load`: more arrives than calm explains, and it has reached what engines can do. A `Drift` each watches arrivals, which
  are less noisy, and their work in usual requests, which shows a change of what is asked. Both are counted per stream,
  so that lost engines show.
- `acceleration`: what runs and waits grows faster than it usually does, by more than calm explains, and will come to what
  engines can do within one service time. Later than `load` where more arrives, and sooner than `backlog` where engines
  become slower.
- `backlog`: half of what may wait is waiting, more than the usual load's own queueing explains, and it grows. It comes
  later and needs no prediction of sizes, so that it shows engines that have become slower than is believed.

It reports and moves nothing. `read` adds the time to full.
"""

from math import exp, inf, log, pi, sqrt
from typing import NamedTuple

from millgate.core.instruments import Flow, PoolInstrument
from millgate.core.measure import Ewma
from millgate.core.snapshot import Alarm, AlarmSignal, WarningReading

# The flow is cut into pieces of this length, short against the load's moves.
_PIECE_S = 2.0
# The belief that grains come one by one counts as so many pieces.
_PRIOR_PIECES = 3.0


class Noise(NamedTuple):
    """The variance per mean and the third cumulant per variance, in the flow's unit, known from so many samples."""

    dispersion: float
    largest: float
    freedom: float


class Dispersion:
    """Learns the noise of one calm flow, that of a Poisson process of grains; `is_uneven` says that these differ as lengths do.

    Variance = dispersion x mean, over any time that is long against the gaps: with grains of one request for requests that come
    one by one, with larger grains for bursts (for gamma gaps of any variation the first three cumulants agree; Cox, Renewal
    Theory, 1962, chapter 4) and for work in pieces of unequal size.
    """

    def __init__(self, *, is_uneven: bool) -> None:
        self._is_uneven = is_uneven
        self._variance = Ewma(0.0, prior_samples=0.0)
        self._rate = -1.0
        self._amount = self._passed_s = 0.0

    def add(self, amount: float, passed_s: float) -> None:
        """Learn what has come in so many seconds."""
        self._amount += amount
        self._passed_s += passed_s
        if self._passed_s >= _PIECE_S:
            self._end_piece(self._amount / self._passed_s)

    @property
    def variance(self) -> float:
        """The variance of what comes in one second; 0 until it is known."""
        return self._variance.mean

    def noise(self, mean: float, grain: float) -> Noise:
        """Return the noise of a flow of this mean per second and this usual grain.

        Lengths are lognormal as a rule: E[X^3] / E[X^2] is then (E[X^2] / E[X])^2 / E[X]. Neighbours' differences tell as
        much of a variance as two thirds as many independent samples (von Neumann, 1941).
        """
        pieces = self._variance.samples
        learned = self._learned(mean, grain) if mean > 0.0 else grain
        dispersion = grain + (learned - grain) * pieces / (pieces + _PRIOR_PIECES)
        largest = dispersion * dispersion / grain if self._is_uneven and grain > 0.0 else dispersion
        return Noise(dispersion, largest, 2.0 / 3.0 * pieces + _PRIOR_PIECES)

    def _learned(self, mean: float, grain: float) -> float:
        """Return the dispersion over long times, told from that of pieces."""
        seen = self._variance.mean / mean
        if self._is_uneven or grain <= 0.0 or seen <= grain:
            return seen
        return grain * _long_run(seen / grain, mean * _PIECE_S / grain)

    def _end_piece(self, rate: float) -> None:
        """Half the mean squared difference of neighbours is the variance; a slow trend adds nothing to it."""
        if self._rate >= 0.0:
            self._variance.add(0.5 * (rate - self._rate) ** 2 * self._passed_s)
        self._rate = rate
        self._amount = self._passed_s = 0.0


def _long_run(seen: float, arrivals: float) -> float:
    """Return the dispersion of long times, where neighbouring pieces of so many arrivals show `seen` > 1.

    A piece cuts bursts in two. Gamma gaps of squared variation c give counts the variance c n - (c^2 - 1) / 6 (Cox, 1962,
    section 4.5), and neighbours share a burst, so that half their mean squared difference is c n - (c^2 - 1) / 4. This
    solves for c; without it, bursts of two to four requests a second raised three times as many alarms. The law holds for
    pieces of one burst or more, so the root is kept real, and c below 2 n.
    """
    missing = (seen - 0.25 / arrivals) / arrivals
    return max(seen, 2.0 * arrivals * (1.0 - sqrt(max(0.0, 1.0 - missing))))


# Best for ramps that take 11 s from their beginning to where they matter.
_MEMORY_S = 5.0
# The calm rate is that of about the last five minutes.
_CALM_MEMORY_S = 300.0
SAMPLE_S = 0.25
"""How often the flow is looked at: half the time between two looks is lost on the mean."""


def alarm_height(memory_s: float, calm_between_s: float) -> float:
    """Return the log likelihood ratio that the mean of calm noise passes at most once in `calm_between_s`.

    A mean with exponential memory passes z = sqrt(2 h) deviations at the rate z / sqrt(2 pi) x exp(-h) / memory
    (Leadbetter, Lindgren and Rootzen, Extremes, 1983, chapter 12).
    """
    height = 1.0
    for _ in range(20):
        height = max(1.0, log(calm_between_s / memory_s * sqrt(height / pi)))
    return height


class Drift:
    """Watches one flow, in any unit, fed every `SAMPLE_S` or so; `calm_between_s` is the time per false alarm.

    `calm` is the usual rate per second, `recent` the mean rate of the last seconds. `excess` and `threshold` are amounts:
    what has come above the calm of late, and what calm does not explain. `since` is when the flow was last at its calm.
    `is_uneven` says that its grains differ in size as lengths do. Nothing is judged in the first `learning_s`.

    The statistic is an exponentially weighted mean of the last seconds (Roberts, 1959), whose weights agree with those of the
    likelihood ratio of a ramp that began 2.2 memories ago to 0.98. The threshold follows from the noise of the calm.
    """

    def __init__(self, now: float, calm_between_s: float, *, learning_s: float, is_uneven: bool) -> None:
        self._judged_from = now + learning_s
        self._height = alarm_height(_MEMORY_S, calm_between_s)
        self._smoother = self._calm_s = 0.0
        self._dispersion = Dispersion(is_uneven=is_uneven)
        self.calm = self.excess = self.recent = 0.0
        self.threshold = inf
        self.since = now

    def add(self, now: float, amount: float, passed_s: float, grain: float, most_calm: float) -> None:
        """Take what has come in the `passed_s` seconds before `now`, and compare the last seconds with the calm.

        `grain` is the usual amount that comes at once; a rate of more than `most_calm` is no calm.
        """
        rate = amount / passed_s
        if self._calm_s == 0.0:
            self.recent = self._smoother = rate
        share = 1.0 - exp(-passed_s / _MEMORY_S)
        self.recent += share * (rate - self.recent)
        self._smoother += share * (self.recent - self._smoother)
        calm = min(self.calm, most_calm)
        if self.recent <= calm:
            self.since = now
        if now >= self._judged_from and self._calm_s > 0.0:
            self._judge(calm, grain)

    def learn(self, amount: float, passed_s: float, most_calm: float) -> None:
        """Take the same as a part of the calm, which is never more than `most_calm` a second."""
        self._calm_s = min(_CALM_MEMORY_S, self._calm_s + passed_s)
        share = min(1.0, passed_s / self._calm_s)
        self.calm = min(most_calm, self.calm + share * (amount / passed_s - self.calm))
        self._dispersion.add(amount, passed_s)

    def settle(self) -> None:
        """Take what has come of late for the calm from now on."""
        self.calm, self._calm_s = self.recent, 2.0 * _MEMORY_S

    @property
    def level(self) -> float:
        """The rate now, by Brown's double smoothing (1963): no lag behind a ramp, up to 14 % too much of a step."""
        return 2.0 * self.recent - self._smoother

    @property
    def deviation(self) -> float:
        """The standard deviation of one second's amount."""
        return sqrt(self._dispersion.variance)

    @property
    def is_over(self) -> bool:
        """Return whether the excess is more than calm explains."""
        return self.excess >= self.threshold

    def _judge(self, calm: float, grain: float) -> None:
        """Compare the mean of late with a calm rate.

        The mean has the noise of twice its memory, and the calm has its own. The amount at height h lies sqrt(2 h x
        variance) + h x skew / 3 above the expected, as a Poisson tail does (Bernstein's inequality); exponential weights
        make a skew of 4/3 of `largest`. As the variance is known from `freedom` samples only, Student's law takes the
        place of the Gaussian (Abramowitz and Stegun 26.7.5, first term).
        """
        height, length_s = self._height, 2.0 * _MEMORY_S
        noise = self._dispersion.noise(self.calm, grain)
        variance = noise.dispersion * calm * length_s * (1.0 + length_s / self._calm_s)
        doubt = 1.0 + (2.0 * height + 1.0) / (4.0 * noise.freedom)
        self.excess = max(0.0, (self.recent - calm) * length_s)
        self.threshold = sqrt(2.0 * height * variance) * doubt + 4.0 / 9.0 * height * noise.largest


class Acceleration:
    """Watches how a level grows, in shares of a limit, fed every `SAMPLE_S` or so.

    `growth` is the mean growth per second of late. It accelerates by what lies above the usual growth, that of the last
    minutes: `excess`, a second derivative over that time. Noise is the excess of the calm itself: what comes into a level
    leaves it again, so that its growth varies less than the flows do. `since` is when growth was last usual. The first
    `learning_s` fill an empty system, and are no calm.
    """

    def __init__(self, now: float, calm_between_s: float, *, learning_s: float) -> None:
        self._learned_from = now + learning_s
        self._height = alarm_height(_MEMORY_S, calm_between_s)
        self._usual = self._variance = self._calm_s = 0.0
        self.growth = self.excess = 0.0
        self.threshold = inf
        self.since = now

    def add(self, now: float, grown: float, passed_s: float, grain: float) -> None:
        """Take by how much the level has grown in the `passed_s` seconds before `now`; `grain` is one of what comes."""
        self.growth += (1.0 - exp(-passed_s / _MEMORY_S)) * (grown / passed_s - self.growth)
        self.excess = self.growth - self._usual
        if self.excess <= sqrt(self._variance):  # an idle gate's stays a little above 0
            self.since = now
        # Excesses are alike over two memories. The tail is that of `Drift`: Student's law, and the skew of what comes.
        length_s = 2.0 * _MEMORY_S
        doubt = 1.0 + (2.0 * self._height + 1.0) / (4.0 * (1.0 + self._calm_s / length_s))
        skew = 4.0 / 9.0 * self._height * grain / length_s
        known = self._calm_s >= 3.0 * length_s
        self.threshold = sqrt(2.0 * self._height * self._variance) * doubt + skew if known else inf

    def learn(self, now: float, passed_s: float) -> None:
        """Take the last seconds for a part of the calm."""
        if now < self._learned_from:
            return
        self._calm_s = min(_CALM_MEMORY_S, self._calm_s + passed_s)
        share = min(1.0, passed_s / self._calm_s)
        self._usual += share * (self.growth - self._usual)
        self._variance += share * (self.excess * self.excess - self._variance)

    @property
    def is_over(self) -> bool:
        """Return whether the excess is more than calm explains."""
        return self.excess >= self.threshold


# Calm time per false alarm of each flow, of growth, and of a backlog that calm explains, by the formula of
# `alarm_height`, which looks without pause; docs/policies/monitor.md says what is measured.
_CALM_BETWEEN_S = 1800.0
# A rise below this load is no matter: the full engines of the profiles do 0.88 to 0.98 of the work that is expected of
# them (Azure conversations).
_COMING_LOAD = 0.85
# One huge prompt is no trend: the work of a reading counts at most as so many times that of as many usual arrivals.
_MOST_HEAVY = 2.0
# The calm is trusted after so long, and an alarm that has lasted so long stays only while more comes than engines can do.
_LEARNING_S = 30.0
# Half of what may wait is an alarm while it grows, and an alarm ends at half of what raised it, whatever the usual load
# has come to explain by then: a full gate learns that it is, and an end that moved with it would raise the alarm again.
_HALF = 0.5


class EarlyWarning(PoolInstrument):
    """Watches one gate, fed every `SAMPLE_S` or so, next from `next_at` on; times are core seconds."""

    def __init__(self, now: float) -> None:
        self.next_at = now
        self._last: Flow | None = None
        self._last_at = self._waiting_since = self._full_since = self._slowly_at = now
        self._short_at = -inf
        self._work = Drift(now, _CALM_BETWEEN_S, learning_s=_LEARNING_S, is_uneven=True)
        self._arrivals = Drift(now, _CALM_BETWEEN_S, learning_s=_LEARNING_S, is_uneven=False)
        self._growth = Acceleration(now, _CALM_BETWEEN_S, learning_s=_LEARNING_S)
        # Pace and price are those of the last minute: what is learned of lengths must not pass for a change of the load.
        self._pace = Ewma(1.0, prior_samples=_LEARNING_S / SAMPLE_S)
        self._price = Ewma(0.0, prior_samples=0.0)
        self._backlog_s = 0.0
        self._alarms: dict[AlarmSignal, Alarm] = {}

    def feed(self, now: float, flow: Flow) -> None:
        """Take the totals again, `SAMPLE_S` after the last time or later."""
        last, passed_s = self._last, now - self._last_at
        self.next_at = now + SAMPLE_S
        if last is None:
            self._last, self._last_at = flow, now
        elif passed_s > 0.0 and flow.limit > 0:
            self._last, self._last_at = flow, now
            self._watch_load(now, last, flow, passed_s)
            self._watch_growth(now, last, flow, passed_s)
            if now - self._slowly_at >= 1.0:
                self._slowly_at = now
                self._watch_backlog(now, flow)

    def alarms(self) -> tuple[Alarm, ...]:
        """Return the alarms that are on, the oldest first; none while all is well."""
        return tuple(self._alarms.values())

    def read(self) -> WarningReading:
        """Return all signals as numbers; changes nothing."""
        work, price_s = self._work, self._price.mean
        return WarningReading(
            load=work.recent * price_s,
            calm_load=work.calm * price_s,
            noise=work.deviation * price_s,
            excess=work.excess * price_s,
            excess_threshold=work.threshold * price_s if price_s > 0.0 else inf,
            occupancy=_occupancy(self._last),
            trend=self._growth.growth,
            acceleration=self._growth.excess,
            acceleration_threshold=self._growth.threshold,
            backlog_s=self._backlog_s,
            time_to_full_s=self._time_to_full_s(),
        )

    def _watch_load(self, now: float, last: Flow, flow: Flow, passed_s: float) -> None:
        arrived, work_s = flow.arrived - last.arrived, flow.arrived_work_s - last.arrived_work_s
        is_calm = AlarmSignal.LOAD not in self._alarms
        if arrived > 0 and is_calm:
            self._price.add(work_s / arrived)
        self._learn_pace(now, last, flow, passed_s)
        price_s = self._price.mean
        if price_s <= 0.0:
            return
        if flow.occupancy >= flow.limit:
            self._short_at = now
        # The rate that may be calm: where streams are short, more than they can do never is, nor from the start. A gate that
        # refuses what finds it full has a stream free at most looks: what counts is that all were taken of late.
        most_calm = 1.0 / self._price.mean if now - self._short_at < _MEMORY_S else inf
        streams = self._streams(flow)
        counted, asked = arrived / streams, min(work_s / price_s, _MOST_HEAVY * arrived) / streams
        self._arrivals.add(now, counted, passed_s, 1.0 / streams, most_calm)
        self._work.add(now, asked, passed_s, 1.0 / streams, most_calm)
        self._judge_load(now)
        if is_calm:
            self._arrivals.learn(counted, passed_s, most_calm)
            self._work.learn(asked, passed_s, most_calm)

    def _judge_load(self, now: float) -> None:
        alarm = self._alarms.get(AlarmSignal.LOAD)
        if alarm is not None:
            self._end_load(now - alarm.raised_at)
            return
        price_s = self._price.mean
        for drift in (self._arrivals, self._work):
            if drift.is_over and drift.level * price_s >= _COMING_LOAD:
                value, threshold = drift.excess * price_s, drift.threshold * price_s
                alarm = Alarm(
                    AlarmSignal.LOAD, value, threshold, drift.since, now, self._load_words(drift, now)
                )
                self._alarms.setdefault(AlarmSignal.LOAD, alarm)

    def _end_load(self, lasted_s: float) -> None:
        """End the alarm when neither flow is high any more; what it has come down to is the new calm."""
        for drift in (self._arrivals, self._work):
            is_busy = lasted_s < _LEARNING_S or drift.recent * self._price.mean >= 1.0
            if is_busy and drift.excess >= _HALF * drift.threshold:
                return
        del self._alarms[AlarmSignal.LOAD]
        self._arrivals.settle()
        self._work.settle()

    def _learn_pace(self, now: float, last: Flow, flow: Flow, passed_s: float) -> None:
        """Learn what engines can do, from what they finish while full: a quiet system finishes what arrives.

        The first service time of a full spell does not count: answers longer than their price are what fills it.
        """
        if flow.occupancy < flow.limit:
            self._full_since = now
        elif now - passed_s - self._full_since >= self._price.mean:
            self._pace.add((flow.done_work_s - last.done_work_s) / (passed_s * flow.limit))

    def _streams(self, flow: Flow) -> float:
        """Return how many streams of the usual speed the gate is worth, 1 at least."""
        return max(1.0, flow.limit * self._pace.mean)

    def _watch_growth(self, now: float, last: Flow, flow: Flow, passed_s: float) -> None:
        growth, price_s = self._growth, self._price.mean
        grown = flow.occupancy + flow.queued - last.occupancy - last.queued
        growth.add(now, grown / flow.limit, passed_s, 1.0 / flow.limit)
        # By Little's law: in one service time all that is here has left, and as much as arrives in it is here.
        coming = _occupancy(flow) + growth.growth * price_s
        if growth.is_over and coming >= _COMING_LOAD:
            words = (
                f"What runs and waits grows by {100.0 * growth.growth:.1f} % of all streams a second, for "
                f"{now - growth.since:.0f} s more than it usually does. At this rate it comes to {100.0 * coming:.0f} % of them "
                f"within {price_s:.1f} s, the usual time of a request."
            )
            alarm = Alarm(AlarmSignal.ACCELERATION, growth.excess, growth.threshold, growth.since, now, words)
            self._alarms.setdefault(AlarmSignal.ACCELERATION, alarm)
        elif growth.excess < _HALF * growth.threshold:
            self._alarms.pop(AlarmSignal.ACCELERATION, None)
        if not self._alarms:
            growth.learn(now, passed_s)

    def _watch_backlog(self, now: float, flow: Flow) -> None:
        here, streams = flow.occupancy + flow.queued, self._streams(flow)
        self._backlog_s = backlog_s = max(0, here - flow.limit) * self._price.mean / streams
        if backlog_s == 0.0:
            self._waiting_since = now
        per_bound = 1.0 / flow.bound_s if flow.bound_s > 0.0 else 0.0
        filled, most = backlog_s * per_bound, max(_HALF, self._usual_backlog_s(streams) * per_bound)
        if filled >= most and self._growth.growth > 0.0:
            words = (
                f"What waits takes {backlog_s:.1f} s to serve, of {flow.bound_s:.1f} s that may wait; it began "
                f"{now - self._waiting_since:.0f} s ago and still grows. Engines do {100.0 * self._pace.mean:.0f} % of "
                "the work that is expected of them."
            )
            alarm = Alarm(AlarmSignal.BACKLOG, filled, most, self._waiting_since, now, words)
            self._alarms.setdefault(AlarmSignal.BACKLOG, alarm)
        if filled < _HALF * _HALF:
            self._alarms.pop(AlarmSignal.BACKLOG, None)

    def _usual_backlog_s(self, streams: float) -> float:
        """Return the backlog that the calm load passes once in `_CALM_BETWEEN_S`; 0 where calm is no calm.

        In heavy traffic it is exponential with mean variance / (2 slack), slack = 1 - load, and forgets itself in
        variance / slack^2 (Kingman, 1962; Harrison, Brownian Motion and Stochastic Flow Systems, 1985, chapter 5). The
        variance is that of the work as priced, and of what prices do not know: answers that vary as exponentials do.
        """
        price_s = self._price.mean
        load = self._work.calm * price_s
        slack, variance = 1.0 - load, (self._work.deviation * price_s) ** 2 + load * price_s / streams
        if slack <= 0.0 or variance <= 0.0:
            return 0.0
        return 0.5 * variance / slack * max(1.0, log(_CALM_BETWEEN_S * slack * slack / variance))

    def _time_to_full_s(self) -> float:
        """Return (bound - queue) / (arriving - served work), both in seconds of capacity."""
        load = self._work.recent * self._price.mean
        if self._last is None or load <= 1.0:
            return inf
        return max(0.0, self._last.bound_s - self._backlog_s) / (load - 1.0)

    def _load_words(self, drift: Drift, now: float) -> str:
        percent = 100.0 * self._price.mean
        usual = round(drift.calm * percent)
        above = f", usually {usual} %; it has been above that" if usual < 100 else "; it has been too much"
        said = (
            f"Offered load is {drift.level * percent:.0f} % of capacity{above} for {now - drift.since:.0f} s."
        )
        full_s = self._time_to_full_s()
        return said if full_s == inf else f"{said} At this rate the queue is full in {full_s:.0f} s."


def _occupancy(flow: Flow | None) -> float:
    """Return what runs and waits, as a share of all streams; 0 where there are none, as before engines that are down."""
    return (flow.occupancy + flow.queued) / flow.limit if flow is not None and flow.limit else 0.0
