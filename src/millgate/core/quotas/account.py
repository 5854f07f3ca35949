"""The provider behind one engine: its limits kept here, a little below, so that it hardly ever has to refuse.

Every limit of the account has a bucket that is taken from with the permit, `MARGIN` below what the provider grants:
the provider's bucket then always holds a little more than this one. Where the provider charges output as it is made,
we reserve the expected output beforehand: what it will make is spent already.

What the provider says can only lower a level: the numbers in its headers are rounded (Anthropic: to the nearest
thousand) and as old as the answer is long.

Others may take from the same account. At a refusal the provider's bucket is known to be empty. Between two such
moments it was given rate x time, and what we did not take of that, others did: the rate to expect of them until it
fades. With it the account runs on what is left, without it every surplus would end in a refusal.

After a refusal, and below the last `CUSHION` of what the provider says is left, nothing is sent until that much is
back. It costs no quota, because the provider's bucket fills meanwhile and holds a whole minute.
"""

from dataclasses import replace

from millgate.core.events import AccountShare, QuotaReading, QuotaShare, Remaining
from millgate.core.measure import WINDOW_S, Ewma
from millgate.core.quotas.bucket import (
    Bucket,
    Charge,
    Reservation,
    Sizes,
    needed_amount,
    reserved_amount,
    used_amount,
)
from millgate.core.settings import MINUTE_S, AccountSettings, QuotaLimit
from millgate.core.words import OutputCharge, QuotaKind

MARGIN = 0.02
"""How far below the provider's rate and burst the account runs: more than the jitter of arrivals within a minute
(1 s of 60), less than the 5 % of a quota that may go unused."""
CUSHION = 0.05
"""Share of the burst, of a minute's worth at most, that is left alone when the provider says how little is left: three
seconds, in which its word is on the way."""

# How full the provider's bucket is when this process starts is not known (the one before it may have emptied it):
# five seconds of a minute are tried, the rest comes at the rate. A day would come back too slowly: all of it is believed
# in until the provider says otherwise.
_FIRST_LEVEL = 1.0 / 12.0
# Refusals that follow each other faster were all sent before the first of them came back.
_VOLLEY_S = 2.0
# Others never take all: a tenth of the rate keeps trying, or nothing would ever be learned again.
_MOST_OTHERS = 0.9
# A refusal that names no limit may have another cause, such as a provider behind the provider: it tells of others only
# where we took the rest ourselves.
_MOST_UNNAMED = 0.5
# What others took is forgotten at this rate, in half an hour 63 %: quota that they left comes back, and the tries for
# it cost one refusal in several minutes.
_FADE_PER_S = 1.0 / 1800.0
# A provider that still has half of its burst is not being emptied by others: its word may halve what is expected of them.
_PLENTY = 0.5
FIRST_PAUSE_S = 1.0
"""A pause after a refusal without a hint: doubled each time, up to a minute."""
_EITHER_TOKENS = (QuotaKind.ITPM, QuotaKind.OTPM)
# A hint beyond this is a date misread or a spending limit: an hour, and then it is asked again.
_LONGEST_HINT_S = 3600.0


class _Limit:
    """One limit of the account: our bucket, and the rate at which others seem to take from the provider's."""

    def __init__(self, limit: QuotaLimit, now: float) -> None:
        self.limit = limit
        self._most = limit.amount
        as_made = limit.charges_as_made
        self.reserve = replace(limit, output=OutputCharge.EXPECTED) if as_made else limit
        self.bucket = Bucket(limit.rate_per_s * (1.0 - MARGIN), _kept_burst(limit), now)
        if limit.period_s == MINUTE_S:
            self.bucket.lower_to(max(1.0, self.bucket.burst * _FIRST_LEVEL), now)
        self.others_per_s = 0.0
        self._share: QuotaShare | None = None
        self._faded_at = now
        self._empty_at = self._refused_at = float("-inf")
        self._empty_mark: int | None = None
        self._charged_then = 0.0
        self.usual = Ewma(0.0, prior_samples=0.0)

    def beyond(self, sizes: Sizes) -> tuple[float, float] | None:
        """Return what such a request needs and the burst, where that is less and it can never go; else None."""
        needed = needed_amount(self.reserve, sizes)
        return (needed, max(self.limit.burst, self.limit.amount)) if self._is_beyond(needed) else None

    def in_line_s(self, sizes: Sizes, place: int, now: float) -> float:
        """Return how long until the `place`-th of such a line may go; infinite when it never can.

        Those before it take what an answered request took in the end, which is less than it reserved by `max_tokens`.
        """
        needed, bucket = needed_amount(self.reserve, sizes), self.bucket
        if self._is_beyond(needed):
            return float("inf")
        needed = min(needed, bucket.whole_burst)
        if place <= 1:
            return bucket.wait_s(needed, now)
        each = self.usual.mean if self.usual.samples else reserved_amount(self.reserve, sizes)
        return max(0.0, needed + (place - 1) * each - bucket.level(now)) / bucket.rate_per_s

    def answered(self, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> None:
        """Learn what a request takes in the end; a charge that is never corrected is learned as it is taken."""
        if not self.limit.is_final:
            self.usual.add(used_amount(self.limit, prompt_tokens, cached_tokens, output_tokens))

    def expect_others(self, others_per_s: float, now: float) -> None:
        """Run on what is left of the rate."""
        self.others_per_s = others_per_s
        self._faded_at = now
        rate, share = self._rate_per_s(), self._share
        rate_per_s = max(rate * (1.0 - MARGIN) - others_per_s, rate * MARGIN)
        if share is None:
            self.bucket.change(rate_per_s, _kept_burst(self.limit), now)
        elif rate_per_s > 0.0:
            self.bucket.leased(rate_per_s, max(1.0, share.burst * (1.0 - MARGIN)), now)

    def leased(self, share: QuotaShare | None, now: float) -> None:
        """Run on this share from now on, on nothing without one."""
        if share is not None and not (share.rate_per_s > 0.0 and share.burst > 0.0):
            share = None
        changed, self._share = share != self._share, share
        if share is None and not self.bucket.is_shut:
            self.bucket.shut(now, keeps=self.limit.period_s != MINUTE_S)
        elif changed:
            self.expect_others(self.others_per_s, now)

    def _rate_per_s(self) -> float:
        """Return the rate that is ours: the account's, or our share of it."""
        return self.limit.rate_per_s if self._share is None else self._share.rate_per_s

    def fade(self, now: float) -> None:
        """Forget a little of what others took; at most once in ten seconds."""
        elapsed_s = now - self._faded_at
        if self.others_per_s > 0.0 and elapsed_s >= WINDOW_S:
            self.expect_others(self.others_per_s * max(0.0, 1.0 - elapsed_s * _FADE_PER_S), now)

    def emptied(self, hint_s: float, unproduced: float, now: float, *, is_named: bool) -> None:
        """The provider has refused for this limit, or for one that it has not named: its bucket is empty, and the hint says for how long."""
        self._learn_others(now, is_named=is_named)
        bucket = self.bucket
        missing = self._cushion() + hint_s * bucket.rate_per_s
        bucket.lower_to(-missing - self._still_to_charge(unproduced), now)

    def seen(self, word: Remaining, unproduced: float, now: float) -> None:
        """Take the provider's word where it says less than we thought; a limit that it raises again counts up to the configured one."""
        if word.limit and (amount := self._granted(word.limit)) != self.limit.amount:
            self.limit = replace(self.limit, amount=amount)
            self.reserve = replace(self.reserve, amount=amount)
            self.expect_others(min(self.others_per_s, self._rate_per_s() * _MOST_OTHERS), now)
        if word.remaining is None:
            return
        bucket = self.bucket
        bound = word.remaining - self._still_to_charge(unproduced) - self._cushion()
        if bound < bucket.level(now):
            bucket.lower_to(bound, now)
        elif word.remaining > _PLENTY * self.limit.burst and now - self._faded_at >= WINDOW_S:
            self.expect_others(self.others_per_s / 2.0, now)

    def _granted(self, told: float) -> float:
        """Return the limit that is told, up to the configured one; of requests it may be that of the window in which they are counted (Azure)."""
        windows = max(1.0, MINUTE_S / (self.limit.burst_s or MINUTE_S))
        is_of_one = self.limit.kind is QuotaKind.RPM and told * windows <= self._most
        return min(told * windows if is_of_one else told, self._most)

    def _is_beyond(self, needed: float) -> bool:
        """Return whether it is more than a provider with short windows takes at once, or counts in its minute."""
        return needed > max(self.limit.burst, self.limit.amount) and not self.limit.charges_as_made

    def _cushion(self) -> float:
        return CUSHION * min(self.bucket.burst, self.limit.rate_per_s * MINUTE_S)

    def _still_to_charge(self, unproduced: float) -> float:
        """Return what running answers will take from the provider's bucket, and have taken from ours already."""
        return unproduced if self.limit.charges_as_made else 0.0

    def _learn_others(self, now: float, *, is_named: bool) -> None:
        """Compare this empty moment with the last one; a volley of refusals is one moment, and its last counts.

        What a refused request had taken from our bucket is given back before its refusal is learned from.
        """
        bucket, since_last_s = self.bucket, now - self._refused_at
        self._refused_at = now
        if since_last_s > _VOLLEY_S:
            elapsed_s = now - self._empty_at
            if elapsed_s < WINDOW_S:
                return
            if self._empty_mark is not None and not bucket.was_full_since(self._empty_mark, now):
                rate = self._rate_per_s()
                others = max(0.0, rate - (bucket.charged - self._charged_then) / elapsed_s)
                if is_named or others <= _MOST_UNNAMED * rate:
                    others = min(others, _MOST_OTHERS * rate)
                    self.expect_others((others + (self.others_per_s or others)) / 2.0, now)
        self._empty_at, self._charged_then = now, bucket.charged
        self._empty_mark = bucket.take(0.0, now)


class Account:
    """One provider account. `wait_s` only reads; 0 means that the request may be sent now.

    `take` with the permit, `progress` as the answer grows, `settle` at its end; then `refused` if the provider sent it
    back, `seen` whenever an answer's headers speak of limits. Tokens throughout; times are core seconds.
    """

    def __init__(self, settings: AccountSettings, now: float) -> None:
        self._limits = {limit.kind: _Limit(limit, now) for limit in settings.limits}
        self._paused_until = now
        self._pause_s = FIRST_PAUSE_S
        self._unproduced = 0.0
        self._tightest: _Limit | None = None
        self._untried = True

    def wait_s(self, sizes: Sizes, now: float, place: int = 1) -> float:
        """Return how long until the `place`-th of a line of requests may go: 0 now, infinite when this never can.

        The first request ever goes at once, whatever it needs.
        """
        waits = [each.in_line_s(sizes, place, now) for each in self._limits.values()]
        counted = [each for each in waits if not self._untried or each == float("inf")]
        return max([0.0, self._paused_until - now, *counted])

    def beyond(self, sizes: Sizes) -> tuple[float, float] | None:
        """Return what a request that can never go needs, and the burst that is less; None for any other."""
        found = [each.beyond(sizes) for each in self._limits.values()]
        return next((each for each in found if each is not None), None)

    def take(self, sizes: Sizes, now: float) -> Reservation:
        """Reserve in every limit; the caller has asked `wait_s` at this very instant."""
        self._untried = False
        charges, lowest = [], float("inf")
        for each in self._limits.values():
            each.fade(now)
            bucket = each.bucket
            amount = reserved_amount(each.reserve, sizes)
            charges.append(Charge(each.reserve, bucket, amount, now))
            if each.limit.is_final:
                each.usual.add(amount)
            share = bucket.level(now) / bucket.burst
            if share < lowest and each.limit.period_s == MINUTE_S:
                lowest, self._tightest = share, each
        self._unproduced += sizes.output_tokens
        return Reservation(tuple(charges), sizes)

    def leased(self, share: AccountShare | None, now: float) -> None:
        """Run on these shares from now on; a limit without one is shut."""
        shares = {} if share is None else {each.quota: each for each in share.limits}
        for kind, limit in self._limits.items():
            limit.leased(shares.get(kind.value), now)

    def shared(self, sizes: Sizes) -> list[tuple[QuotaLimit, Bucket, float]]:
        """Return each limit, its bucket, and what a request of these sizes needs of it."""
        return [
            (each.limit, each.bucket, needed_amount(each.reserve, sizes)) for each in self._limits.values()
        ]

    def levels(self, now: float) -> tuple[float, float, float]:
        """Return the least share left of a limit, the most of a rate that others seem to take, and the pause left."""
        limits = self._limits.values()
        left = min([each.bucket.level(now) / each.bucket.burst for each in limits], default=1.0)
        others = max([each.others_per_s / each.limit.rate_per_s for each in limits], default=0.0)
        return left, others, max(0.0, self._paused_until - now)

    def progress(self, reservation: Reservation, output_tokens: int, now: float) -> None:
        """So many output tokens have come: what outgrows its reservation takes more."""
        before = reservation.unproduced
        reservation.progress(output_tokens, now)
        self._unproduced -= before - reservation.unproduced

    def settle(
        self,
        reservation: Reservation,
        prompt_tokens: int | None,
        cached_tokens: int,
        output_tokens: int | None,
        now: float,
    ) -> None:
        """Correct to what was really used; None leaves an estimate as it is."""
        self._unproduced -= reservation.unproduced
        reservation.settle(prompt_tokens, cached_tokens, output_tokens, now)

    def answered(self, prompt_tokens: int | None, cached_tokens: int, output_tokens: int) -> None:
        """Learn from a whole answer, after `settle`. It ends a row of pauses, also where nothing was to be written."""
        self._pause_s = FIRST_PAUSE_S
        if prompt_tokens is not None:
            for each in self._limits.values():
                each.answered(prompt_tokens, cached_tokens, output_tokens)

    def seen(self, reading: QuotaReading, now: float) -> None:
        """Learn from the headers of an answer; limits that the account does not have are passed over."""
        for word in reading:
            limit = self._limits.get(word.kind)
            if limit is not None:
                limit.seen(word, self._unproduced, now)

    def refused(self, hint_s: float | None, now: float, limit: QuotaKind | None = None) -> None:
        """Learn from a 429, after `settle`: pause until its hint; the limit that refused is empty.

        `limit` is the one that the answer names. Without a name it is the one of a minute that stood lowest here
        when the last request was sent: of a day it would shut the account for hours, and a pause tells as much.
        """
        pause_s = self.pause(hint_s, now)
        empty = self._tightest if limit is None else self._named(limit, now)
        if empty is not None:
            empty.emptied(pause_s, self._unproduced, now, is_named=limit is not None)

    def pause(self, hint_s: float | None, now: float) -> float:
        """Send nothing until the hint of a refusal is over, of an overload too; return how long that is."""
        if hint_s is None and now >= self._paused_until:
            hint_s, self._pause_s = self._pause_s, min(2.0 * self._pause_s, MINUTE_S)
        pause_s = min(max(0.0, hint_s or 0.0), _LONGEST_HINT_S)
        self._paused_until = max(self._paused_until, now + pause_s)
        return pause_s

    def _named(self, kind: QuotaKind, now: float) -> _Limit | None:
        """Return the limit of this name; "tokens" alone may mean either kind of them, then the lower one."""
        limit = self._limits.get(kind)
        if limit is not None or kind is not QuotaKind.TPM:
            return limit
        either = [each for name, each in self._limits.items() if name in _EITHER_TOKENS]
        return min(either, key=lambda each: each.bucket.level(now) / each.bucket.burst, default=None)


def _kept_burst(limit: QuotaLimit) -> float:
    return max(1.0, limit.burst * (1.0 - MARGIN))
