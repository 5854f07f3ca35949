"""The arithmetic of leases, pure: which replica may use how much of each shared number. Times are handed in.

The promise (INV-11): the sum of what all replicas may use is never above the whole, whatever is lost, repeated, late,
killed, stopped or forgotten. It rests on one bound for each replica: the most that it may be using is what it last
reported as used, or the largest share of an answer that it may act on, whichever is more. Those are the answer that it
says to have taken over, and all later ones. A share is only granted from what the bounds of all others leave. So a
share that falls becomes free for others when its replica has said that it has taken the lower share over; what is used
above that share goes on counting as used, and falls as it ends.

A lease ends `lease_s` after the ledger took the renewal. The replica counts from before it sent it, so it stops first.
What it may be using then is left over: it counts for `lingers_s` more, or until the engine's gauge shows it gone. A
killed replica's streams end at once, and the gauge shows that within about a second; a stopped or a cut-off replica's
go on, and the gauge shows that, too.

A gauge is read at another time than the reports are made. So the ledger takes from it the least that each replica with a lease
has reported since a little before. It believes two readings that agree: the first after the end of the lease, the second when
everything that was admitted must be in the gauge.

The clock may jump (Redis has a wall clock). While replicas renew, the time between two renewals is short. A step back,
or a step forward of more than half a lease, is a jump or a stop of the store, and the ledger's own time stands still
over it: leases last longer and never shorter. It stands still, too, while no replica renews.

A store may lose its state. A ledger that starts empty, or hears of an epoch or an answer that it cannot have given,
grants each replica at most what it holds for the time of one lease. After that every lease that it does not know has
ended.
"""

from collections.abc import Callable
from typing import Final

from millgate.cluster.contract import (
    FencedError,
    Granted,
    Holding,
    LeasedShare,
    Line,
    Renewal,
    StoreUnavailableError,
    comes_whole,
)
from millgate.cluster.division import Claim, divide
from millgate.cluster.member import OLDEST_S, SETTLE_S, Member, Reading

MOST_REPLICAS: Final = 256
"""How many replicas the ledger knows, those included that have left something behind."""
ROTATION_S: Final = 10.0
"""What cannot be divided evenly goes to the next replica after so long."""
# A step of the clock that is longer than this share of a lease is a jump or a stop of the store.
_LONGEST_STEP: Final = 0.5


class LeaseLedger:
    """Divides shared numbers among replicas; `may_have_lost` says that replicas may hold leases that the empty ledger forgot."""

    def __init__(self, *, may_have_lost: bool) -> None:
        self._members: dict[str, Member] = {}
        self._epochs = 0
        self._now = 0.0
        self._clock: float | None = None
        self._lost_at: float | None = 0.0 if may_have_lost else None

    def renew(self, renewal: Renewal, now: float) -> Granted:
        """Renew a replica's leases; FencedError where its epoch has ended, StoreUnavailableError beyond the bound on replicas."""
        self._tick(now, renewal.lease_s)
        self._age()
        member = self._member(renewal)
        member.report(renewal, self._now)
        for holding in renewal.holdings:
            self._read_gauge(member, holding)
        shares = {
            holding.key: self._share(member, holding.key, renewal.lease_s) for holding in renewal.holdings
        }
        member.answer(shares, self._now)
        return Granted(
            member.epoch,
            member.number,
            renewal.lease_s,
            len(self._live()),
            tuple(LeasedShare(key, amount) for key, amount in shares.items()),
            self._lines(member),
        )

    def leave(self, replica: str, epoch: int) -> None:
        """End this replica's lease; what it last reported as used counts until it is over."""
        member = self._members.get(replica)
        if member is not None and member.epoch == epoch and not member.is_gone:
            member.leave(self._now)
            self._forget()

    def _tick(self, clock: float, lease_s: float) -> None:
        """Let time pass, but not by a jump of the clock."""
        step_s = clock - self._clock if self._clock is not None else 0.0
        self._clock = clock
        if 0 < step_s <= _LONGEST_STEP * lease_s:
            self._now += step_s

    def _age(self) -> None:
        """End leases whose time is over, and forget what they left when that is over, too."""
        for member in self._members.values():
            if not member.is_gone and member.ends_at <= self._now:
                member.vanish()
        self._forget()

    def _forget(self) -> None:
        for member in self._members.values():
            member.forget(self._now)
        self._members = {name: each for name, each in self._members.items() if each.left != {}}

    def _member(self, renewal: Renewal) -> Member:
        """Return the replica's record, of a new epoch where it joins."""
        member = self._members.get(renewal.replica)
        if self._is_ahead(renewal, member):
            self._lost_at = self._now
        elif member is None:
            if renewal.epoch and not self._is_recovering(renewal.lease_s):
                raise FencedError("this replica's leases have ended")
        elif renewal.epoch:
            if renewal.epoch != member.epoch or member.is_gone:
                raise FencedError("this replica's leases have ended")
            if renewal.applied < member.applied:
                raise FencedError("a later renewal of this replica came first")
            return member
        return self._join(renewal, member)

    def _join(self, renewal: Renewal, before: Member | None) -> Member:
        if before is None and len(self._members) >= MOST_REPLICAS:
            raise StoreUnavailableError(
                f"the store knows {MOST_REPLICAS} replicas already, and keeps no more"
            )
        self._epochs = max(self._epochs, renewal.epoch) + 1
        member = self._members[renewal.replica] = Member(renewal, self._epochs, before)
        return member

    def _is_ahead(self, renewal: Renewal, member: Member | None) -> bool:
        """Return whether the replica has had an answer that this ledger cannot have given: its state is an older one."""
        if renewal.epoch > self._epochs:
            return True
        return member is not None and renewal.epoch == member.epoch and renewal.applied > member.number

    def _is_recovering(self, lease_s: float) -> bool:
        return self._lost_at is not None and self._now < self._lost_at + lease_s

    def _live(self) -> list[Member]:
        """Return the replicas with a lease, in the order in which they joined."""
        return [each for each in self._by_epoch() if not each.is_gone]

    def _by_epoch(self) -> list[Member]:
        return sorted(self._members.values(), key=lambda each: each.epoch)

    def _share(self, member: Member, key: str, lease_s: float) -> float:
        """Return what this replica may use of a number: its fair share, but no more than the bounds of the others leave."""
        sharing = [each for each in self._live() if key in each.holdings]
        holdings = [each.holdings[key] for each in sharing]
        whole = min(each.whole for each in holdings)
        gone = sum((each.bound(key) for each in self._by_epoch() if each.is_gone), 0.0)
        claims = [Claim(each.floor, each.wanted, each.used, each.waits_s) for each in holdings]
        fair = divide(whole - gone, claims, comes_whole=comes_whole(key), turn=int(self._now / ROTATION_S))[
            sharing.index(member)
        ]
        others = sum((each.bound(key) for each in self._live() if each is not member), 0.0)
        share = max(0.0, min(fair, whole - gone - others))
        if self._is_recovering(lease_s):
            share = min(share, member.bound(key))
        return float(int(share)) if comes_whole(key) else share

    def _read_gauge(self, member: Member, holding: Holding) -> None:
        """Lower what replicas without a lease have left of a number to what the engine runs beside the others' work."""
        if holding.seen is None or holding.seen_age_s > OLDEST_S:
            return
        read_at = member.asked_at() - holding.seen_age_s
        sharing = [each for each in self._live() if holding.key in each.holdings]
        known = sum([each.least_used(holding.key, read_at - SETTLE_S) for each in sharing], 0.0)
        reading = Reading(max(0.0, holding.seen - known), read_at)
        for gone in self._members.values():
            if gone.left is not None and holding.key in gone.left and read_at >= gone.ends_at:
                gone.left[holding.key].learn(reading)

    def _lines(self, member: Member) -> tuple[Line, ...]:
        """Return the lines of all other replicas, summed by pool."""
        pools: dict[str, Line] = {}
        for line in (line for each in self._live() if each is not member for line in each.lines):
            known = pools.get(line.pool) or Line(line.pool, 0, 0.0)
            pools[line.pool] = Line(
                line.pool,
                known.queued + line.queued,
                known.work_s + line.work_s,
                known.came + line.came,
                known.told + line.told,
            )
        return tuple(pools.values())


class MemoryStore:
    """Keeps leases in memory; `clock` gives monotonic seconds.

    `may_have_lost` says that replicas may hold leases of an earlier store, whose process ended: then for one lease each
    gets at most what it holds.
    """

    def __init__(self, clock: Callable[[], float], *, may_have_lost: bool = False) -> None:
        self._clock = clock
        self._ledger = LeaseLedger(may_have_lost=may_have_lost)

    async def renew(self, renewal: Renewal) -> Granted:
        """Renew this replica's leases; StoreUnavailableError when they cannot be, FencedError when they have ended."""
        return self._ledger.renew(renewal, self._clock())

    async def leave(self, replica: str, epoch: int) -> None:
        """Give back everything that this replica does not use; of an epoch that has ended, nothing."""
        self._ledger.leave(replica, epoch)

    async def close(self) -> None:
        """End nothing: there is no connection."""
