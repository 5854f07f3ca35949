"""Closed forms, with their sources; times in units of the mean service time unless said otherwise.

Kleinrock, Queueing Systems I (1975) for M/M/., M/G/1 and their finite forms. Erlang (1917) for B and C. Palm (1957)
for impatience (Erlang A). Falin and Templeton (1997) for retrials. Little (1961). Che, Tung and Wang (2002) for LRU.
"""

from collections.abc import Callable, Sequence
from math import exp, expm1, factorial

from millgate.sim.calculator import erlang_c


def mm1_sojourn(load: float) -> float:
    """Mean time in an M/M/1 system."""
    return 1.0 / (1.0 - load)


def mm1_sojourn_beyond(load: float, time: float) -> float:
    """Share of M/M/1 customers that stay longer than `time`."""
    return exp(-(1.0 - load) * time)


def mg1_wait(load: float, cv2: float) -> float:
    """Mean wait in M/G/1 (Pollaczek and Khinchine)."""
    return (1.0 + cv2) / 2.0 * load / (1.0 - load)


def erlang_c_wait(servers: int, offered: float) -> float:
    """Mean wait in M/M/c."""
    return erlang_c(servers, offered) / (servers - offered)


def erlang_c_wait_beyond(servers: int, offered: float, time: float) -> float:
    """Share of M/M/c customers that wait longer than `time`."""
    return erlang_c(servers, offered) * exp(-(servers - offered) * time)


def mmck(servers: int, places: int, offered: float) -> tuple[float, float]:
    """Share blocked, and mean sojourn of those let in, of M/M/c/K with `places` in all."""
    weights = _birth_death(places, offered, lambda present: min(present, servers))
    total = sum(weights)
    blocked = weights[-1] / total
    mean_present = sum(count * weight for count, weight in enumerate(weights)) / total
    return blocked, mean_present / (offered * (1.0 - blocked))


def erlang_a_abandon(servers: int, offered: float, impatience: float) -> float:
    """Share that leaves before being served in M/M/c+M, patience exponential with this rate."""
    most = servers + int(40.0 * max(1.0, offered / impatience)) + 200
    weights = _birth_death(
        most, offered, lambda present: min(present, servers) + impatience * max(0, present - servers)
    )
    total = sum(weights)
    queue = sum(max(0, count - servers) * weight for count, weight in enumerate(weights)) / total
    return impatience * queue / offered


def retrial_orbit(load: float, retry_rate: float) -> float:
    """Mean number in orbit of the M/M/1 queue with classical retrials."""
    return load**2 * (1.0 + retry_rate) / ((1.0 - load) * retry_rate)


def attempts_per_request(failure: float, retries: int) -> float:
    """Mean attempts when each fails independently and up to `retries` are made again."""
    return (1.0 - failure ** (retries + 1)) / (1.0 - failure)


def finite_source(users: int, think: float) -> float:
    """Mean time in M/M/1 fed by this many users that think for an exponential time (machine repair)."""
    weights = [factorial(users) / factorial(users - count) / think**count for count in range(users + 1)]
    busy = 1.0 - weights[0] / sum(weights)
    return users / busy - think


def lru_hit_share(popularity: Sequence[float], capacity: float) -> float:
    """Share of independent references that an LRU cache of this many objects has (Che's approximation).

    An object stays for a characteristic time T after it was asked for; T is the time in which as many different objects are
    asked for as the cache holds.
    """
    if capacity >= len(popularity):
        return 1.0
    below, above = 0.0, 1.0
    while _different_in(popularity, above) < capacity:
        above *= 2.0
    for _ in range(100):
        middle = (below + above) / 2.0
        below, above = (middle, above) if _different_in(popularity, middle) < capacity else (below, middle)
    return sum(-share * expm1(-share * below) for share in popularity) / sum(popularity)


def _different_in(popularity: Sequence[float], time: float) -> float:
    """Mean number of different objects that are asked for within a time."""
    return sum(-expm1(-share * time) for share in popularity)


def cyclic_hit_share(contexts: int, memory: float) -> float:
    """Share that is found of equal contexts which come in strict turn, under LRU by blocks, ends first.

    `memory` is in contexts. Each one finds what the others have left of it: all while they fit, nothing when one too many
    comes, and in between what the last one did not take.
    """
    return min(1.0, max(0.0, 1.0 - (contexts - memory)))


def _birth_death(most: int, births: float, deaths: Callable[[int], float]) -> list[float]:
    """Return the unnormalised stationary weights of 0..most present, scaled against overflow."""
    weights = [1.0]
    for present in range(1, most + 1):
        weights.append(weights[-1] * births / deaths(present))
    highest = max(weights)
    return [weight / highest for weight in weights]
