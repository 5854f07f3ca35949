"""How a shared number is divided: floors first, then max-min fairness over what is wanted, and what is left evenly.

Max-min fairness by water-filling (Bertsekas and Gallager, Data Networks, section 6.5.2): all shares rise together from
their floors, and a share stops when it has what it wants. Nothing that a replica wants is left idle, and no share can
grow but at the cost of a smaller one.

Where requests wait for streams and tokens, they wait as long at one replica as at another, as before one gate. There each replica
keeps most of what it has out, and the rest goes to the requests that have waited longest, wherever they are.
"""

from itertools import pairwise
from math import floor
from typing import Final, NamedTuple

# A share that is short of a whole number by the rounding of a sum still is that number.
_ROUNDING: Final = 1e-9
# Of what a replica has out it keeps so much: what ends of the rest goes to the oldest request, which may wait
# elsewhere. Measured by `python -m lab.replicas`: where a replica keeps all, an eighth more of the requests are
# overtaken by younger ones.
_KEPT: Final = 0.75
# A request that has only come has waited for so long.
_LEAST_WAIT_S: Final = 0.001


class Claim(NamedTuple):
    """The least that one replica is to have, what it could use at once, what it has out, and how long its oldest request has waited."""

    floor: float
    wanted: float
    used: float = 0.0
    waits_s: float = 0.0


def divide(amount: float, claims: list[Claim], *, comes_whole: bool, turn: int) -> list[float]:
    """Return one share for each claim; their sum is the amount, rounded down where shares are whole numbers.

    `turn` says which replica is first to get what cannot be divided among equals; it rotates, so that each is the first
    in its turn.
    """
    amount = max(0.0, amount)
    if not comes_whole:
        return _fill(amount, claims)
    return _rounded(amount, _by_age(amount, claims), turn)


def _by_age(amount: float, claims: list[Claim]) -> list[float]:
    """Return shares by which the oldest request is served next where requests wait and there is not enough for all."""
    kept = [
        claim._replace(wanted=max(claim.floor, min(claim.used, claim.wanted) * _KEPT)) for claim in claims
    ]
    free = amount - sum((claim.wanted for claim in kept), 0.0)
    missing = [max(0.0, claim.wanted - own.wanted) for claim, own in zip(claims, kept, strict=True)]
    if sum(missing, 0.0) <= free or not any(claim.waits_s for claim in claims):
        return _fill(amount, claims)
    if free <= 0.0:
        return _fill(amount, kept)
    served = _served(free, missing, [max(_LEAST_WAIT_S, claim.waits_s) for claim in claims])
    return [own.wanted + more for own, more in zip(kept, served, strict=True)]


def _served(free: float, missing: list[float], waits_s: list[float]) -> list[float]:
    """Return what each gets of the free part, of which there is not enough: what its oldest requests want.

    Its requests are taken to have come evenly over its wait. Those are served that have waited for longer than an age,
    and that is such that the free part is just enough.
    """
    wanted = per_s = age_s = 0.0
    for wait_s, amount in sorted(zip(waits_s, missing, strict=True), reverse=True):
        wanted, per_s = wanted + amount, per_s + amount / wait_s
        if per_s > 0.0:
            age_s = max(age_s, (wanted - free) / per_s)
    return [amount * max(0.0, 1.0 - age_s / wait_s) for amount, wait_s in zip(missing, waits_s, strict=True)]


def _fill(amount: float, claims: list[Claim]) -> list[float]:
    floors = sum((claim.floor for claim in claims), 0.0)
    scale = 1.0 if floors <= amount else amount / floors
    low = [claim.floor * scale for claim in claims]
    high = [max(least, claim.wanted) for least, claim in zip(low, claims, strict=True)]
    wanted = sum(high, 0.0)
    if wanted <= amount:
        spare = (amount - wanted) / len(claims)
        return [most + spare for most in high]
    level = _level(amount, low, high)
    return [min(max(level, least), most) for least, most in zip(low, high, strict=True)]


def _level(amount: float, low: list[float], high: list[float]) -> float:
    """Return the height to which the shares rise: each at its floor at least and at its wish at most, in sum the amount."""
    filled = sum(low, 0.0)
    points = sorted(low + high)
    for here, above in pairwise(points):
        rising = sum((least <= here < most for least, most in zip(low, high, strict=True)), 0)
        step = rising * (above - here)
        if rising and filled + step >= amount:
            return here + (amount - filled) / rising
        filled += step
    return points[-1]


def _rounded(amount: float, shares: list[float], turn: int) -> list[float]:
    """Round down, and give the units that are left to the shares that lost most, of equal ones from the one whose turn it is."""
    whole = [float(floor(share + _ROUNDING)) for share in shares]
    left = floor(amount + _ROUNDING) - sum(whole, 0.0)
    in_turn = [(turn + offset) % len(shares) for offset in range(len(shares))]
    for index in sorted(in_turn, key=lambda each: whole[each] - shares[each]):
        if left >= 1 and shares[index] - whole[index] > _ROUNDING:
            whole[index] += 1.0
            left -= 1
    return whole
