"""Which part of the clients that were told to return do, learned by kind and tenant, and of all replicas of a cluster."""

from collections.abc import Mapping, Sequence
from typing import Final

from millgate.core.measure import PRIOR_OUTCOMES, Trials
from millgate.core.settings import LONGEST_HINT_S, MOST_TENANTS
from millgate.core.tickets import ClientKind

# A balancer may send clients elsewhere at once: of those of one replica the last ten count
# (`lab.replica_quotas`, seeds 821 to 826: of the last fifty, 1.8 and 1.2 points fewer hints are kept with 70 and 95 % at one).
_HERE_WEIGHT: Final = 0.1

Counts = tuple[float, float]
"""Weights of clients: who came when told, by any replica, and who was told."""


class _Outcomes:
    """What became of appointments: of this replica's, and of those of the `others`."""

    def __init__(self) -> None:
        self.here: Counts = (0.0, 0.0)
        self._others: Counts = (0.0, 0.0)
        self._faded_at = 0.0

    def shared_with(self, others: Counts, now: float) -> None:
        """Count with these of the others; for the sum to be true all fade in as long as the longest hint takes."""
        keep = max(0.0, 1.0 - (now - self._faded_at) / LONGEST_HINT_S)
        self.here, self._faded_at = (self.here[0] * keep, self.here[1] * keep), now
        self._others = others

    def learn(self, came: float, told: float) -> None:
        """Count a client of this replica."""
        self.here = self.here[0] + came, self.here[1] + told

    def share(self) -> float:
        """Return which part came."""
        return min(1.0, _share((self.here[0] + self._others[0], self.here[1] + self._others[1]), 1.0))


class Attendance:
    """The share of appointments that clients attend, by kind and tenant; `MOST_TENANTS` are known apart.

    An appointment is attended when its client is back before it lapses. The share is the mean of a Beta distribution whose
    counts forget (Beta-Bernoulli with discounting: West and Harrison 1997); a tenant's starts from its kind's own.

    Replicas of a cluster share what they learn: a client may come to another replica than the one that told it. There
    all kinds have the share of the whole cluster, and each tenant that has a line of its own has its own. `here` is the
    part of the last few that was attended here.
    """

    def __init__(self) -> None:
        self._kinds = [Trials() for _ in ClientKind]
        self._tenants: list[dict[str, Trials]] = [{} for _ in ClientKind]
        self._open = [0] * len(ClientKind)
        self._shared: dict[str | None, _Outcomes] = {}
        self.here = 1.0

    @property
    def is_shared(self) -> bool:
        """Whether replicas share what they learn."""
        return None in self._shared

    def counts(self, tenant: str | None = None) -> Counts:
        """Return what this replica tells the others, of the clients of this tenant, or of all."""
        outcomes = self._shared.get(tenant)
        return (0.0, 0.0) if outcomes is None else outcomes.here

    def shared_with(self, others: Mapping[str | None, Counts], now: float) -> None:
        """Count with the `counts` of all other replicas from now on: of all (None), and of each tenant with a line of its own."""
        self._shared = {tenant: self._shared.get(tenant) or _Outcomes() for tenant in others}
        for tenant, outcomes in self._shared.items():
            outcomes.shared_with(others[tenant], now)

    def visited(self, tenant: str, kind: int) -> None:
        """Learn that a client has come whom another replica told; that replica counts it as told."""
        if not self._shared:
            self.learn(tenant, kind, attended=True)
        self._counts_shared(tenant, 1.0, 0.0)

    def _counts_shared(self, tenant: str, came: float, told: float) -> None:
        for of in (None, tenant):
            if (outcomes := self._shared.get(of)) is not None:
                outcomes.learn(came, told)

    def opens(self, kind: int) -> None:
        """Count an appointment that is given to a client of this kind."""
        self._open[kind] += 1

    def closes(self, kind: int) -> None:
        """Count an appointment that is over, whatever became of it."""
        self._open[kind] -= 1

    def expected(self, lapsed: Sequence[int] = ()) -> float:
        """Return which part of the open appointments is expected to be attended, at any replica; `lapsed` kinds were not."""
        number, expected = 0, 0.0
        for kind, opened in enumerate(self._open):
            still_open = opened - (lapsed.count(kind) if lapsed else 0)
            if still_open:
                number += still_open
                # Of one kind alone exactly its share: a sum over a count is another number with each count, and has the
                # forecast made anew.
                expected += (self._share_of(kind, lapsed) - expected) * (float(still_open) / float(number))
        return expected if number else 1.0

    def shares(self, lapsed: Sequence[int] = ()) -> list[float]:
        """Return how likely a client of each kind returns when told, as it is once these have `lapsed` too."""
        return [self._share_of(kind, lapsed) for kind in range(len(self._kinds))]

    def _share_of(self, kind: int, lapsed: Sequence[int]) -> float:
        if self._shared:
            return self._shared[None].share()
        return _share(self._kinds[kind].once_failed(lapsed.count(kind) if lapsed else 0), 1.0)

    def of_tenant(self, tenant: str, lapsed: Sequence[int] = ()) -> float:
        """Return how likely a client of this tenant returns when told, by its own outcomes alone, as it is once these have `lapsed` too."""
        if self._shared:
            return (self._shared.get(tenant) or self._shared[None]).share()
        came = told = 0.0
        for kind, tenants in enumerate(self._tenants):
            counts = tenants.get(tenant, Trials()).once_failed(lapsed.count(kind))
            came, told = came + counts[0], told + counts[1]
        return _share((came, told), 1.0)

    def likelihood(self, tenant: str, kind: int) -> float:
        """Return how many times as likely as others of its kind a client of this tenant returns when told."""
        known = None if self._shared else self._tenants[kind].get(tenant)
        if known is None:
            return 1.0
        of_kind = _share(self._kinds[kind].once_failed(0), 1.0)
        return _share(known.once_failed(0), of_kind) / of_kind

    def learn(self, tenant: str, kind: int, *, attended: bool) -> None:
        """Learn what became of one appointment."""
        came = 1.0 if attended else 0.0
        self._kinds[kind].add(came)
        self.here += (came - self.here) * _HERE_WEIGHT
        self._counts_shared(tenant, came, 1.0)
        tenants = self._tenants[kind]
        known = tenants.pop(tenant, None) or Trials()
        if len(tenants) >= MOST_TENANTS:
            del tenants[next(iter(tenants))]
        tenants[tenant] = known
        known.add(came)


def _share(counts: tuple[float, float], prior: float) -> float:
    return (counts[0] + prior * PRIOR_OUTCOMES) / (counts[1] + PRIOR_OUTCOMES)
