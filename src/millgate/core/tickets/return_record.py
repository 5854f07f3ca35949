"""One yielded or departed request, and the rules by which it is recognised when it comes back."""

from math import inf
from typing import Final

from millgate.core.tickets.appointment import SOONEST_RETURN_S, Appointment
from millgate.core.tickets.attendance import ClientKind


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
    `is_shared` says that others with the same body are away as well.
    `lane` is the tag of the lane that it was in. `appointment` is what its client was told, whether or not it stands in the line; None where it hung up.
    """

    __slots__ = (
        "appointment",
        "as_old_as",
        "due_at",
        "early_returns",
        "fingerprint",
        "first_seen",
        "is_shared",
        "kind",
        "known_from",
        "known_until",
        "lane",
        "lined_up_at",
        "number",
        "open_until",
        "share",
        "slot",
        "tenant",
        "told_at",
        "turn",
        "work_s",
    )

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
