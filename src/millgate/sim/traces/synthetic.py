"""Arrivals and lengths from laws, so that everything runs with no data at hand.

Lengths follow the published quantiles of public traces.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from types import MappingProxyType

from millgate.sim.jobs import Job
from millgate.sim.laws import Law, constant, exponential, gamma, lognormal, quantiles
from millgate.sim.randomness import Streams


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long prompts and answers are, in tokens, independent of each other."""

    prompt: Law
    output: Law


def _published(p50: float, p90: float, p99: float, most: float, least: float = 1.0) -> Law:
    return quantiles(((0.0, least), (0.5, p50), (0.9, p90), (0.99, p99), (1.0, most)))


# Quantiles p50/p90/p99/max of each trace; the lower end is the trace's smallest common length, rounded.
LENGTHS: Mapping[str, Lengths] = MappingProxyType(
    {
        "azure_conversation": Lengths(
            _published(1020, 2735, 4142, 14050, 60), _published(129, 424, 601, 1000, 20)
        ),
        "azure_code": Lengths(_published(1469, 5188, 7436, 7437, 100), _published(13, 55, 251, 1899, 5)),
        "mooncake_conversation": Lengths(
            _published(6909, 27367, 85400, 126195, 900), _published(350, 597, 1119, 2000, 20)
        ),
        "arena": Lengths(_published(40, 432, 902, 1021, 8), _published(211, 513, 785, 977, 8)),
        # A lookup or a classification: short in, shorter out.
        "short": Lengths(lognormal(512.0, 0.25), lognormal(16.0, 0.25)),
        "lognormal_1": Lengths(lognormal(1000.0, 1.72), lognormal(250.0, 1.72)),
        "lognormal_1.5": Lengths(lognormal(1000.0, 8.49), lognormal(250.0, 8.49)),
        "fixed": Lengths(constant(1000.0), constant(250.0)),
    }
)


def steady(rate_per_s: float, streams: Streams, variation: float = 1.0, number: int = 0) -> Iterator[float]:
    """Yield arrival times for ever: Poisson, or gamma gaps with this coefficient of variation."""
    gap_s = 1.0 / rate_per_s
    law = exponential(gap_s) if variation == 1.0 else gamma(gap_s, variation**2)
    draws = streams.draws("gaps", law.sample, number)
    now = 0.0
    while True:
        now += draws.next()
        yield now


def jobs(
    times: Iterator[float],
    lengths: Lengths,
    streams: Streams,
    *,
    until_s: float = inf,
    tenants: int = 1,
    lane: str | None = None,
    number: int = 0,
) -> Iterator[Job]:
    """Yield a job for each arrival before `until_s`, its lengths drawn, its tenant in turn by lot."""
    prompt = streams.draws("prompt tokens", lengths.prompt.sample, number)
    output = streams.draws("output tokens", lengths.output.sample, number)
    lots = streams.draws("tenants", lambda dice, count: dice.uniform(0.0, tenants, count), number)
    for at_s in times:
        if at_s >= until_s:
            return
        tenant = f"tenant-{int(lots.next())}" if tenants > 1 else ""
        yield Job(at_s, max(1, round(prompt.next())), max(1, round(output.next())), tenant, lane)
