"""First crowds: streams that begin together, each answering one after the other."""

from math import log, sqrt
from random import Random


def crowd(streams: int, until: float, dice: Random, cv: float = 1.0) -> tuple[list[float], list[float]]:
    """Return the lognormal lives of mean 1 that have ended by then side by side, and those that run, so far."""
    spread = sqrt(log(1.0 + cv * cv))
    ended, running = list[float](), list[float]()
    for _ in range(streams):
        at = 0.0
        while at + (life := dice.lognormvariate(-spread * spread / 2.0, spread)) <= until:
            ended.append(life)
            at += life
        running.append(until - at)
    return sorted(ended), sorted(running)
