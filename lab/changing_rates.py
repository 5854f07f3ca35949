"""Arrivals at rates that change over time, drawn by thinning (Lewis and Shedler 1979).

Candidates come at the highest rate, and each is kept with the probability rate(t) / highest.
"""

from collections.abc import Callable, Iterator
from math import inf

from millgate.sim.laws import exponential
from millgate.sim.randomness import Streams

Rate = Callable[[float], float]
"""Requests per second at a time."""


def changing(rate: Rate, highest_per_s: float, streams: Streams, number: int = 0) -> Iterator[float]:
    """Yield the arrival times of a Poisson process whose rate changes and never passes `highest_per_s`."""
    gaps = streams.draws("gaps", exponential(1.0 / highest_per_s).sample, number)
    chances = streams.draws("thinning", lambda dice, count: dice.random(count), number)
    now = 0.0
    while True:
        now += gaps.next()
        if chances.next() * highest_per_s < rate(now):
            yield now


def on_off(on_per_s: float, on_s: float, off_s: float) -> Rate:
    """The rate is `on_per_s` and nothing in turn, beginning with on."""
    return lambda now: on_per_s if now % (on_s + off_s) < on_s else 0.0


def ramp(from_per_s: float, to_per_s: float, over_s: float) -> Rate:
    """The rate climbs evenly and then stays."""
    return lambda now: from_per_s + (to_per_s - from_per_s) * min(1.0, now / over_s)


def step(base_per_s: float, high_per_s: float, at_s: float, for_s: float = inf) -> Rate:
    """The rate is high for a while: a spike, or for ever."""
    return lambda now: high_per_s if at_s <= now < at_s + for_s else base_per_s
