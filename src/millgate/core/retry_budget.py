"""How many retries are too many: a share of what was admitted, and a little more, over the last ten seconds.

A crowd whose every refusal is followed at once by another attempt is several times its own size, and keeps an
overload alive after its cause has gone. So retries that no hint asked for are rationed:

    retries in 10 s <= 0.2 x admissions in 10 s + max(1, 10 s x 0.05 x drain rate)

The 20 % and the ten seconds are Finagle's and Linkerd's; their reserve of 10 retries a second would be many times
the capacity of an engine that serves two requests a second, so here the reserve follows the drain rate.

What is charged is what was not agreed: every retry, by its label (`x-stainless-retry-count` > 0) or because it was
recognised, but one that is back when its hint was due. Such a client keeps an appointment, and appointments cannot
amplify: each is one place in the line, places are given out at the drain rate, so due returns come no faster than
permits come free, plus those whose promise was missed. Charged, they would exhaust the budget by arithmetic alone:
twenty clients before one stream of 2 s are one admission and one due return every 2 s; 0.2 x 5 + 1 lets two of five
pass in ten seconds, and the other three, which returned as told, would be refused for good.

Tenants share the budget. While it is not used up any tenant may spend (an unused share is lent); when it is, a tenant
may still spend up to its even share among the tenants that retry, so that one that retries alone gets all and a loud one
takes nothing from a quiet one. While shares are being redistributed up to twice the budget passes, never more.

Time is cut into tenths of the window, and tenants are known apart up to a bound, the others together (INV-5). Every
call is O(1).
"""

from typing import Final, NamedTuple

from millgate.core.measure.ewma import Window
from millgate.core.settings import MOST_TENANTS

WINDOW_S: Final = 10.0
SHARE_OF_ADMITTED: Final = 0.2
RESERVE_SHARE_OF_DRAIN: Final = 0.05
LEAST_RESERVE_PER_S: Final = 0.1
# Twitter's budgets cut their ten seconds into ten slots as well: a second of the window is forgotten at a time.
_SLOTS: Final = int(WINDOW_S)
# Above the budget shares may be spent up to this many budgets in all.
_MOST_BUDGETS: Final = 2.0
FORGET_AFTER_S: Final = 600.0
"""A tenant keeps its own record for so long after its last attempt while others wait for one."""
OTHERS: Final = "others"
"""The one tenant of all that are not known apart."""


class Amplification(NamedTuple):
    """One tenant's attempts and requests since it became known; their ratio is its amplification."""

    tenant: str
    attempts: int
    requests: int


class _Tenant:
    """One tenant's retries in the window, when the last one was, and all its attempts and requests."""

    __slots__ = ("attempts", "requests", "seen_at", "spent", "spent_at")

    def __init__(self) -> None:
        self.spent = _window()
        self.spent_at: float | None = None
        self.attempts = self.requests = 0
        self.seen_at = 0.0


class RetryBudget:
    """Says whether one more retry that was not agreed may pass; knows `tenants` tenants apart, the rest as one."""

    __slots__ = ("_admitted", "_known", "_most_tenants", "_retrying", "_spent")

    def __init__(self, tenants: int = MOST_TENANTS) -> None:
        self._most_tenants = tenants
        self._known: dict[str, _Tenant] = {}
        self._admitted, self._spent, self._retrying = _window(), _window(), _window()

    def arrived(self, tenant: str, now: float, *, retry: bool) -> None:
        """Count an attempt, and a request unless it is a retry of one."""
        record = self._record(tenant, now)
        record.attempts += 1
        record.requests += not retry

    def admitted(self, now: float) -> None:
        """Count an admission: a fifth of a retry for all."""
        self._admitted.add(now, (1,))

    def budget(self, now: float, drain_per_s: float) -> float:
        """Return how many retries may pass in ten seconds, of all tenants together; at least 1."""
        reserve_per_s = max(LEAST_RESERVE_PER_S, RESERVE_SHARE_OF_DRAIN * drain_per_s)
        return SHARE_OF_ADMITTED * _count(self._admitted, now) + WINDOW_S * reserve_per_s

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

    def amplification(self) -> tuple[Amplification, ...]:
        """Return attempts and requests of every tenant known apart, and of the others together."""
        return tuple(Amplification(name, each.attempts, each.requests) for name, each in self._known.items())

    def _record(self, tenant: str, now: float) -> _Tenant:
        """Return the tenant's record, that of the others if there are too many; the last seen stands last."""
        known = self._known
        record = known.pop(tenant, None)
        if record is None:
            tenant = self._name_for(tenant, now)
            record = known.pop(tenant, None) or _Tenant()
        known[tenant] = record
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
    return Window(1.0, _SLOTS, counters=1)


def _count(window: Window, now: float) -> int:
    return window.read(now, _SLOTS)[0]
