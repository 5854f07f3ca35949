"""May this tenant? Retry budget, quotas and streams of its own, asked before an engine is looked for.

Every question costs one comparison where nothing is configured. A request that is let in or queued has reserved its quotas; what
never ran gives them back, what ran is settled with what it really used. Clients that a bucket refused stand in its line, each with
an appointment at its own time.
"""

from collections import Counter
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from millgate.core.decisions import QuotaState
from millgate.core.measure.ranking import MOST_WEIGHT, Ranking
from millgate.core.quotas.bucket import Bucket
from millgate.core.quotas.ledger import Demand, Ledger, Who
from millgate.core.retry_budget import RetryBudget
from millgate.core.settings import Settings, TenantSettings
from millgate.core.state.attempt import Attempt, Request
from millgate.core.tickets.appointment import Appointment, Attendance, ClientKind
from millgate.core.tickets.records import EQUALS_TRIED, age_key, most_notes
from millgate.core.words import Reason

# A minute of a quota of 4,000 requests a minute is one line of this length; all lines take 4 MB at most.
MOST_IN_LINE: Final = 4_096
MOST_APPOINTMENTS: Final = 16_384
# Amounts are summed up in whole parts of a token or request, so many each: sums of whole numbers do not drift.
_PARTS: Final = 64.0
# A ticket says its times in whole milliseconds; the appointments so close to one are looked through, a few at most.
_TICKET_S: Final = 0.002


class Behind(NamedTuple):
    """What keeps a request out that its bucket alone would let in, or later: after `wait_s` it is its turn.

    `promised` is how much those before it are expected to take. `needed` and `left` are as in `Shortage`.
    """

    wait_s: float
    promised: float
    needed: float
    left: float


class _Booking:
    """One appointment with the lines in which it stands, all by one key."""

    __slots__ = ("appointment", "key", "kind", "lines", "tenant")

    def __init__(
        self, appointment: Appointment, key: int, tenant: str, kind: int, lines: tuple[Bucket, ...]
    ) -> None:
        self.appointment = appointment
        self.key = key
        self.tenant = tenant
        self.kind = kind
        self.lines = lines


class QuotaLines:
    """The appointments of all buckets, by the number of the request; the clock of `expire` must not go backward.

    A refused client is told when the bucket has enough for all that were told before it and for itself; what others may still
    take counts by learned attendance. A client that is back at its own time needs only what the bucket has. Any other stands
    behind the appointments that have come and have not lapsed. A full bucket loses what it is given, so it waits for them no
    longer than a client may be late, and for less where fewer are expected than the newcomer asks for. An appointment stands
    in the line of each bucket that was short for it. Beyond the bounds (INV-5) clients are told when it has enough for them alone.
    """

    __slots__ = ("_attendance", "_bookings", "_ends", "_lines")

    def __init__(self) -> None:
        self._attendance = Attendance()
        self._bookings: dict[int, _Booking] = {}
        self._lines: dict[Bucket, Ranking] = {}
        self._ends: list[tuple[float, int]] = []

    @property
    def is_empty(self) -> bool:
        """Whether no client has an appointment."""
        return not self._bookings

    def has(self, number: int) -> bool:
        """Return whether this request has an appointment."""
        return number in self._bookings

    def __len__(self) -> int:
        """Return how many clients have an appointment, those included that have lapsed since `expire`."""
        return len(self._bookings)

    def behind(self, number: int, demands: Iterable[Demand], now: float) -> Behind | None:
        """Return the line in which this request would wait longest, None where it waits in none; changes nothing."""
        over = self._over(now)
        own = None if number in over else self._bookings.get(number)
        share = self._attendance.expected([self._bookings[each].kind for each in over])
        worst: Behind | None = None
        for bucket, needed in demands:
            line = self._lines.get(bucket)
            if line is None or bucket.too_large(needed):
                continue
            if over:
                line = line.without([each.key for each in self._of_line(bucket, over)])
            found = self._in_line(bucket, line, needed, own, share, now)
            if found is not None and (worst is None or found.wait_s > worst.wait_s):
                worst = found
        return worst

    def number_of(self, tenant: str, told: Appointment, demands: Iterable[Demand]) -> int | None:
        """Return the request of this tenant that was told this by these buckets, as a ticket says it; None without one."""
        for bucket, _ in demands:
            line = self._lines.get(bucket)
            key = age_key(told.opens_at - _TICKET_S, 0)
            for _ in range(EQUALS_TRIED):
                found = None if line is None else line.after(key)
                if found is None:
                    break
                key, number = found[0] + 1, found[1]
                booking = self._bookings[number]
                if booking.tenant == tenant and abs(booking.appointment.due_at - told.due_at) <= _TICKET_S:
                    return number
        return None

    def _in_line(
        self,
        bucket: Bucket,
        line: Ranking,
        needed: float,
        own: _Booking | None,
        share: float,
        now: float,
    ) -> Behind | None:
        """Return the wait in this bucket's line; None where the request may go as far as this bucket is concerned."""
        each = share / _PARTS
        key = age_key(now, 0) if own is None else min(own.key, age_key(now, 0))
        is_its_time = own is not None and bucket in own.lines and now >= own.appointment.due_at
        due = 0.0 if is_its_time else line.weighed_before(key)[1] * each
        level = bucket.level(now)
        if bucket.wait_s(needed, now) <= 0.0 and (
            level >= needed + due or bucket.full_for_s(now) >= self._grace_s(line, due / needed)
        ):
            return None
        promised = (line.total if own is None else line.weighed_before(own.key)[1]) * each
        return Behind(max(0.0, promised + needed - level) / bucket.rate_per_s, promised, needed, level)

    def _grace_s(self, line: Ranking, expected: float) -> float:
        """Return how long a full bucket waits for so many times what the newcomer needs: as long as a client may be late."""
        first = line.first()
        if first is None:
            return 0.0
        return min(1.0, expected) * self._bookings[first[1]].appointment.late_s

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

        `turn` is what `returned` gave for its appointment before this one: it keeps its turn.
        """
        open_lines = [each for each in demands if self._has_room(each.bucket)]
        if not open_lines or len(self._bookings) >= MOST_APPOINTMENTS:
            return
        key = age_key(appointment.opens_at, number) if turn is None else turn
        buckets = tuple([each.bucket for each in open_lines])
        self._bookings[number] = _Booking(appointment, key, tenant, kind, buckets)
        self._attendance.opens(kind)
        parts = _PARTS * self._attendance.likelihood(tenant, kind)
        for bucket, needed in open_lines:
            line = self._lines.setdefault(bucket, Ranking())
            line.add(key, number, min(MOST_WEIGHT, round(needed * parts)))
        self._note_end(appointment.lapses_at, number)

    def _has_room(self, bucket: Bucket) -> bool:
        line = self._lines.get(bucket)
        return line is None or len(line) < MOST_IN_LINE

    def returned(self, number: int) -> int | None:
        """End the appointment of this request, if it has one: its client is back. Return its turn."""
        booking = self._bookings.get(number)
        if booking is None:
            return None
        self._close(number, attended=True)
        return booking.key

    def expire(self, now: float) -> None:
        """End the appointments that have lapsed."""
        ends = self._ends
        while ends and ends[0][0] < now:
            lapsed_at, number = heappop(ends)
            booking = self._bookings.get(number)
            if booking is not None and booking.appointment.lapses_at == lapsed_at:
                self._close(number, attended=False)

    def _close(self, number: int, *, attended: bool) -> None:
        booking = self._bookings.pop(number)
        self._attendance.closes(booking.kind)
        self._attendance.learn(booking.tenant, booking.kind, attended=attended)
        for bucket in booking.lines:
            line = self._lines[bucket]
            line.remove(booking.key)
            if not line:
                del self._lines[bucket]

    def _note_end(self, lapses_at: float, number: int) -> None:
        if len(self._ends) > most_notes(len(self._bookings)):
            self._ends = [(each.appointment.lapses_at, other) for other, each in self._bookings.items()]
            heapify(self._ends)
        else:
            heappush(self._ends, (lapses_at, number))

    def _over(self, now: float) -> list[int]:
        """Return the requests whose appointments `expire` would end at this time; none where it has just been asked."""
        ends = self._ends
        if not ends or ends[0][0] >= now:
            return []
        return [number for number, each in self._bookings.items() if each.appointment.lapses_at < now]

    def _of_line(self, bucket: Bucket, numbers: list[int]) -> list[_Booking]:
        bookings = [self._bookings[number] for number in numbers]
        return [each for each in bookings if bucket in each.lines]


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

    def shortfall(self, request: Request, now: float) -> Shortfall | None:
        """Return what this request's tenant lacks for it, None where it may go on; changes nothing."""
        if (budget := self.budget) is not None and request.is_charged:
            drain_per_s = request.route.pool.capacity_forecast.per_s()
            if not budget.allows(request.tenant, now, drain_per_s):
                spent, most = budget.spent(now), budget.budget(now, drain_per_s)
                return Shortfall(Reason.RETRY_BUDGET, spent, most, float("inf"))
        if not self.ledger.is_empty:
            short = self._short_of_quota(request, now)
            if short is not None:
                return short
        return self._own_streams(request)

    def _short_of_quota(self, request: Request, now: float) -> Shortfall | None:
        who, sizes = _who(request), request.sizes()
        short = self.ledger.shortage(who, sizes, now)
        behind = None
        if not self.lines.is_empty:
            demands = self.ledger.demands(who, sizes)
            behind = self.lines.behind(self._number_of(request, demands), demands, now)
        if short is not None:
            reason = Reason.TOO_LARGE if short.never_fits else Reason.QUOTA
            return Shortfall(reason, short.needed, short.left, short.wait_s, behind)
        return None if behind is None else Shortfall(Reason.QUOTA, behind.needed, behind.left, 0.0, behind)

    def _own_streams(self, request: Request) -> Shortfall | None:
        known = self._tenants.get(request.tenant)
        if known is None or known.max_inflight is None:
            return None
        inside, streams = self._inside[request.tenant], request.arrival.answers
        # A tenant without a stream may have any: a request of more than all of its tenant's streams runs alone.
        if not inside or inside + streams <= known.max_inflight:
            return None
        engine = request.route.up[0]
        wait_s = engine.expected_service_s() / known.max_inflight
        return Shortfall(Reason.TENANT_LIMIT, inside, known.max_inflight, wait_s)

    def arrived(self, request: Request, refused: Reason | None, now: float) -> None:
        """Count an attempt, and charge its retry unless that is what refused it."""
        if (budget := self.budget) is None:
            return
        budget.arrived(request.tenant, now, retry=request.is_retry)
        if refused is not Reason.RETRY_BUDGET and request.is_charged:
            budget.spend(request.tenant, now)

    def taken_in(self, attempt: Attempt, would: Reason | None, now: float) -> None:
        """Reserve for an attempt that is let in or queued; not for one that a protecting gate would have refused.

        Observed, it would leave debts and take streams that no protecting gate has.
        """
        request = attempt.request
        if would is not None:
            self._observed.add(request.attempt)
            return
        if not self.ledger.is_empty:
            attempt.reserves(self.ledger.take(_who(request), request.sizes(), now))
        if request.tenant in self._tenants:
            self._inside[request.tenant] += request.arrival.answers

    def told(self, request: Request, kind: ClientKind, appointment: Appointment, now: float) -> None:
        """Put a client that its quota refuses into the lines of the buckets that were short for it.

        A client whose time there is later than its hint has no appointment: it was told a time at random.
        """
        demands = self.ledger.demands(_who(request), request.sizes())
        number = self._number_of(request, demands)
        short = [
            each
            for each in demands
            if each.bucket.wait_s(each.needed, now) > 0.0 or self.lines.behind(number, [each], now)
        ]
        behind = self.lines.behind(number, short, now)
        turn = self.lines.returned(number)
        if behind is None or behind.wait_s <= appointment.hint_s:
            self.lines.book(request.arrival_number, request.tenant, kind, appointment, short, turn)

    def returned(self, request: Request) -> None:
        """End the appointment that this attempt keeps, whatever is decided about it."""
        if not self.lines.is_empty:
            self.lines.returned(self._number_of(request, self.ledger.demands(_who(request), request.sizes())))

    def _number_of(self, request: Request, demands: list[Demand]) -> int:
        """Return the number under which it has an appointment: that of its record, or else of what its ticket says."""
        number, told = request.arrival_number, request.age.appointment
        if request.recognised and told is not None and not self.lines.has(number):
            known = self.lines.number_of(request.tenant, told, demands)
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
        elif request.tenant in self._tenants:
            self._inside[request.tenant] -= request.arrival.answers
            if not self._inside[request.tenant]:
                del self._inside[request.tenant]


def _who(request: Request) -> Who:
    return Who(request.tenant, request.arrival.model, request.lane.settings.name)
