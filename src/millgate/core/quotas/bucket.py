"""The continuous token bucket: refilled at a rate, never above its burst, reserved first and settled later (INV-6).

Providers refill continuously: the wait in OpenAI's refusals is (used + requested - limit) / (limit / 60), to the millisecond,
which is this bucket with burst = limit and rate = limit / 60 per second.

A refund is the delicate part. Between a reservation and its refund the bucket may have filled to the brim; what ran over would
have run over with the smaller reservation too. The exact amount is min(refund, burst - highest level since the reservation): with
the smaller reservation the level would have stood higher by the refund until it reached the burst, and from then on by what was
left (the reflection argument for a queue with a bound). So the bucket remembers the falling sequence of its highest levels, and a
refund raises those since its reservation: the next refund is judged by the history as it now is.
"""

from bisect import bisect_left
from math import inf
from typing import NamedTuple

from millgate.core.settings import QuotaLimit
from millgate.core.words import OutputCharge, QuotaKind

PARTS = 64.0
"""Amounts are told apart by such parts: sums are of whole parts of a token or request, as those do not drift, and heights within
one part of the burst are one, the higher, so that a refund may come out so much too small, never too large."""
# Share of the burst by which a level may be short and still do: after the wait that was promised, the sum of two
# times has lost its last bits (2e-16 of an uptime of months, times the rate).
_SLACK = 1e-9
# A new replica has its part of a day when the others have heard of it, which takes two of their renewals.
_SHARE_COMES_S = 1.0


class Supply:
    """What requests take from: what is there now, and how fast more comes."""

    def __init__(self, rate_per_s: float) -> None:
        self.rate_per_s = rate_per_s
        self._wanted = self._wanted_until = self.away = 0.0

    def level(self, now: float) -> float:
        """Return what is there now."""
        raise NotImplementedError

    def wait_s(self, amount: float, now: float) -> float:
        """Return how long until this amount is there, if nothing else takes it: 0 now, infinite never."""
        raise NotImplementedError

    def too_large(self, amount: float) -> bool:  # noqa: ARG002
        """Return whether this amount can never be there; what needs more than all runs alone."""
        return False

    def full_for_s(self, now: float) -> float:  # noqa: ARG002
        """Return for how long it has lost what it was given; infinite where it is never kept idle for clients that are due."""
        return inf

    def others_have(self, amount: float) -> None:
        """Note that a client may have so much at another replica, where it comes by a new connection."""
        self.away = amount

    def wants(self, amount: float, until: float, now: float) -> None:
        """Note that a client short of this amount is to be back by then."""
        if amount >= self.wanted(now):
            self._wanted, self._wanted_until = amount, until

    def wanted(self, now: float) -> float:
        """Return the largest amount that a client which is to be back was short of, 0 without one."""
        return self._wanted if now <= self._wanted_until else 0.0


class Bucket(Supply):
    """Tokens (or requests) that may be spent now; below zero it is in debt. `rate_per_s` tokens, above 0, are added a second.

    `unsettled` counts reservations that are still open, `charged` is all that was taken less all that was refunded.
    Where replicas share it, rate and burst are this replica's part and `whole_burst` is that of all; one without a part
    `is_shut`. Times are core seconds and must not go backward.
    """

    def __init__(self, rate_per_s: float, burst: float, now: float) -> None:
        super().__init__(rate_per_s)
        self.burst = self.whole_burst = burst
        self.is_shut = self._is_part = False
        self._kept = 0.0
        self.unsettled = 0
        self.charged = 0.0
        self._level = burst
        self._at = now
        self._operations = 0
        self._peak_operations: list[int] = []
        self._peak_levels: list[float] = []

    def opened(self) -> None:
        """Count a reservation that is open from now on."""
        self.unsettled += 1

    def closed(self) -> None:
        """Count a reservation that is settled."""
        self.unsettled -= 1

    def level(self, now: float) -> float:
        """Return what may be spent now, at most the burst; negative in debt."""
        if self.is_shut:
            return min(self._level, 0.0)
        return min(self.burst, self._level + (now - self._at) * self.rate_per_s)

    def too_large(self, amount: float) -> bool:
        """Return whether this amount could not be taken from the full bucket either, all replicas' parts together."""
        return amount > self.whole_burst * (1.0 + _SLACK)

    def wait_s(self, amount: float, now: float) -> float:
        """Return how long until this amount is there, if nothing else takes it: 0 now, infinite never."""
        missing = amount - self.level(now)
        if missing <= self.burst * _SLACK:
            return 0.0
        if amount <= max(self._kept if self.is_shut else 0.0, self.away):
            return _SHARE_COMES_S
        return missing / self.rate_per_s if not self.too_large(amount) else float("inf")

    def full_in_s(self, now: float) -> float:
        """Return how long until the bucket is full, if nothing takes from it."""
        return (self.burst - self.level(now)) / self.rate_per_s

    def full_for_s(self, now: float) -> float:
        """Return for how long it has been full, and lost what it was given; 0 where it is not."""
        if self.is_shut:
            return 0.0
        return max(0.0, now - self._at - (self.burst - self._level) / self.rate_per_s)

    def take(self, amount: float, now: float) -> int:
        """Take this amount, into debt if need be; return the mark that its refund needs."""
        level = self.level(now)
        self._remember(level)
        self._level = level - amount
        self._at = now
        self.charged += amount
        return self._operations

    def give(self, amount: float, mark: int, now: float) -> float:
        """Give back a part of what was taken at `mark`; return how much of it counts, and no more (INV-6)."""
        level = self.level(now)
        first = bisect_left(self._peak_operations, mark)
        counted = min(amount, self.burst - level)
        if first < len(self._peak_levels):
            counted = min(counted, self.burst - self._peak_levels[first])
            self._raise_peaks(first, min(amount, self.burst - self._peak_levels[first]))
        self._level = level + counted
        self._at = now
        self.charged -= amount
        return counted

    def lower_to(self, level: float, now: float) -> None:
        """Bring the level down to this, if it is higher; never up."""
        here = self.level(now)
        self._remember(here)
        self._level = min(here, level)
        self._at = now

    def used(self, now: float) -> float:
        """Return what is missing to the full bucket; more than its burst in debt."""
        return max(0.0, self.burst - self.level(now) - self._kept)

    def was_used(self, share: float, most: float, now: float) -> None:
        """Bring it down to what is left of `most` where this share of it is used, if more is left; a share above 1 is a debt."""
        left = most * (1.0 - share)
        self.lower_to(left, now)
        self._kept = max(0.0, min(self._kept, left - self._level))

    def change(self, rate_per_s: float, burst: float, now: float) -> None:
        """Go on with another rate and burst; the level stays where it is, at most the new burst.

        After a rise of the burst the refunds of what is open do not count: what ran over before is not known.
        """
        self._turn_to(rate_per_s, burst, now)
        self.whole_burst = burst

    def replaced(self, limit: QuotaLimit, now: float) -> None:
        """Go on with another limit: what is used stays used, though a smaller limit makes no debt of it.

        Of a larger one a replica has its part when that has grown.
        """
        level, more = self.level(now), (limit.burst - self.whole_burst) * self.burst / self.whole_burst
        self._level, self._at = max(min(level, 0.0), level + min(0.0, more)), now
        self.change(limit.rate_per_s, limit.burst, now)
        if self._is_part:
            self._kept += max(0.0, more)
        else:
            self._level += max(0.0, more)

    def leased(
        self,
        rate_per_s: float,
        burst: float,
        now: float,
        *,
        is_full: bool = False,
        most_kept: float = inf,
        scale: float = 1.0,
    ) -> None:
        """Go on with this part of its rate and burst; of what was kept while it was shut, `most_kept` is back. One that `is_full` begins so.

        What its part has no room for comes as that grows: while others have not yet heard of a new replica, its part is small.
        Where replicas are more or fewer than before, its level is so many times what it was.
        """
        kept = burst if is_full else min(self._kept * scale, most_kept)
        self._is_part = most_kept < inf or burst < self.whole_burst
        if self.is_shut:
            self.is_shut, self._at = False, now  # nothing was added meanwhile
        if (rate_per_s, burst) != (self.rate_per_s, self.burst) or kept or scale != 1.0:
            here = self.level(now)
            self._level, self._at = min(here, here * scale), now
            self._turn_to(rate_per_s, burst, now)
            level = (self._level if scale == 1.0 else here * scale) + kept
            self._level = min(level, burst)
            self._kept = level - self._level

    def shut(self, now: float, *, keeps: bool) -> None:
        """Let nothing be taken until it has a part again: other replicas have its rate, and its level too unless it `keeps` that."""
        level = self.level(now)
        self._kept += max(0.0, level) if keeps else 0.0
        self._level, self._at = min(level, 0.0), now
        self.is_shut = self._is_part = True

    def _turn_to(self, rate_per_s: float, burst: float, now: float) -> None:
        level = min(self.level(now), burst)
        if burst < self.burst:  # a peak has as much room below the new burst as it had below the old one
            self._peak_levels = [max(0.0, peak - self.burst + burst) for peak in self._peak_levels]
        highest = burst if burst > self.burst else level
        self.rate_per_s, self.burst = rate_per_s, burst  # heights are told apart by parts of the new one
        self._remember(highest)
        self._level, self._at = level, now

    def was_full_since(self, mark: int, now: float) -> bool:
        """Return whether the bucket has been full at any time after that `take`."""
        first = bisect_left(self._peak_operations, mark)
        peak = self._peak_levels[first] if first < len(self._peak_levels) else self._level
        return max(self.level(now), peak) >= self.burst

    def is_idle(self, now: float) -> bool:
        """Return whether it is full and nothing is open: forgotten and made anew it would be the same."""
        return self.unsettled == 0 and self.level(now) >= self.burst

    def _remember(self, level: float) -> None:
        """Note the height before it falls; lower ones before it do not matter any more, nor does how deep a debt is."""
        levels, operations, operation = self._peak_levels, self._peak_operations, self._operations
        self._operations = operation + 1
        level = max(0.0, level)
        while levels and levels[-1] <= level:
            levels.pop()
            operations.pop()
        if levels and levels[-1] - level < self.burst / PARTS:
            operations[-1] = operation
            return
        levels.append(level)
        operations.append(operation)
        # Heights are a part apart but for what refunds have pushed together; of more, neighbours are merged whatever
        # their distance (INV-5).
        if len(levels) > PARTS + 1:
            self._peak_levels = levels[0::2]
            self._peak_operations = operations[1::2] + ([operations[-1]] if len(operations) % 2 else [])

    def _raise_peaks(self, first: int, by: float) -> None:
        """Rewrite history from this peak on as a refund makes it; what is now lower before it does not matter."""
        levels, operations = self._peak_levels, self._peak_operations
        for index in range(first, len(levels)):
            levels[index] += by
        hidden = first
        while hidden and levels[hidden - 1] <= levels[first]:
            hidden -= 1
        del levels[hidden:first]
        del operations[hidden:first]


_REQUESTS = (QuotaKind.RPM, QuotaKind.RPD)


class Sizes(NamedTuple):
    """What is known of a request before it runs, in tokens over all its answers; `max_tokens` None without a bound.

    Of its prompt `cached_tokens` are expected to come from a cache.
    """

    prompt_tokens: int
    output_tokens: int
    max_tokens: int | None = None
    cached_tokens: int = 0


def reserved_amount(limit: QuotaLimit, sizes: Sizes) -> float:
    """Return what a request of these sizes takes from this limit when it is let in.

    Nothing is too large for what is merely expected of it: that takes no more than its prompt leaves of the full bucket.
    """
    kind, charge = limit.kind, limit.output
    if kind in _REQUESTS:
        return 1.0
    prompt = 0 if kind is QuotaKind.OTPM else _counted(limit, sizes.prompt_tokens, sizes.cached_tokens)
    if kind is QuotaKind.ITPM:
        return prompt
    bound = sizes.max_tokens
    if charge is OutputCharge.EXPECTED or (charge is OutputCharge.MAX_TOKENS and bound is None):
        output = min(sizes.output_tokens, max(0.0, limit.burst - prompt))
    elif charge is OutputCharge.PRODUCED:
        output = 0.0
    else:
        output = float(bound or 0)
    return max(prompt, output) if charge is OutputCharge.LARGER else prompt + output


def _counted(limit: QuotaLimit, prompt_tokens: int, cached_tokens: int) -> int:
    return prompt_tokens if limit.count_cached else max(0, prompt_tokens - cached_tokens)


def needed_amount(limit: QuotaLimit, sizes: Sizes) -> float:
    """Return what must be there for a request to be let in: what it reserves, and always something."""
    return reserved_amount(limit, sizes) or 1.0


def used_amount(limit: QuotaLimit, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> float:
    """Return what a request of this real size takes from this limit."""
    if limit.kind in _REQUESTS:
        return 1.0
    if limit.kind is QuotaKind.OTPM:
        return output_tokens
    counted = _counted(limit, prompt_tokens, cached_tokens)
    return counted if limit.kind is QuotaKind.ITPM else counted + output_tokens


class Charge:
    """What one request has taken from one bucket so far."""

    def __init__(self, limit: QuotaLimit, bucket: Bucket, amount: float, now: float) -> None:
        self.limit = limit
        self.bucket = bucket
        self.taken = amount
        self._mark = bucket.take(amount, now)
        bucket.opened()

    def grow(self, amount: float, now: float) -> None:
        """Take more, up to this amount in all; a smaller one changes nothing."""
        if amount > self.taken and not self.limit.is_final:
            self.bucket.take(amount - self.taken, now)
            self.taken = amount

    def settle(self, amount: float, now: float) -> None:
        """Correct to this amount and close; what is never corrected stays as it was reserved."""
        self.close(self.taken if self.limit.is_final else amount, now)

    def close(self, amount: float, now: float) -> None:
        """Correct to this amount whatever the limit's rule, and close."""
        self.grow(amount, now)
        if amount < self.taken:
            self.bucket.give(self.taken - amount, self._mark, now)
            self.taken = amount
        self.bucket.closed()


class Reservation:
    """What one request has taken from several buckets, open until it is settled once; a second time changes nothing.

    The LARGER charge applies to tokens only; requests count as requests everywhere.
    """

    def __init__(self, charges: tuple[Charge, ...], sizes: Sizes) -> None:
        self._charges = charges
        self._sizes = sizes
        self.output_seen = 0

    @property
    def unproduced(self) -> int:
        """How much of the expected output is still to come; 0 once settled."""
        return max(0, self._sizes.output_tokens - self.output_seen) if self._charges else 0

    def read(self, prompt_tokens: int, cached_tokens: int) -> None:
        """Its engine has said how long its prompt is, and how much of it came from the cache: that is no estimate any more."""
        self._sizes = self._sizes._replace(prompt_tokens=prompt_tokens, cached_tokens=cached_tokens)

    def progress(self, output_tokens: int, now: float) -> None:
        """Take what has been produced so far, where that is more than was reserved for it."""
        if output_tokens <= self.output_seen:
            return
        self.output_seen, sizes = output_tokens, self._sizes
        for charge in self._charges:
            used = used_amount(charge.limit, sizes.prompt_tokens, sizes.cached_tokens, output_tokens)
            charge.grow(used, now)

    def settle(
        self, prompt_tokens: int | None, cached_tokens: int, output_tokens: int | None, now: float
    ) -> None:
        """Correct every charge to what was really used, and close; None leaves what is known so far as it is."""
        if prompt_tokens is None:
            prompt_tokens, cached_tokens = self._sizes.prompt_tokens, self._sizes.cached_tokens
        output = max(self._sizes.output_tokens, self.output_seen) if output_tokens is None else output_tokens
        for charge in self._close():
            charge.settle(used_amount(charge.limit, prompt_tokens, cached_tokens, output), now)

    def cancel(self, now: float) -> None:
        """Give everything back: the request was never run, nor sent."""
        for charge in self._close():
            charge.close(0.0, now)

    def _close(self) -> tuple[Charge, ...]:
        charges, self._charges = self._charges, ()
        return charges
