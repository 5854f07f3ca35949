"""The law by which a hosted provider lets requests through, in virtual time: for `Provider` and for simulations.

Written from the provider's side and independent of `millgate.core.quotas.bucket`, so that the one can be held against
the other. What is used drains continuously at limit / 60 a second; a request is refused while used + requested >
limit, for (used + requested - limit) / (limit / 60) seconds. Six refusals of OpenAI that users have published follow
this formula to the millisecond. Output that is charged as it is made (Anthropic's OTPM) refuses while used >= limit
and lets running streams run on, beyond the limit.
"""

from collections.abc import Sequence
from typing import NamedTuple

from millgate.core.quotas.bucket import Sizes, reserved_amount, used_amount
from millgate.core.settings import QuotaLimit
from millgate.core.words import QuotaKind


class LimitMeter:
    """One limit at the provider: what is used of it now, and all that was ever charged to it."""

    __slots__ = ("_at", "_used", "charged", "limit")

    def __init__(self, limit: QuotaLimit, used_share: float, now: float) -> None:
        self.limit = limit
        self.charged = 0.0
        self._used = used_share * limit.burst
        self._at = now

    def used(self, now: float) -> float:
        """Return what is used now: 0 when nothing has been asked for a while, above the limit in debt."""
        return max(0.0, self._used - (now - self._at) * self.limit.rate_per_s)

    def charge(self, amount: float, now: float) -> None:
        """Add to what is used; a negative amount corrects an estimate that was too high."""
        self._used = max(0.0, self.used(now) + amount)
        self._at = now
        self.charged += amount

    def over_by(self, requested: float, now: float) -> float:
        """Return by how much a request would be too much now; 0 or less lets it through."""
        return self.used(now) + requested - self.limit.burst


class LimitVerdict(NamedTuple):
    """What the provider says to a request: the limit that refuses it, None when it goes through, and for how long.

    `too_large` will never go through. `used` and `requested` are the refusing limit's numbers.
    """

    refused_by: QuotaKind | None = None
    wait_s: float = 0.0
    too_large: bool = False
    used: float = 0.0
    requested: float = 0.0


class LimitStanding(NamedTuple):
    """One limit as response headers show it; `reset_s` until nothing of it is used."""

    kind: QuotaKind
    limit: float
    remaining: float
    reset_s: float


class Grant:
    """One request that went through: charged at once, as it produces, and corrected at its end."""

    __slots__ = ("_meters", "_sizes", "_taken", "produced")

    def __init__(self, meters: Sequence[LimitMeter], sizes: Sizes, now: float) -> None:
        self._meters = meters
        self._sizes = sizes
        self._taken = [reserved_amount(meter.limit, sizes) for meter in meters]
        self.produced = 0
        for meter, amount in zip(meters, self._taken, strict=True):
            meter.charge(amount, now)

    def produce(self, output_tokens: int, now: float) -> None:
        """Charge so many more output tokens where they are charged as they are made."""
        self.produced += output_tokens
        for index, meter in enumerate(self._meters):
            if meter.limit.charges_as_made:
                meter.charge(output_tokens, now)
                self._taken[index] += output_tokens

    def end(self, cached_tokens: int, now: float) -> None:
        """Correct what was estimated to what was really used."""
        prompt = self._sizes.prompt_tokens
        for index, meter in enumerate(self._meters):
            if not meter.limit.is_final:
                used = used_amount(meter.limit, prompt, cached_tokens, self.produced)
                meter.charge(used - self._taken[index], now)
                self._taken[index] = used


class ProviderLaw:
    """The meters of one account. `used_share` says how much of each limit is used at the start.

    With `refusals_count` a refused request uses up a request all the same (OpenAI).
    """

    def __init__(
        self,
        limits: Sequence[QuotaLimit],
        now: float,
        *,
        used_share: float = 0.0,
        refusals_count: bool = False,
    ) -> None:
        self.meters = {limit.kind: LimitMeter(limit, used_share, now) for limit in limits}
        self._refusals_count = refusals_count
        self._since = now

    def ask(self, sizes: Sizes, now: float) -> LimitVerdict:
        """Return whether a request may go through now; charges nothing, but for a refusal that counts."""
        for meter in self.meters.values():
            limit = meter.limit
            requested = reserved_amount(limit, sizes)
            if requested > limit.burst:
                return LimitVerdict(limit.kind, too_large=True, requested=requested)
            used, over = meter.used(now), meter.over_by(requested, now)
            if over > 0.0 or (over == 0.0 and requested == 0.0):
                if self._refusals_count and QuotaKind.RPM in self.meters:
                    self.meters[QuotaKind.RPM].charge(1.0, now)
                return LimitVerdict(limit.kind, over / limit.rate_per_s, used=used, requested=requested)
        return LimitVerdict()

    def grant(self, sizes: Sizes, now: float) -> Grant:
        """Charge a request that `ask` has let through at this very instant."""
        return Grant(tuple(self.meters.values()), sizes, now)

    def eat(self, kind: QuotaKind, amount: float, now: float) -> None:
        """Let another client of the same account use up so much, as far as it is there."""
        meter = self.meters[kind]
        meter.charge(min(amount, max(0.0, -meter.over_by(0.0, now))), now)

    def standing(self, now: float) -> tuple[LimitStanding, ...]:
        """Return every limit for the headers of an answer."""
        return tuple(
            LimitStanding(
                kind,
                meter.limit.amount,
                max(0.0, -meter.over_by(0.0, now)),
                meter.used(now) / meter.limit.rate_per_s,
            )
            for kind, meter in self.meters.items()
        )

    def count_from(self, now: float) -> None:
        """Start every count of what was charged anew; what is used stays used."""
        self._since = now
        for meter in self.meters.values():
            meter.charged = 0.0

    def used_share(self, kind: QuotaKind, now: float) -> float:
        """Return which share of this quota was charged since the counts began, over the time that has passed."""
        granted = self.meters[kind].limit.rate_per_s * (now - self._since)
        return self.meters[kind].charged / granted if granted > 0.0 else 0.0
