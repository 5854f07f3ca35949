"""How likely clients that were told when to return do return, learned by what became of their appointments.

An appointment is attended when its client is back before the appointment lapses. The share that attends is the mean of
a Beta distribution whose counts forget (Beta-Bernoulli with discounting: West and Harrison 1997): one for each kind of
client, and one for each tenant within it that starts from the kind's own.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

# How many outcomes the first belief weighs, which is that every client returns. Measured by `sim run hints` and
# tests/core/governor/test_absent_clients.py: a belief of 0.8 costs the first burst, which does return, a third attempt
# each; a weight of 5 idles the engine for a tenth longer once a crowd has gone.
_PRIOR_WEIGHT: Final = 1.5
# An outcome is forgotten by a fiftieth with each later one: a crowd that stays away is believed gone after some twenty.
_KEEP: Final = 1.0 - 1.0 / 50.0
# Tenants that are known apart, in each kind; of the others their kind is believed.
_MOST_TENANTS: Final = 1_000


class ClientKind(IntEnum):
    """What is known of a client beside its tenant: it was told for the first time, or has returned before."""

    FIRST = 0
    RETURNED = 1


class Attendance:
    """The share of appointments that clients attend, by kind and tenant; memory is bounded by `_MOST_TENANTS`.

    What a tenant's clients do beside others of their kind is `likelihood`; the present shares of the kinds are `shares`.
    """

    __slots__ = ("_kinds", "_open", "_tenants")

    def __init__(self) -> None:
        # Weights of what was attended, and of all that came true or lapsed.
        self._kinds: list[tuple[float, float]] = [(0.0, 0.0) for _ in ClientKind]
        self._tenants: list[dict[str, tuple[float, float]]] = [{} for _ in ClientKind]
        self._open = [0] * len(ClientKind)

    def opens(self, kind: int) -> None:
        """Count an appointment that is given to a client of this kind."""
        self._open[kind] += 1

    def closes(self, kind: int) -> None:
        """Count an appointment that is over, whatever became of it."""
        self._open[kind] -= 1

    def expected(self, lapsed: Sequence[int] = ()) -> float:
        """Return which part of the open appointments is expected to be attended; those of the `lapsed` kinds are over, and were not."""
        number, attended = sum(self._open) - len(lapsed), 0.0
        if number <= 0:
            return 1.0
        for kind, share in enumerate(self.shares(lapsed)):
            attended += (self._open[kind] - lapsed.count(kind)) * share
        return attended / number

    def shares(self, lapsed: Sequence[int] = ()) -> list[float]:
        """Return how likely a client of each kind returns when told, as it is once these have `lapsed` too."""
        kinds = self._kinds
        if lapsed:
            kinds = kinds[:]
            for kind in lapsed:
                kinds[kind] = _with(kinds[kind], attended=False)
        return [_share(counts, 1.0) for counts in kinds]

    def likelihood(self, tenant: str, kind: int) -> float:
        """Return how many times as likely as others of its kind a client of this tenant returns when told."""
        of_kind = _share(self._kinds[kind], 1.0)
        return _share(self._tenants[kind].get(tenant, (0.0, 0.0)), of_kind) / of_kind

    def learn(self, tenant: str, kind: int, *, attended: bool) -> None:
        """Learn what became of one appointment."""
        self._kinds[kind] = _with(self._kinds[kind], attended=attended)
        tenants = self._tenants[kind]
        known = tenants.pop(tenant, (0.0, 0.0))
        if len(tenants) >= _MOST_TENANTS:
            del tenants[next(iter(tenants))]
        tenants[tenant] = _with(known, attended=attended)


def _share(counts: tuple[float, float], prior: float) -> float:
    return (counts[0] + prior * _PRIOR_WEIGHT) / (counts[1] + _PRIOR_WEIGHT)


def _with(counts: tuple[float, float], *, attended: bool) -> tuple[float, float]:
    return counts[0] * _KEEP + attended, counts[1] * _KEEP + 1.0
