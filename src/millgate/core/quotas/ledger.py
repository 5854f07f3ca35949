"""The ledger: every bucket of every rule, and one request taken from all of them or from none.

`shortage` reads, `take` writes. A request refused by one rule has taken nothing from the others, so nothing has to
be given back. Rules that name a tenant are found by it; the others are few and looked through. Without rules every
call returns at once.

Tenants and models are client-chosen, so the buckets that are made for them are bounded (INV-5): `MAX_BUCKETS` over
all rules, 100,000 of about 400 bytes. Beyond it the least recently used idle and full one goes, which changes nothing:
made anew it would be full too. Only where none of the oldest is idle the very oldest goes: its owner has its burst again, as any
new name would.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from millgate.core.decisions import QuotaState
from millgate.core.events import QuotaShare, QuotaUse
from millgate.core.measure import LOOKED_AT
from millgate.core.quotas.bucket import (
    Bucket,
    Charge,
    Reservation,
    Sizes,
    Supply,
    needed_amount,
    reserved_amount,
)
from millgate.core.settings import DAY_S, QuotaLimit, QuotaRule
from millgate.core.snapshot import QuotaLevel

MAX_BUCKETS = 100_000
# Buckets with owners that a look at the levels visits: who is short of quota has used it lately.
_MOST_LOOKED_AT = 256
# Buckets with owners that outlive a restart: to write down so many takes the loop 20 ms, to read them 30 ms.
_MOST_KEPT = 10_000

BucketKey = tuple[str, str | None, str | None, str | None]


class Who(NamedTuple):
    """Whose quotas a request falls under."""

    tenant: str
    model: str
    lane: str


class Demand(NamedTuple):
    """What a request needs of one bucket; `owner` is the tenant that has the bucket for itself, None where several share it."""

    bucket: Supply
    needed: float
    owner: str | None = None


class Shortage(NamedTuple):
    """The rule that keeps a request out longest, and its numbers.

    After `wait_s` seconds the same request passes, if no other has taken from its buckets; infinite and
    `never_fits` where the full bucket is too small, which is then what is `left`.
    """

    rule: str
    wait_s: float
    needed: float
    left: float
    never_fits: bool


class Ledger:
    """The quotas of all tenants, models and lanes; rules have names of their own, or it `is_empty`."""

    def __init__(self, rules: Sequence[QuotaRule] = (), max_buckets: int = MAX_BUCKETS) -> None:
        self._max_buckets = max_buckets
        self._shared: dict[str, Bucket] = {}
        self._own: OrderedDict[BucketKey, Bucket] = OrderedDict()
        self._part, self._replicas = 1.0, 1
        self._file(rules)

    @property
    def buckets(self) -> int:
        """How many buckets are kept: one for each shared rule, and at most `max_buckets` of the others."""
        return len(self._shared) + len(self._own)

    def shortage(self, who: Who, sizes: Sizes, now: float) -> Shortage | None:
        """Return what keeps this request out now, or None when it may go; changes nothing."""
        worst: Shortage | None = None
        for rule in self._held_to(who):
            needed = needed_amount(rule.limit, sizes)
            bucket = self._find(rule, who)
            if bucket is None:
                short = _unused(rule, needed)
            elif (wait_s := bucket.wait_s(needed, now)) > 0.0:
                never = bucket.too_large(needed)
                left = bucket.burst if never else bucket.level(now)
                short = Shortage(rule.name, wait_s * _part_of_growth(bucket, rule), needed, left, never)
            else:
                continue
            if short is not None and (worst is None or short.wait_s > worst.wait_s):
                worst = short
        return worst

    def demands(self, who: Who, sizes: Sizes) -> list[Demand]:
        """Return what this request needs of each bucket that has been taken from; the others are full."""
        return [
            Demand(bucket, needed_amount(rule.limit, sizes), rule.tenant or _key(rule, who)[1])
            for rule in self._held_to(who)
            if (bucket := self._find(rule, who)) is not None
        ]

    def take(self, who: Who, sizes: Sizes, now: float) -> Reservation | None:
        """Take from every bucket; the caller has asked `shortage` at this very instant. None where no rule holds."""
        charges = [
            Charge(rule.limit, self._bucket(rule, who, now), reserved_amount(rule.limit, sizes), now)
            for rule in self._held_to(who)
        ]
        return Reservation(tuple(charges), sizes) if charges else None

    def report(self, who: Who, now: float) -> tuple[QuotaState, ...]:
        """Return the state of every bucket that this request falls under; changes nothing."""
        return tuple(self._states(who, now))

    def levels(self, now: float) -> list[QuotaLevel]:
        """Return what is left by each rule, in their order; of a rule with owners, of those served last. Changes nothing."""
        left = {rule.name: 1.0 for rule in self._rules}
        owners = dict.fromkeys(left, 0)
        for name, bucket in self._shared.items():
            left[name] = bucket.level(now) / bucket.burst
        for key, bucket in islice(reversed(self._own.items()), _MOST_LOOKED_AT):
            left[key[0]] = min(left[key[0]], bucket.level(now) / bucket.burst)
            owners[key[0]] += 1
        return [QuotaLevel(name, share, owners[name]) for name, share in left.items()]

    def uses(self, now: float) -> tuple[QuotaUse, ...]:
        """Return what is used of each bucket; of those with owners, of those that are not full, and of the `_MOST_KEPT` used last.

        Changes nothing.
        """
        shared = [
            QuotaUse(name, None, None, None, bucket.used(now), bucket.burst / bucket.whole_burst)
            for name, bucket in self._shared.items()
        ]
        own = [
            QuotaUse(*key, used, bucket.burst / bucket.whole_burst)
            for key, bucket in islice(reversed(self._own.items()), _MOST_KEPT)
            if (used := bucket.used(now)) > 0.0
        ]
        return (*shared, *reversed(own))

    def keep(self, uses: Sequence[QuotaUse], ago_s: float, now: float) -> None:
        """Leave no more than what these uses left `ago_s` seconds ago, and what was added since; those of no rule of now are passed over."""
        rules = {rule.name: rule for rule in self._rules}
        for use in uses:
            rule, who = rules.get(use.quota), Who(use.tenant or "", use.model or "", use.lane or "")
            if rule is None or _key(rule, who) != use[:4]:
                continue
            used = use.used / use.part - ago_s * rule.limit.rate_per_s
            if used > 0.0:
                burst = rule.limit.burst
                self._bucket(rule, who, now).was_used(used / burst, burst * self._part, now)

    def reconfigure(self, rules: Sequence[QuotaRule], now: float) -> None:
        """Take new rules; what has been spent under a rule that keeps its name and scope stays spent."""
        self._file(rules)
        self._part = 1.0  # what is leased is leased anew
        shared = {rule.name: rule.limit for rule in rules if not rule.each}
        each = {rule.name: rule.limit for rule in rules if rule.each}
        for name, bucket in list(self._shared.items()):
            if not _changed(bucket, shared.get(name), now):
                del self._shared[name]
        for key, bucket in list(self._own.items()):
            if not _changed(bucket, each.get(key[0]), now):
                del self._own[key]

    def leased(self, shares: Mapping[str, QuotaShare], replicas: int, now: float) -> None:
        """Count against these shares from now on, by name; a rule without one is shut.

        The bucket of a replica that joins others begins empty, for what they have had is not known; that of a day
        begins with an even part, for it would hardly fill. Buckets with owners have an even part each. Where replicas
        come or go, the same share of each day is left as before: one that takes another's place would cost every day a
        part, as both are there for a moment.
        """
        scale, self._replicas = self._replicas / max(1, replicas), max(1, replicas)
        for rule in self._rules:
            if not rule.each:
                self._lease(rule, shares.get(rule.name), scale, now)
        part = 1.0 / self._replicas
        if part != self._part:
            self._part = part
            limits = {rule.name: rule.limit for rule in self._rules}
            for key, bucket in self._own.items():
                limit = limits[key[0]]
                times = scale if limit.period_s == DAY_S else 1.0
                bucket.leased(limit.rate_per_s * part, limit.burst * part, now, scale=times)

    def shared(self) -> list[tuple[QuotaRule, Bucket]]:
        """Return each rule with one bucket for all, and that bucket; none of a rule that was never leased or taken from."""
        return [(rule, self._shared[rule.name]) for rule in self._rules if rule.name in self._shared]

    def _lease(self, rule: QuotaRule, share: QuotaShare | None, scale: float, now: float) -> None:
        bucket, is_daily = self._shared.get(rule.name), rule.limit.period_s == DAY_S
        if bucket is None:
            bucket = self._shared[rule.name] = Bucket(rule.limit.rate_per_s, rule.limit.burst, now)
            bucket.shut(now, keeps=is_daily)
        if share is not None and share.rate_per_s > 0.0 and share.burst > 0.0:
            is_full = bucket.is_shut and not bucket.charged and self._replicas == 1 and not is_daily
            even, times = rule.limit.burst / self._replicas, scale if is_daily else 1.0
            bucket.leased(share.rate_per_s, share.burst, now, is_full=is_full, most_kept=even, scale=times)
        elif not bucket.is_shut:
            bucket.shut(now, keeps=is_daily)

    def _file(self, rules: Sequence[QuotaRule]) -> None:
        """Index the rules: those for all, and for each named tenant these and its own, in their order."""
        self._rules, self.is_empty = tuple(rules), not rules
        self._general = tuple(rule for rule in rules if rule.tenant is None)
        own: dict[str, list[QuotaRule]] = {}
        for rule in rules:
            if rule.tenant is not None:
                own.setdefault(rule.tenant, []).append(rule)
        self._by_tenant = {tenant: (*self._general, *theirs) for tenant, theirs in own.items()}

    def _held_to(self, who: Who) -> list[QuotaRule]:
        rules = self._by_tenant.get(who.tenant, self._general)
        return [
            rule
            for rule in rules
            if (rule.model is None or rule.model == who.model)
            and (rule.lane is None or rule.lane == who.lane)
        ]

    def _states(self, who: Who, now: float) -> Iterator[QuotaState]:
        for rule in self._held_to(who):
            limit = rule.limit
            bucket = self._find(rule, who)
            left, full_in_s = (
                (limit.burst, 0.0) if bucket is None else (bucket.level(now), bucket.full_in_s(now))
            )
            yield QuotaState(rule.name, limit.kind, limit.amount, max(0.0, left), full_in_s)

    def _find(self, rule: QuotaRule, who: Who) -> Bucket | None:
        return self._own.get(_key(rule, who)) if rule.each else self._shared.get(rule.name)

    def _bucket(self, rule: QuotaRule, who: Who, now: float) -> Bucket:
        """Return the bucket of this rule for this request, made full if it is the first."""
        limit, bucket = rule.limit, self._find(rule, who)
        if bucket is not None:
            if rule.each:
                self._own.move_to_end(_key(rule, who))
            return bucket
        bucket = Bucket(limit.rate_per_s, limit.burst, now)
        if not rule.each:
            self._shared[rule.name] = bucket
            return bucket
        if self._part < 1.0:
            bucket.leased(limit.rate_per_s * self._part, limit.burst * self._part, now)
        if len(self._own) >= self._max_buckets:
            self._forget_one(now)
        self._own[_key(rule, who)] = bucket
        return bucket

    def _forget_one(self, now: float) -> None:
        oldest = islice(self._own.items(), LOOKED_AT + 1)
        idle = (key for key, bucket in oldest if bucket.is_idle(now))
        del self._own[next(idle, next(iter(self._own)))]


def _key(rule: QuotaRule, who: Who) -> BucketKey:
    each = rule.each
    return (
        rule.name,
        who.tenant if "tenant" in each else None,
        who.model if "model" in each else None,
        who.lane if "lane" in each else None,
    )


def _changed(bucket: Bucket, limit: QuotaLimit | None, now: float) -> bool:
    """Give the bucket its new limit; False when there is none for it any more."""
    if limit is not None and (bucket.rate_per_s, bucket.burst) != (limit.rate_per_s, limit.burst):
        bucket.replaced(limit, now)
    return limit is not None


def _part_of_growth(bucket: Bucket, rule: QuotaRule) -> float:
    """Return how much of a wait is left: a replica that is short soon has an even share of the rate, as it has of the burst."""
    return min(1.0, bucket.rate_per_s / (rule.limit.rate_per_s * bucket.burst / bucket.whole_burst))


def _unused(rule: QuotaRule, needed: float) -> Shortage | None:
    """Judge against a bucket that nothing was taken from yet: it is full."""
    burst = rule.limit.burst
    return Shortage(rule.name, float("inf"), needed, burst, never_fits=True) if needed > burst else None
