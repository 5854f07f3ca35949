"""The lines of those that a bucket refused, or the cap of their tenant's streams: every client has an appointment there, at its own time."""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from millgate.core.measure import MOST_WEIGHT, Ranking
from millgate.core.quotas.bucket import PARTS, Supply
from millgate.core.quotas.ledger import Demand
from millgate.core.tickets.appointment import Appointment, age_key
from millgate.core.tickets.appointments import most_notes
from millgate.core.tickets.attendance import Attendance

# A minute of a quota of 4,000 requests a minute is one line of this length; all lines take 4 MB at most.
MOST_IN_LINE: Final = 4_096
MOST_APPOINTMENTS: Final = 16_384
# Shares of a rate are a little less than the rate while they move, and a client that finds three tokens of sixty
# missing is told again. So replicas tell so much more. A whole second more broke every promise: buckets that hold a
# second of the rate are nearly full, and a full one gets none of the rate.
_SHARED_MARGIN_S: Final = 0.25


class Behind(NamedTuple):
    """What keeps a request out that its bucket alone would let in, or later: after `wait_s` it is its turn.

    `promised` is how much those before it are expected to take. `needed` and `left` are as in `Shortage`.
    """

    wait_s: float
    promised: float
    needed: float
    left: float


class Elsewhere(NamedTuple):
    """What the other replicas of a cluster have promised of a bucket and do not have, and the rate of all together (0: as here)."""

    promised: float
    rate_per_s: float = 0.0


class Booking(NamedTuple):
    """One appointment with the lines in which it stands, all by one key."""

    appointment: Appointment
    key: int
    tenant: str
    kind: int
    lines: tuple[Supply, ...]

    def due_key(self) -> tuple[str, int]:
        """Return its tenant, and when it is due as a ticket says it."""
        return self.tenant, round(self.appointment.due_at * 1_000.0)


class _Asking(NamedTuple):
    """Who asks for a place: its booking here, what it was told here or elsewhere, and the turn of one that was held."""

    own: Booking | None
    told: Appointment | None
    turn: int | None = None

    @property
    def has_place(self) -> bool:
        """Whether it stands in a line already."""
        return self.told is not None or self.turn is not None

    def key(self, now: float) -> int:
        """Return its place in a line, at the latest that of one who was told to come now."""
        if self.own is not None:
            return self.own.key
        if self.turn is not None:
            return self.turn
        return age_key(now if self.told is None else self.told.opens_at, 0)

    def is_its_time(self, bucket: Supply, now: float) -> bool:
        """Return whether it was told to come by now for this bucket; the ticket of another replica does not say for which."""
        told, own = self.told, self.own
        return told is not None and now >= told.due_at and (own is None or bucket in own.lines)


class QuotaLines:
    """The appointments of all buckets, by the number of the request; the clock of `expire` must not go backward.

    A refused client is told when the bucket has enough for all that were told before it and for itself; what others may
    still take counts by learned attendance. A client that is back at its own time needs only what the bucket has. Any
    other stands behind the appointments that have come and have not lapsed. A full bucket loses what it is given, so it
    waits for them no longer than a client may be late, and for less where fewer are expected than the newcomer asks
    for. A bucket that one tenant has for itself counts by that tenant's attendance alone: what clients of others do
    says nothing of its line. An appointment stands in the line of each bucket that was short for it. Beyond the bounds
    (INV-5) clients are told when it has enough for them alone.

    Replicas of a cluster have one line for each bucket that they share, each a part of it: a client is told when the
    rate of all has enough for all that any replica told before it, and comes to whichever it likes.
    """

    def __init__(self) -> None:
        self.attendance = Attendance()
        self.bookings: dict[int, Booking] = {}
        self._lines: dict[Supply, Ranking] = {}
        # By tenant and millisecond, as a ticket says it; of two in one the later.
        self._due: dict[tuple[str, int], int] = {}
        self._ends: list[tuple[float, int]] = []
        self._elsewhere: dict[Supply, Elsewhere] = {}
        self.is_shared = False

    def standing(self, now: float) -> int:
        """Return how many clients have an appointment at this time, what has lapsed not counted."""
        return len(self.bookings) - len(self._over(now))

    def shared_with(self, elsewhere: dict[Supply, Elsewhere]) -> None:
        """Count with what other replicas have promised of these buckets."""
        self._elsewhere, self.is_shared = elsewhere, bool(elsewhere)

    def missing(self, bucket: Supply, now: float, share: float) -> float:
        """Return how much this bucket lacks of what it has promised, of which this `share` comes."""
        return max(0.0, self.promised(bucket, share) - max(0.0, bucket.level(now)))

    def promised(self, bucket: Supply, share: float) -> float:
        """Return how much clients take of this who were told to come back for it, of whom this `share` comes."""
        line = self._lines.get(bucket)
        return 0.0 if line is None else line.total * share / PARTS

    def behind(
        self,
        number: int,
        demands: Iterable[Demand],
        now: float,
        told: Appointment | None = None,
        turn: int | None = None,
    ) -> Behind | None:
        """Return the line in which this request would wait longest, None where it waits in none; changes nothing.

        `told` is what another replica has told it, `turn` that of its appointment if that has ended.
        """
        over = self._over(now)
        lapsed = [self.bookings[each] for each in over]
        own = None if number in over else self.bookings.get(number)
        asking = _Asking(own, told if own is None else own.appointment, turn)
        worst: Behind | None = None
        for bucket, needed, owner in demands:
            line = self._lines.get(bucket)
            is_away = needed <= bucket.away or bucket.too_large(needed)
            if is_away or (line is None and bucket not in self._elsewhere):
                continue
            line = line or Ranking()
            if lapsed:
                line = line.without([each.key for each in lapsed if bucket in each.lines])
            found = self._in_line(bucket, line, needed, asking, self._share_of(owner, lapsed), now)
            if found is not None and (worst is None or found.wait_s > worst.wait_s):
                worst = found
        return worst

    def number_of(self, tenant: str, told: Appointment) -> int | None:
        """Return the request of this tenant that was told to come then, as its ticket says it; None without one."""
        due_ms = round(told.due_at * 1_000.0)
        found = [self._due.get((tenant, due_ms + off)) for off in (0, -1, 1, -2, 2)]
        return next((number for number in found if number is not None), None)

    def _share_of(self, owner: str | None, lapsed: list[Booking]) -> float:
        """Return which part of a line comes once these have lapsed: of a tenant's own, by what its clients did alone."""
        if owner is None:
            return self.attendance.expected([each.kind for each in lapsed])
        return self.attendance.of_tenant(owner, [each.kind for each in lapsed if each.tenant == owner])

    def _in_line(
        self, bucket: Supply, line: Ranking, needed: float, asking: _Asking, share: float, now: float
    ) -> Behind | None:
        """Return the wait in this bucket's line, of which this `share` comes; None where the request may go as far as that is concerned."""
        due = 0.0
        if not asking.is_its_time(bucket, now):
            # As many come here from other replicas as go from here to them.
            due = line.weighed_before(min(asking.key(now), age_key(now, 0)))[1] * share / PARTS
        level = bucket.level(now)
        if bucket.wait_s(needed, now) <= 0.0 and (
            level >= needed + due or bucket.full_for_s(now) >= self._grace_s(line, due / needed)
        ):
            return None
        before = line.weighed_before(asking.key(now))[1] if asking.has_place else line.total
        promised, rate_per_s, margin_s = before * share / PARTS, bucket.rate_per_s, 0.0
        if (elsewhere := self._elsewhere.get(bucket)) is not None:
            # Lines of all replicas are taken to be of one age: as large a part of theirs is before it.
            part = before / line.total if line.total else float(not asking.has_place)
            promised, rate_per_s = promised + part * elsewhere.promised, elsewhere.rate_per_s or rate_per_s
            # A tenant's clients are held until a stream comes.
            margin_s = _SHARED_MARGIN_S if elsewhere.rate_per_s else 0.0
        wait_s = max(0.0, promised + needed - level) / rate_per_s + margin_s
        return Behind(wait_s, promised, needed, level)

    def _grace_s(self, line: Ranking, expected: float) -> float:
        """Return how long a full bucket waits for so many times what the newcomer needs: as long as a client may be late."""
        first = line.first()
        if first is None:
            return 0.0
        return min(1.0, expected) * self.bookings[first[1]].appointment.late_s

    def book(
        self,
        number: int,
        tenant: str,
        kind: int,
        appointment: Appointment,
        demands: Iterable[Demand],
        turn: int | None = None,
    ) -> None:
        """Put a client that is told to return into the lines of these buckets.

        `turn` is what `returned` gave for its appointment before this one: it keeps its turn, unless another has that
        by a ticket.
        """
        open_lines = [each for each in demands if self._has_room(each.bucket)]
        if not open_lines or len(self.bookings) >= MOST_APPOINTMENTS:
            return
        if turn is None or any(self._is_taken(each.bucket, turn) for each in open_lines):
            turn = age_key(appointment.opens_at, number)
        buckets = tuple([each.bucket for each in open_lines])
        self.bookings[number] = booking = Booking(appointment, turn, tenant, kind, buckets)
        self._due[booking.due_key()] = number
        self.attendance.opens(kind)
        parts = PARTS * self.attendance.likelihood(tenant, kind)
        for bucket, needed, owner in open_lines:
            line, weight = self._lines.setdefault(bucket, Ranking()), parts if owner is None else PARTS
            line.add(turn, number, min(MOST_WEIGHT, round(needed * weight)))
        if len(self._ends) > most_notes(len(self.bookings)):
            self._ends = [(each.appointment.lapses_at, other) for other, each in self.bookings.items()]
            heapify(self._ends)
        else:
            heappush(self._ends, (appointment.lapses_at, number))

    def _is_taken(self, bucket: Supply, key: int) -> bool:
        line = self._lines.get(bucket)
        found = None if line is None else line.after(key)
        return found is not None and found[0] == key

    def _has_room(self, bucket: Supply) -> bool:
        line = self._lines.get(bucket)
        return line is None or len(line) < MOST_IN_LINE

    def returned(self, number: int) -> int | None:
        """End the appointment of this request, if it has one: its client is back. Return its turn."""
        booking = self.bookings.get(number)
        if booking is None:
            return None
        self._close(number, attended=True)
        return booking.key

    def withdraw(self, numbers: list[int]) -> None:
        """End the appointment of the first of these requests that has one: its client has left, and attendance learns nothing of that."""
        for number in numbers:
            if number in self.bookings:
                self._close(number, attended=None)
                return

    def expire(self, now: float) -> None:
        """End the appointments that have lapsed."""
        ends = self._ends
        while ends and ends[0][0] < now:
            lapsed_at, number = heappop(ends)
            booking = self.bookings.get(number)
            if booking is not None and booking.appointment.lapses_at == lapsed_at:
                self._close(number, attended=False)

    def _close(self, number: int, *, attended: bool | None) -> None:
        booking = self.bookings.pop(number)
        if self._due.get(booking.due_key()) == number:
            del self._due[booking.due_key()]
        self.attendance.closes(booking.kind)
        if attended is not None:
            self.attendance.learn(booking.tenant, booking.kind, attended=attended)
        for bucket in booking.lines:
            line = self._lines[bucket]
            line.remove(booking.key)
            if not line:
                del self._lines[bucket]

    def _over(self, now: float) -> list[int]:
        """Return the requests whose appointments `expire` would end at this time; none where it has just been asked."""
        ends = self._ends
        if not ends or ends[0][0] >= now:
            return []
        return [number for number, each in self.bookings.items() if each.appointment.lapses_at < now]
