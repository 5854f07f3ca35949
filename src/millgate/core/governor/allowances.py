"""May this tenant? Retry budget, quotas and streams of its own, asked before an engine is looked for.

Every question costs one comparison where nothing is configured. A request that is let in or queued has reserved its
quotas; what never ran gives them back, what ran is settled with what it really used. Clients that a bucket refused
stand in its line (`quota_lines`).

A crowd whose every refusal is followed at once by another attempt keeps an overload alive after its cause has gone. So retries
that no hint asked for are rationed:

    retries in 10 s <= 0.2 x admissions in 10 s + max(1, 10 s x 0.05 x drain rate)

The 20 % and the ten seconds are Finagle's and Linkerd's. Their reserve of 10 retries a second would be many times
the capacity of an engine that serves two requests a second, so here the reserve follows the drain rate.

Every retry is charged, by its label (`x-stainless-retry-count` > 0, in the process's first ten seconds, and while a
cluster's store is gone, not by that alone) or because it was recognised, but one that is back when its hint was due:
due returns come no faster than permits come free. Charged, they would exhaust the budget by arithmetic alone. Twenty
clients before one stream of 2 s are one admission and one due return every 2 s; 0.2 x 5 + 1 lets two of five pass.

Tenants share the budget. While it is not used up any tenant may spend (an unused share is lent). When it is, a tenant
may still spend up to its even share among the tenants that retry. So one that retries alone gets all and a loud one
takes nothing from a quiet one. While shares are being redistributed up to twice the budget passes, never more. Tenants
are known apart up to a bound, the others together (INV-5). Replicas of a cluster share one budget, by what all of them
admit: each spends its share.
"""

from collections import Counter
from collections.abc import Iterable
from math import inf, sqrt
from typing import Final, NamedTuple

from millgate.core.decisions import QuotaState
from millgate.core.governor.quota_lines import Behind, QuotaLines
from millgate.core.governor.tenant_streams import Held, OwnStreams, TenantStreams
from millgate.core.measure import UPPER_Z, WINDOW_S, Window
from millgate.core.quotas.ledger import Demand, Ledger, Who
from millgate.core.settings import LONGEST_HINT_S, MOST_TENANTS, Settings, TenantSettings
from millgate.core.snapshot import TenantSnapshot
from millgate.core.state.attempt import Attempt, Request
from millgate.core.state.lane import REMEMBERED_S
from millgate.core.tickets import ClientKind
from millgate.core.tickets.appointment import Appointment, age_key
from millgate.core.words import Reason

SHARE_OF_ADMITTED: Final = 0.2
RESERVE_SHARE_OF_DRAIN: Final = 0.05
# Above the budget shares may be spent up to this many budgets in all.
_MOST_BUDGETS: Final = 2.0
FORGET_AFTER_S: Final = REMEMBERED_S
"""A tenant keeps its own record for so long after its last attempt while others wait for one."""
OTHERS: Final = "others"
"""The one tenant of all that are not known apart."""


class _Tenant:
    """One tenant's retries in the window, when the last one was, and all its attempts and requests."""

    def __init__(self) -> None:
        self.spent = _window()
        self.spent_at: float | None = None
        self.attempts = self.requests = 0
        self.seen_at = 0.0


class RetryShare(NamedTuple):
    """This replica's share of a cluster's budget, and what the others together have `earned`; it `is_known` once they have told."""

    retries: int = 0
    earned: float = 0.0
    is_known: bool = False


class RetryBudget:
    """Says whether one more retry that was not agreed may pass; knows `tenants` tenants apart, the rest as one.

    `share` is None without a cluster.
    """

    def __init__(self, tenants: int = MOST_TENANTS) -> None:
        self._most_tenants = tenants
        self._known: dict[str, _Tenant] = {}
        self._admitted, self._spent, self._retrying = _window(), _window(), _window()
        self._refused = _window()
        self._last: _Tenant | None = None
        self.share: RetryShare | None = None

    def leased(self, share: RetryShare) -> None:
        """Spend this share of a cluster's budget from now on."""
        self.share = share

    def arrived(self, tenant: str, now: float, *, retry: bool) -> None:
        """Count an attempt, and a request unless it is a retry of one."""
        record = self._record(tenant, now)
        record.attempts += 1
        record.requests += not retry

    def admitted(self, now: float) -> None:
        """Count an admission: a fifth of a retry for all."""
        self._admitted.add(now, (1,))

    def budget(self, now: float, drain_per_s: float) -> float:
        """Return how many retries may pass here in ten seconds, of all tenants together; without a cluster at least 1."""
        whole = self.whole(now, drain_per_s)
        return whole if self.share is None else min(whole, self.share.retries)

    def whole(self, now: float, drain_per_s: float) -> float:
        """Return how many may pass at all replicas together; of their reserves the least counts, for the store divides the least whole."""
        reserve = max(1.0, WINDOW_S * RESERVE_SHARE_OF_DRAIN * drain_per_s)
        return self.earned(now) + (0.0 if self.share is None else self.share.earned) + reserve

    def earned(self, now: float) -> float:
        """Return how many retries the last admissions here have earned."""
        return SHARE_OF_ADMITTED * _count(self._admitted, now)

    def wanted(self, now: float) -> int:
        """Return how many retries it could spend here: those of the window, and those that it refused in the last two seconds."""
        return self.spent(now) + self._refused.read(now, 2)[0]

    def refused(self, now: float) -> None:
        """Count a retry that it keeps out."""
        self._refused.add(now, (1,))

    def spent(self, now: float) -> int:
        """Return how many retries were charged in the last ten seconds."""
        return _count(self._spent, now)

    def allows(self, tenant: str, now: float, drain_per_s: float) -> bool:
        """Return whether this tenant may spend one more retry; changes nothing."""
        budget, next_spent = self.budget(now, drain_per_s), self.spent(now) + 1
        if next_spent <= budget:
            return True
        record = self._known.get(tenant) or self._known.get(OTHERS)
        own = _count(record.spent, now) if record is not None else 0
        sharing = _count(self._retrying, now) + (own == 0)
        return (own + 1) * sharing <= budget and next_spent <= _MOST_BUDGETS * budget

    def spend(self, tenant: str, now: float) -> None:
        """Charge one retry."""
        record = self._record(tenant, now)
        for window in (self._spent, record.spent, self._retrying):
            window.add(now, (1,))
        if record.spent_at is not None:
            self._retrying.add(record.spent_at, (-1,))
        record.spent_at = now

    def amplification(self) -> tuple[TenantSnapshot, ...]:
        """Return attempts and requests of every tenant known apart, and of the others together."""
        return tuple(TenantSnapshot(name, each.attempts, each.requests) for name, each in self._known.items())

    def _record(self, tenant: str, now: float) -> _Tenant:
        """Return the tenant's record, that of the others if there are too many; the last seen stands last."""
        known = self._known
        record = known.get(tenant)
        if record is None:
            tenant = self._name_for(tenant, now)
            record = known.get(tenant) or _Tenant()
        if record is not self._last:
            known.pop(tenant, None)
            known[tenant] = self._last = record
        record.seen_at = now
        return record

    def _name_for(self, newcomer: str, now: float) -> str:
        """Return the newcomer's name if it may have a record, for which one long at rest may have to go."""
        if len(self._known) < self._most_tenants:
            return newcomer
        idle = next(iter(self._known))
        if now - self._known[idle].seen_at <= FORGET_AFTER_S:
            return OTHERS
        del self._known[idle]
        return newcomer


def _window() -> Window:
    # Twitter's budgets cut their ten seconds into ten slots as well: a second of the window is forgotten at a time.
    return Window(1.0, WINDOW_S, counters=1)


def _count(window: Window, now: float) -> int:
    return window.read(now, WINDOW_S)[0]


class Shortfall(NamedTuple):
    """Why a tenant may not have this now: the reason with its numbers, and when it may (infinite: never).

    `behind` is the line in which it stands, where other clients were told to come before it. One that is due is held
    for `hold_s`. A stream of its tenant ends every `each_s`.
    """

    reason: Reason
    value: float
    bound: float
    wait_s: float
    behind: Behind | None = None
    hold_s: float = 0.0
    each_s: float = 0.0

    @property
    def ahead_s(self) -> float:
        """When it may, behind all that were told before it."""
        return self.wait_s if self.behind is None else max(self.wait_s, self.behind.wait_s)

    @property
    def surely_s(self) -> float:
        """When it may, nine times in ten: its tenant's streams end as by chance (Poisson), or several at once."""
        return self.ahead_s + UPPER_Z * sqrt(self.ahead_s * self.each_s)


class Allowances:
    """What tenants may have; counts what they have.

    A tenant's own streams count what it holds and what runs, so that nothing of it waits in front of others for a
    stream of its own.
    """

    def __init__(self, settings: Settings, now: float) -> None:
        self.ledger = Ledger(settings.quotas)
        self.lines = QuotaLines()
        self.budget = RetryBudget() if settings.retry_budget else None
        self._knows_all_at = now + WINDOW_S
        self._tenants: dict[str, TenantSettings] = {each.name: each for each in settings.tenants}
        self.streams = TenantStreams(settings.tenants)
        # Attempts that run although a protecting gate would have refused them.
        self._observed: set[int] = set()

    def reconfigure(self, settings: Settings, attempts: Iterable[Attempt], now: float) -> None:
        """Take new rules; what has been spent stays spent, and what these attempts have inside counts against caps that are new."""
        self.ledger.reconfigure(settings.quotas, now)
        self._tenants = {each.name: each for each in settings.tenants}
        inside = Counter[str]()
        for each in attempts:
            if each.request.attempt not in self._observed:
                inside[each.request.tenant] += each.request.arrival.answers
        self.streams.reconfigure(settings.tenants, inside)
        self.budget = (self.budget or RetryBudget()) if settings.retry_budget else None

    def leased(self, until: float, now: float) -> None:
        """Take a label alone for no retry while the store is gone, and ten seconds longer: replicas do not tell each other of their clients."""
        self._knows_all_at = inf if until == inf else min(self._knows_all_at, now + WINDOW_S)

    def weight(self, tenant: str) -> float:
        """Return the tenant's share among tenants."""
        known = self._tenants.get(tenant)
        return 1.0 if known is None else known.weight

    def shortfall(self, request: Request, now: float) -> Shortfall | None:
        """Return what this request's tenant lacks for it, None where it may go on; changes nothing."""
        short = None if self.ledger.is_empty else self._short_of_quota(request, now)
        if short is None:
            short = self.own_streams(request, now)
        if (budget := self.budget) is None or not self._is_charged(request, now):
            return short
        pool = request.route.pool
        if short is None and not pool.queued_count and request.route.free() > 0:
            return None  # it finds a free stream that none waits for: its coming adds to no overload
        drain_per_s = pool.capacity_forecast.per_s()
        if budget.allows(request.tenant, now, drain_per_s):
            return short
        spent, most = budget.spent(now), budget.budget(now, drain_per_s)
        return Shortfall(Reason.RETRY_BUDGET, spent, most, float("inf"))

    def _is_charged(self, request: Request, now: float) -> bool:
        """Return whether the budget pays for it: not while a retry that is not known may come from the process before, or from another replica."""
        return request.is_charged and (request.recognised or now >= self._knows_all_at)

    def _short_of_quota(self, request: Request, now: float) -> Shortfall | None:
        who, sizes = _who(request), request.sizes()
        short = self.ledger.shortage(who, sizes, now)
        behind = None
        if self.lines.bookings or self.lines.is_shared:
            demands = self.ledger.demands(who, sizes)
            number = self._number_of(request)
            behind = self.lines.behind(number, demands, now, self._told(request, now))
        if short is not None:
            reason = Reason.TOO_LARGE if short.never_fits else Reason.QUOTA
            return Shortfall(reason, short.needed, short.left, short.wait_s, behind)
        return None if behind is None else Shortfall(Reason.QUOTA, behind.needed, behind.left, 0.0, behind)

    def own_streams(self, request: Request, now: float, turn: int | None = None) -> Shortfall | None:
        """Return what this request lacks of its tenant's streams, None where it may go on; one that was held has this `turn`. Changes nothing."""
        own = self.streams.of(request.tenant) if self._tenants else None
        if own is None or own.cap is None:
            return None
        demand, behind = _of_streams(own, request), None
        wait_s = min(LONGEST_HINT_S, own.wait_s(demand.needed, now))
        if self.lines.bookings or self.lines.is_shared:
            number = self._number_of(request)
            behind = self.lines.behind(number, (demand,), now, self._told(request, now), turn)
        if behind is None and wait_s <= 0.0:
            return None
        hold_s, each_s = self._hold_s(own, request, now), 1.0 / own.rate_per_s
        return Shortfall(
            Reason.TENANT_LIMIT, own.running + own.elsewhere, own.cap, wait_s, behind, hold_s, each_s
        )

    def _hold_s(self, own: OwnStreams, request: Request, now: float) -> float:
        """Return for how long it is held for a stream: until its promise counts as kept no more, if it is back when told; else 0."""
        booking = self.lines.bookings.get(self._number_of(request))
        told = self._told(request, now) if booking is None else booking.appointment
        if told is None or (booking and own not in booking.lines) or not told.is_honoured(now):
            return 0.0
        hold_s, most_s = told.hold_s, request.lane.settings.hold_due_s
        return hold_s if most_s is None else min(hold_s, most_s)

    def arrived(self, request: Request, refused: Reason | None, now: float) -> None:
        """Count an attempt, and charge its retry unless that is what refused it."""
        if (budget := self.budget) is None:
            return
        budget.arrived(request.tenant, now, retry=request.is_retry)
        if refused is Reason.RETRY_BUDGET:
            budget.refused(now)
        elif self._is_charged(request, now):
            budget.spend(request.tenant, now)

    def taken_in(
        self, attempt: Attempt, would: Reason | None, turn: int | None, now: float, *, is_queued: bool
    ) -> None:
        """Reserve for an attempt that is let in or queued, of this turn in a line; not for one that a protecting gate would have refused.

        Observed, it would leave debts and take streams that no protecting gate has.
        """
        request = attempt.request
        if would is not None:
            self._observed.add(request.attempt)
            return
        if not self.ledger.is_empty:
            attempt.reserves(self.ledger.take(_who(request), request.sizes(), now))
        if self._tenants:
            self._begins(request, turn, now, is_queued=is_queued)

    def _begins(self, request: Request, turn: int | None, now: float, *, is_queued: bool) -> None:
        own, streams = self.streams.of(request.tenant), request.arrival.answers
        if own is not None:
            is_held = is_queued and own.level(now) < own.needs(streams)
            own.begins(streams, request.service_s)
            if is_held:
                self.streams.holds(request.attempt, Held(own, streams, turn, now))

    def told(
        self,
        request: Request,
        reason: Reason,
        kind: ClientKind,
        appointment: Appointment,
        turn: int | None,
        now: float,
    ) -> None:
        """Put a client that its quota refuses, or its tenant's cap, into the lines of what was short for it.

        One that was held has kept its `turn`. A client whose time there is later than its hint has no appointment: it
        was told a time at random.
        """
        demands = self._demands(request, reason)
        number, ticket = self._number_of(request), self._told(request, now)
        short = [
            each
            for each in demands
            if each.bucket.wait_s(each.needed, now) > 0.0
            or self.lines.behind(number, [each], now, ticket, turn)
        ]
        for each in short:
            each.bucket.wants(each.needed, appointment.lapses_at, now)
        behind = self.lines.behind(number, short, now, ticket, turn)
        turn = turn or self._is_back(request, number, now)
        if behind is None or behind.wait_s <= appointment.hint_s:
            self.lines.book(request.arrival_number, request.tenant, kind, appointment, short, turn)

    def _demands(self, request: Request, reason: Reason) -> list[Demand]:
        """Return what it needs of each level that may be what this reason speaks of."""
        if reason is Reason.QUOTA:
            return self.ledger.demands(_who(request), request.sizes())
        own = self.streams.of(request.tenant)
        return [] if own is None else [_of_streams(own, request)]

    def returned(self, request: Request, now: float) -> int | None:
        """End the appointment that this attempt keeps, whatever is decided about it; return its turn."""
        if self.lines.bookings or self.lines.is_shared:
            return self._is_back(request, self._number_of(request), now)
        return None

    def _is_back(self, request: Request, number: int, now: float) -> int | None:
        """End its appointment, here or at another replica; return its turn there."""
        turn, told = self.lines.returned(number), self._told(request, now)
        if turn is None and told is not None:
            self.lines.attendance.visited(request.tenant, ClientKind.FIRST)
            turn = age_key(told.opens_at, request.arrival_number)
        return turn

    def _told(self, request: Request, now: float) -> Appointment | None:
        """Return what its ticket says that it was told, perhaps by another replica; None where that has lapsed."""
        told = request.age.appointment
        if told is None or not (self.lines.is_shared and request.recognised) or now > told.lapses_at:
            return None
        return told

    def _number_of(self, request: Request) -> int:
        """Return the number under which it has an appointment: that of its record, or else of what its ticket says."""
        number, told = request.arrival_number, request.age.appointment
        if request.recognised and told is not None and number not in self.lines.bookings:
            known = self.lines.number_of(request.tenant, told)
            return number if known is None else known
        return number

    def report(self, request: Request, now: float) -> tuple[QuotaState, ...]:
        """Return what is left of the quotas that this attempt falls under."""
        return () if self.ledger.is_empty else self.ledger.report(_who(request), now)

    def admitted(self, now: float) -> None:
        """Count an admission: it earns a fifth of a retry."""
        if self.budget is not None:
            self.budget.admitted(now)

    def over(self, request: Request) -> None:
        """A request that was taken in is neither queued nor admitted any more."""
        if self._observed and request.attempt in self._observed:
            self._observed.discard(request.attempt)
        elif self._tenants:
            self.streams.ends(request.tenant, request.attempt, request.arrival.answers)


def _of_streams(own: OwnStreams, request: Request) -> Demand:
    """Return what a request needs of its tenant's streams."""
    return Demand(own, float(own.needs(request.arrival.answers)), request.tenant)


def _who(request: Request) -> Who:
    return Who(request.tenant, request.arrival.model, request.lane.settings.name)
