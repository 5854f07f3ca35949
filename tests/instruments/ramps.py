"""Offered load that rises through capacity: a plain queue in virtual time, to judge the early warning by.

So many equal streams serve in order of arrival what a Poisson process brings; nothing is refused (observe mode).
Prompts are lognormal, answers lognormal around the mean of their class, and the price of an arrival is its
expected service time: the class is known, the answer is not. Run as a program it prints false alarms, delays and
leads:

    PYTHONPATH=src python tests/instruments/ramps.py
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from heapq import heappop, heappush, heapreplace
from random import Random
from statistics import median
from typing import NamedTuple

from millgate.core.instruments import Flow
from millgate.core.snapshot import Alarm, AlarmSignal
from millgate.instruments.early_warning import SAMPLE_S, EarlyWarning

TPOT_S = 0.02
PREFILL_S = 0.0001
PROMPT_LOG_MEAN, PROMPT_LOG_DEVIATION = 6.9, 1.0
ANSWER_LOG_DEVIATION = 1.0
CLASS_MEANS = (40, 120, 240, 400)
MEAN_WORK_S = 0.164 + TPOT_S * 200
TTFT_SLO_S = 2.0
DEADLINE_S = 10.0
CALM_S = 300.0
MOST_LOAD = 1.5


class Look(NamedTuple):
    """What the gate has counted so far, and when the first request was known to be late, if one is."""

    at: float
    flow: Flow
    first_miss_at: float | None
    """Of the requests that came after the calm: a small system misses now and then in calm, too."""


class Verdict(NamedTuple):
    """One ramp: seconds from load 1.0 to the alarm, and from the alarm to the first miss."""

    delay_s: float
    lead_s: float


def calm_load(seed: int) -> float:
    """Return a load between 0.5 and 0.7."""
    return 0.5 + 0.05 * (seed % 5)


def top_load(seed: int) -> float:
    """Return a load between 1.3 and 1.5."""
    return 1.3 + 0.05 * (seed // 5 % 5)


def looks(
    seed: int,
    streams: int,
    load: Callable[[float], float],
    until_s: float,
    slowness: Callable[[float], float] = lambda _at: 1.0,
) -> Iterator[Look]:
    """Yield the totals of such traffic every `SAMPLE_S`; `slowness` multiplies the service of what starts then."""
    dice = Random(seed)
    most_per_s = MOST_LOAD * streams / MEAN_WORK_S
    free_at = [0.0] * streams
    running: list[tuple[float, float]] = []
    arrived, arrived_work_s, done_work_s = 0, 0.0, 0.0
    first_miss_at: float | None = None
    now, at = 0.0, SAMPLE_S
    while at <= until_s:
        now += dice.expovariate(most_per_s)
        while at <= min(now, until_s):
            while running and running[0][0] <= at:
                done_work_s += heappop(running)[1]
            flow = Flow(arrived, arrived_work_s, done_work_s, len(running), 0, streams, DEADLINE_S)
            yield Look(at, flow, first_miss_at)
            at += SAMPLE_S
        if dice.random() * MOST_LOAD > load(now):
            continue
        price_s, service_s = _sizes(dice)
        start = max(now, free_at[0])
        end = start + service_s * slowness(start)
        heapreplace(free_at, end)
        heappush(running, (end, price_s))
        arrived, arrived_work_s = arrived + 1, arrived_work_s + price_s
        if first_miss_at is None and start - now > TTFT_SLO_S and now > CALM_S:
            first_miss_at = now + TTFT_SLO_S


def _sizes(dice: Random) -> tuple[float, float]:
    """Return the expected and the real service time of one request."""
    prefill_s = PREFILL_S * dice.lognormvariate(PROMPT_LOG_MEAN, PROMPT_LOG_DEVIATION)
    usual = CLASS_MEANS[int(dice.random() * len(CLASS_MEANS))]
    answer = usual * dice.lognormvariate(-0.5 * ANSWER_LOG_DEVIATION**2, ANSWER_LOG_DEVIATION)
    return prefill_s + TPOT_S * usual, prefill_s + TPOT_S * answer


def oldest(warning: EarlyWarning) -> Alarm | None:
    """Return the alarm that has been on for longest."""
    return next(iter(warning.alarms()), None)


def first_alarms(seed: int, streams: int, ramp_s: float | None) -> dict[AlarmSignal, float]:
    """Return when each signal was raised first, after load 1.0 of a ramp, or after engines came to half their speed at load 0.75."""
    calm, top = (calm_load(seed), top_load(seed)) if ramp_s else (0.75, 0.75)
    climbs_s = ramp_s or 1.0
    begun = CALM_S + (climbs_s * (1.0 - calm) / (top - calm) if ramp_s else 0.0)

    def load(at: float) -> float:
        return min(top, calm + (top - calm) * max(0.0, at - CALM_S) / climbs_s)

    def slowness(at: float) -> float:
        return 1.0 if ramp_s or at <= CALM_S else 2.0

    warning, until_s = EarlyWarning(0.0), begun + 60.0
    raised = dict.fromkeys(AlarmSignal, until_s - begun)
    for look in looks(seed, streams, load, until_s, slowness):
        warning.feed(look.at, look.flow)
        for alarm in warning.alarms():
            if alarm.raised_at > CALM_S:
                raised[alarm.signal] = min(raised[alarm.signal], alarm.raised_at - begun)
    return raised


def ramp(seed: int, streams: int, ramp_s: float) -> Verdict:
    """Return how one ramp was seen; an alarm that never comes counts as one at the end, a miss likewise."""
    calm, top = calm_load(seed), top_load(seed)
    until_s = CALM_S + ramp_s + 120.0

    def load(at: float) -> float:
        return min(top, calm + (top - calm) * max(0.0, at - CALM_S) / ramp_s)

    full_at = CALM_S + ramp_s * (1.0 - calm) / (top - calm)
    warning = EarlyWarning(0.0)
    alarm_at, miss_at = until_s, until_s
    for look in looks(seed, streams, load, until_s):
        warning.feed(look.at, look.flow)
        alarm = oldest(warning)
        if alarm is not None and alarm.raised_at > CALM_S and alarm_at == until_s:
            alarm_at = look.at
        if look.first_miss_at is not None:
            miss_at = look.first_miss_at
    return Verdict(alarm_at - full_at, miss_at - alarm_at)


def false_alarms(seed: int, streams: int, hours: float) -> Counter[AlarmSignal]:
    """Return how many alarms of each signal so much calm raises."""
    calm = calm_load(seed)
    warning = EarlyWarning(0.0)
    raised: set[tuple[AlarmSignal, float]] = set()
    for look in looks(seed, streams, lambda _at: calm, hours * 3600.0):
        warning.feed(look.at, look.flow)
        raised |= {(alarm.signal, alarm.raised_at) for alarm in warning.alarms()}
    return Counter(signal for signal, _ in raised)


def table(seeds: range) -> Iterator[str]:
    """Yield the lines that the program prints."""
    for streams in (256, 64):
        alarms = sum((false_alarms(seed, streams, 1.0) for seed in seeds), Counter[AlarmSignal]())
        yield f"seeds {seeds[0]}-{seeds[-1]}, {streams} streams: {len(seeds)} h of calm, false alarms {_said(alarms)}"
        slow = [first_alarms(seed, streams, None) for seed in seeds]
        yield f"  half speed, median: {_said(_medians(slow))} s"
        for ramp_s in (60.0, 30.0, 10.0):
            firsts = [first_alarms(seed, streams, ramp_s) for seed in seeds]
            verdicts = [ramp(seed, streams, ramp_s) for seed in seeds]
            delays = sorted(each.delay_s for each in verdicts)
            leads = sorted(each.lead_s for each in verdicts)
            yield (
                f"  ramp {ramp_s:2.0f} s: delay median {median(delays):5.1f} s ({delays[0]:.1f} to {delays[-1]:.1f}), "
                f"lead median {median(leads):5.1f} s (least {leads[0]:.1f}); by signal, median: {_said(_medians(firsts))} s"
            )


def _medians(firsts: list[dict[AlarmSignal, float]]) -> dict[AlarmSignal, float]:
    return {signal: round(median(each[signal] for each in firsts), 1) for signal in AlarmSignal}


def _said(numbers: Mapping[AlarmSignal, float]) -> str:
    return ", ".join(f"{signal} {numbers[signal]}" for signal in AlarmSignal)


if __name__ == "__main__":
    for judged in (range(20), range(100, 120)):
        sys.stdout.writelines(f"{line}\n" for line in table(judged))
