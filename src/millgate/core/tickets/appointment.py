"""One refused client: what it was told, whether it is on time, how likely it returns, and how its request is recognised.

Every tolerance of a hint stands here, and nowhere else.
"""

from collections.abc import Sequence
from enum import IntEnum
from math import inf
from typing import Final

from millgate.core.settings import MOST_TENANTS

# Hints start at 0.1 s, so no client that waits for one is back sooner: equal bodies that arrive together are
# different requests.
SOONEST_RETURN_S: Final = 0.1
# Hints stay in a range that every SDK honours: openai gives up above 120 s and treats 0 as absent (wire.md B1).
LONGEST_HINT_S: Final = 60.0
# So much before or after its hint a client is on time, and so long it is queued when it is due, even where nothing else is.
_TOLERANCE_S: Final = 1.0
# Of a long hint this share is no longer late.
_LATE_SHARE: Final = 0.1
# A promise is kept when its client is admitted within the longer of these two after its hint, or after its later return.
# Hints are measured by it: a client cannot tell less apart.
KEPT_S: Final = 0.5
KEPT_SHARE: Final = 0.2
# From this early return on a request stands at the end of the line at each: a client that polls keeps no turn.
EARLY_RETURNS_FORGIVEN: Final = 2


class Appointment:
    """One hint that a client was given: told at `told_at` to return after `hint_s`, which is at `due_at`; core seconds.

    A record of the client, a ticket and a line of a quota are judged by this class alone.
    """

    __slots__ = ("due_at", "hint_s", "told_at")

    def __init__(self, told_at: float, hint_s: float) -> None:
        self.told_at: Final = told_at
        self.hint_s: Final = hint_s
        self.due_at: Final = told_at + hint_s

    @property
    def known_from(self) -> float:
        """The earliest time at which an equal body is taken for this client's return."""
        return self.told_at + SOONEST_RETURN_S

    @property
    def opens_at(self) -> float:
        """The earliest return that is on time: 1 s before the hint, of a short hint the middle of the time before it.

        A client that was told 0.8 s and is back within 0.2 s has not waited.
        """
        return max(self.due_at - _TOLERANCE_S, (self.known_from + self.due_at) / 2.0)

    @property
    def late_s(self) -> float:
        """How long after the hint a return is still on time: 1 s, or a tenth of the hint if that is longer."""
        return max(_TOLERANCE_S, _LATE_SHARE * self.hint_s)

    @property
    def lapses_at(self) -> float:
        """The latest return that is on time."""
        return self.due_at + self.late_s

    @property
    def hold_s(self) -> float:
        """How long a client that is due is queued even where nothing else is: until its promise no longer counts as kept."""
        return max(_TOLERANCE_S, KEPT_SHARE * (self.due_at - self.known_from))

    def is_due(self, now: float) -> bool:
        """Return whether its time has come: a return now is not early, though it may be late."""
        return now >= self.opens_at

    def is_honoured(self, now: float) -> bool:
        """Return whether a return now is on time: neither early nor so late that the appointment has lapsed."""
        return self.is_due(now) and now <= self.lapses_at

    def is_kept(self, back_at: float, admitted_at: float) -> bool:
        """Return whether the promise to a client that is back at `back_at` counts as kept by this admission."""
        return admitted_at - max(self.due_at, back_at) <= kept_within_s(self.hint_s)

    def known_until(self, deadline: float) -> float:
        """Return until when its client is recognised: its deadline, or a little after the appointment if later."""
        return max(deadline, self.lapses_at, self.due_at + 2.0 * _TOLERANCE_S)


def kept_within_s(hint_s: float) -> float:
    """Return how long after a hint an admission still keeps the promise: 0.5 s, or a fifth of the hint."""
    return max(KEPT_S, KEPT_SHARE * hint_s)


def shortest_kept_s(latest_s: float) -> float:
    """Return the shortest hint that an admission after `latest_s` still keeps: the inverse of `kept_within_s`."""
    return min(latest_s - KEPT_S, latest_s / (1.0 + KEPT_SHARE))


# How many outcomes the first belief weighs, which is that every client returns. Measured by `sim run hints` and
# tests/core/governor/test_absent_clients.py: a belief of 0.8 costs the first burst, which does return, a third attempt
# each; a weight of 5 idles the engine for a tenth longer once a crowd has gone.
_PRIOR_WEIGHT: Final = 1.5
# An outcome is forgotten by a fiftieth with each later one: a crowd that stays away is believed gone after some twenty.
_KEEP: Final = 1.0 - 1.0 / 50.0


class ClientKind(IntEnum):
    """What is known of a client beside its tenant: it was told for the first time, or has returned before."""

    FIRST = 0
    RETURNED = 1


class Attendance:
    """The share of appointments that clients attend, by kind and tenant; `MOST_TENANTS` are known apart.

    An appointment is attended when its client is back before it lapses. The share is the mean of a Beta distribution whose
    counts forget (Beta-Bernoulli with discounting: West and Harrison 1997); a tenant's starts from its kind's own.
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
        if len(tenants) >= MOST_TENANTS:
            del tenants[next(iter(tenants))]
        tenants[tenant] = _with(known, attended=attended)


def _share(counts: tuple[float, float], prior: float) -> float:
    return (counts[0] + prior * _PRIOR_WEIGHT) / (counts[1] + _PRIOR_WEIGHT)


def _with(counts: tuple[float, float], *, attended: bool) -> tuple[float, float]:
    return counts[0] * _KEEP + attended, counts[1] * _KEEP + 1.0


class ReturnRecord:
    """One yielded or departed request that may return; absolute core seconds.

    `number` is the arrival number of the request's first known attempt: it orders equal ages. `due_at` is None for
    a record without an appointment; `told_at` is when a client was asked back that has none, as by a quota.
    `open_until` is when its appointment lapses; recognition lasts from `known_from` until `known_until`, which is not
    before `open_until`. `lined_up_at` is the age by which it stands in the line: None for `first_seen`, later for a
    request that came too early too often. `early_returns` counts how often it was back before its hint. `turn` is its
    turn in the fair line, handed in again when the request is refused again; 0 has one given. `slot` is where
    `Appointments` keeps it, -1 for what is not kept. `work_s` is how long it will have a permit. `as_old_as` is the age
    by which queues rank it, `first_seen` or older; handed in it is the oldest that it may be. `kind` says how its client
    was known, for its `Attendance`, and `share` which part of the line was expected to return when it was told.
    `is_shared` says that others with the same body are away as well, `lane` is the tag of the lane that it was in.
    `appointment` is what its client was told, whether or not it stands in the line; None where it hung up.
    """

    def __init__(
        self,
        tenant: str,
        fingerprint: int,
        first_seen: float,
        number: int,
        known_from: float,
        known_until: float,
        due_at: float | None = None,
        open_until: float = 0.0,
        lined_up_at: float | None = None,
        early_returns: int = 0,
        turn: int = 0,
        slot: int = -1,
        work_s: float = 1.0,
        as_old_as: float = -inf,
        told_at: float | None = None,
        kind: int = ClientKind.FIRST,
        share: float = 1.0,
        is_shared: bool = False,
        lane: int = 0,
    ) -> None:
        self.tenant: Final = tenant
        self.fingerprint: Final = fingerprint
        self.first_seen: Final = first_seen
        self.number: Final = number
        self.known_from: Final = known_from
        self.known_until: Final = known_until
        self.due_at: Final = due_at
        self.open_until: Final = open_until
        self.lined_up_at: Final = lined_up_at
        self.early_returns: Final = early_returns
        self.turn: Final = turn
        self.slot: Final = slot
        self.work_s: Final = work_s
        self.as_old_as: Final = as_old_as
        self.told_at: Final = told_at
        self.kind: Final = kind
        self.share: Final = share
        self.is_shared: Final = is_shared
        self.lane: Final = lane
        back_at = told_at if due_at is None else due_at
        given_at = known_from - SOONEST_RETURN_S
        self.appointment: Final = None if back_at is None else Appointment(given_at, back_at - given_at)

    def is_due(self, now: float) -> bool:
        """Return whether it stands in the line and its time has come."""
        return self.due_at is not None and self.is_agreed(now)

    def is_agreed(self, now: float) -> bool:
        """Return whether a return now is not before it was told to come, whether it stands in the line or not."""
        return self.appointment is not None and self.appointment.is_due(now)

    def is_early(self, now: float) -> bool:
        """Return whether a return at this time breaks the agreement: it was given a hint and is not due."""
        return self.due_at is not None and not self.is_due(now)

    def matches(self, now: float, retry_count: int | None) -> bool:
        """Return whether an equal arrival at this time is this request coming back.

        One that comes well before its hint and says outright that it is a first attempt, or that comes sooner
        than any client could that was told to wait, is another request with an equal body.
        """
        if not self.known_from <= now < self.known_until:
            return False
        return self.due_at is None or self.is_due(now) or retry_count != 0
