"""How much of a limit one request takes: before it runs, while it answers, and in the end."""

from typing import NamedTuple

from millgate.core.quotas.bucket import Bucket
from millgate.core.settings import QuotaLimit
from millgate.core.words import OutputCharge, QuotaKind

_REQUESTS = (QuotaKind.RPM, QuotaKind.RPD)


class Sizes(NamedTuple):
    """What is known of a request before it runs, in tokens over all its answers; `max_tokens` None without a bound."""

    prompt_tokens: int
    output_tokens: int
    max_tokens: int | None = None


def reserved_amount(limit: QuotaLimit, sizes: Sizes) -> float:
    """Return what a request of these sizes takes from this limit when it is let in."""
    kind, charge = limit.kind, limit.output
    if kind in _REQUESTS:
        return 1.0
    if kind is QuotaKind.ITPM:
        return sizes.prompt_tokens
    bound = sizes.max_tokens
    if charge is OutputCharge.EXPECTED or (charge is OutputCharge.MAX_TOKENS and bound is None):
        output = sizes.output_tokens
    elif charge is OutputCharge.PRODUCED:
        output = 0
    else:
        output = bound or 0
    if kind is QuotaKind.OTPM:
        return output
    if charge is OutputCharge.LARGER:
        return max(sizes.prompt_tokens, output)
    return sizes.prompt_tokens + output


def needed_amount(limit: QuotaLimit, sizes: Sizes) -> float:
    """Return what must be there for a request to be let in: what it reserves, and always something."""
    return reserved_amount(limit, sizes) or 1.0


def used_amount(limit: QuotaLimit, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> float:
    """Return what a request of this real size takes from this limit."""
    if limit.kind in _REQUESTS:
        return 1.0
    if limit.kind is QuotaKind.OTPM:
        return output_tokens
    counted = prompt_tokens if limit.count_cached else max(0, prompt_tokens - cached_tokens)
    return counted if limit.kind is QuotaKind.ITPM else counted + output_tokens


class Charge:
    """What one request has taken from one bucket so far."""

    __slots__ = ("_mark", "bucket", "limit", "taken")

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
        if not self.limit.is_final:
            self.close(amount, now)
        else:
            self.bucket.closed()

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

    __slots__ = ("_charges", "_sizes", "output_seen")

    def __init__(self, charges: tuple[Charge, ...], sizes: Sizes) -> None:
        self._charges = charges
        self._sizes = sizes
        self.output_seen = 0

    @property
    def unproduced(self) -> int:
        """How much of the expected output is still to come; 0 once settled."""
        return max(0, self._sizes.output_tokens - self.output_seen) if self._charges else 0

    def progress(self, output_tokens: int, now: float) -> None:
        """Take what has been produced so far, where that is more than was reserved for it."""
        if output_tokens <= self.output_seen:
            return
        self.output_seen = output_tokens
        prompt_tokens = self._sizes.prompt_tokens
        for charge in self._charges:
            charge.grow(used_amount(charge.limit, prompt_tokens, 0, output_tokens), now)

    def settle(
        self, prompt_tokens: int | None, cached_tokens: int, output_tokens: int | None, now: float
    ) -> None:
        """Correct every charge to what was really used, and close; None leaves the estimate as it is."""
        prompt = self._sizes.prompt_tokens if prompt_tokens is None else prompt_tokens
        output = max(self._sizes.output_tokens, self.output_seen) if output_tokens is None else output_tokens
        for charge in self._close():
            charge.settle(used_amount(charge.limit, prompt, cached_tokens, output), now)

    def cancel(self, now: float) -> None:
        """Give everything back: the request was never run, nor sent."""
        for charge in self._close():
            charge.close(0.0, now)

    def _close(self) -> tuple[Charge, ...]:
        charges, self._charges = self._charges, ()
        return charges
