"""May this tenant? Retry budget, quotas and streams of its own, asked before an engine is looked for.

Every question costs one comparison where nothing is configured. A request that is let in or queued has reserved its
quotas; what never ran gives them back, what ran is settled with what it really used.
"""

from collections import Counter
from typing import NamedTuple

from millgate.core.decisions import QuotaState
from millgate.core.governor.quota_lines import Behind, QuotaLines
from millgate.core.quotas.ledger import Demand, Ledger, Who
from millgate.core.retry_budget import RetryBudget, is_charged
from millgate.core.settings import Settings, TenantSettings
from millgate.core.state.attempt import Attempt, is_retry
from millgate.core.tickets import Appointment, ClientKind
from millgate.core.words import Reason


class Shortfall(NamedTuple):
    """Why a tenant may not have this now: the reason with its numbers, and when it may (infinite: never).

    `behind` is the line of a quota in which it stands, where other clients were told to come before it.
    """

    reason: Reason
    value: float
    bound: float
    wait_s: float
    behind: Behind | None = None


class Allowances:
    """What tenants may have; counts what they have.

    A tenant's own streams count what it holds and what runs, so that nothing of it waits in front of others for a
    stream of its own.
    """

    __slots__ = ("_inside", "_observed", "_tenants", "budget", "ledger", "lines")

    def __init__(self, settings: Settings) -> None:
        self.ledger = Ledger(settings.quotas)
        self.lines = QuotaLines()
        self.budget = RetryBudget() if settings.retry_budget else None
        self._tenants: dict[str, TenantSettings] = {each.name: each for each in settings.tenants}
        self._inside: Counter[str] = Counter()
        # Attempts that run although a protecting gate would have refused them.
        self._observed: set[int] = set()

    def reconfigure(self, settings: Settings, now: float) -> None:
        """Take new rules; what has been spent stays spent."""
        self.ledger.reconfigure(settings.quotas, now)
        self._tenants = {each.name: each for each in settings.tenants}
        if not settings.retry_budget:
            self.budget = None
        elif self.budget is None:
            self.budget = RetryBudget()

    def weight(self, tenant: str) -> float:
        """Return the tenant's share among tenants."""
        known = self._tenants.get(tenant)
        return 1.0 if known is None else known.weight

    def shortfall(self, draft: Attempt, agreed: bool, now: float) -> Shortfall | None:
        """Return what this attempt's tenant lacks for it, None where it may go on; changes nothing.

        `agreed` says that it is back when it was told to come.
        """
        if (budget := self.budget) is not None and self._is_charged(draft, agreed=agreed):
            drain_per_s = draft.route.pool.capacity_forecast.per_s()
            if not budget.allows(draft.tenant, now, drain_per_s):
                spent, most = budget.spent(now), budget.budget(now, drain_per_s)
                return Shortfall(Reason.RETRY_BUDGET, spent, most, float("inf"))
        if not self.ledger.is_empty:
            short = self._short_of_quota(draft, now)
            if short is not None:
                return short
        return self._own_streams(draft)

    def _short_of_quota(self, draft: Attempt, now: float) -> Shortfall | None:
        who, sizes = _who(draft), draft.sizes()
        short = self.ledger.shortage(who, sizes, now)
        behind = None
        if not self.lines.is_empty:
            demands = self.ledger.demands(who, sizes)
            behind = self.lines.behind(self._number_of(draft, demands), demands, now)
        if short is not None:
            reason = Reason.TOO_LARGE if short.never_fits else Reason.QUOTA
            return Shortfall(reason, short.needed, short.left, short.wait_s, behind)
        return None if behind is None else Shortfall(Reason.QUOTA, behind.needed, behind.left, 0.0, behind)

    def _own_streams(self, draft: Attempt) -> Shortfall | None:
        known = self._tenants.get(draft.tenant)
        if known is None or known.max_inflight is None:
            return None
        inside, streams = self._inside[draft.tenant], draft.arrival.answers
        # A tenant without a stream may have any: a request of more than all of its tenant's streams runs alone.
        if not inside or inside + streams <= known.max_inflight:
            return None
        engine = draft.route.up[0]
        wait_s = engine.expected_service_s() / known.max_inflight
        return Shortfall(Reason.TENANT_LIMIT, inside, known.max_inflight, wait_s)

    def _is_charged(self, draft: Attempt, *, agreed: bool) -> bool:
        return is_charged(draft.arrival.retry_count, recognised=draft.recognised, agreed=agreed)

    def arrived(self, draft: Attempt, *, agreed: bool, refused: Reason | None, now: float) -> None:
        """Count an attempt, and charge its retry unless that is what refused it."""
        if (budget := self.budget) is None:
            return
        budget.arrived(draft.tenant, now, retry=is_retry(draft))
        if refused is not Reason.RETRY_BUDGET and self._is_charged(draft, agreed=agreed):
            budget.spend(draft.tenant, now)

    def taken_in(self, draft: Attempt, would: Reason | None, now: float) -> None:
        """Reserve for an attempt that is let in or queued; not for one that a protecting gate would have refused.

        Observed, it would leave debts and take streams that no protecting gate has.
        """
        if would is not None:
            self._observed.add(draft.attempt)
            return
        if not self.ledger.is_empty:
            draft.reserves(self.ledger.take(_who(draft), draft.sizes(), now))
        if draft.tenant in self._tenants:
            self._inside[draft.tenant] += draft.arrival.answers

    def told(self, draft: Attempt, kind: ClientKind, appointment: Appointment, now: float) -> None:
        """Put a client that its quota refuses into the lines of the buckets that were short for it.

        A client whose time there is later than its hint has no appointment: it was told a time at random.
        """
        demands = self.ledger.demands(_who(draft), draft.sizes())
        number = self._number_of(draft, demands)
        short = [
            each
            for each in demands
            if each.bucket.wait_s(each.needed, now) > 0.0 or self.lines.behind(number, [each], now)
        ]
        behind = self.lines.behind(number, short, now)
        turn = self.lines.returned(number)
        if behind is None or behind.wait_s <= appointment.hint_s:
            self.lines.book(draft.arrival_number, draft.tenant, kind, appointment, short, turn)

    def returned(self, draft: Attempt) -> None:
        """End the appointment that this attempt keeps, whatever is decided about it."""
        if not self.lines.is_empty:
            self.lines.returned(self._number_of(draft, self.ledger.demands(_who(draft), draft.sizes())))

    def _number_of(self, draft: Attempt, demands: list[Demand]) -> int:
        """Return the number under which it has an appointment: that of its record, or else of what its ticket says."""
        number, told = draft.arrival_number, draft.appointment
        if draft.recognised and told is not None and not self.lines.has(number):
            known = self.lines.number_of(draft.tenant, told, demands)
            return number if known is None else known
        return number

    def report(self, draft: Attempt, now: float) -> tuple[QuotaState, ...]:
        """Return what is left of the quotas that this attempt falls under."""
        return () if self.ledger.is_empty else self.ledger.report(_who(draft), now)

    def admitted(self, now: float) -> None:
        """Count an admission: it earns a fifth of a retry."""
        if self.budget is not None:
            self.budget.admitted(now)

    def over(self, attempt: Attempt) -> None:
        """An attempt that was taken in is neither queued nor admitted any more."""
        if self._observed and attempt.attempt in self._observed:
            self._observed.discard(attempt.attempt)
        elif attempt.tenant in self._tenants:
            self._inside[attempt.tenant] -= attempt.arrival.answers
            if not self._inside[attempt.tenant]:
                del self._inside[attempt.tenant]


def _who(draft: Attempt) -> Who:
    return Who(draft.tenant, draft.arrival.model, draft.lane.settings.name)
