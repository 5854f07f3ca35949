"""What the ledger knows of one replica: what it reported, which answers it may act on, and what stays out after its lease."""

from math import inf
from typing import Final, NamedTuple

from millgate.cluster.contract import Holding, Line, Renewal

OLDEST_S: Final = 1.0
"""A gauge may be so old: engines' gauges are read once a second."""
PART_S: Final = 0.25
"""What is used is known by parts of the time that are so long at least."""
MOST_PARTS: Final = 6
"""They reach back over the oldest gauge, what settles before it, and a pause between renewals."""
PROOF_PAUSE_S: Final = 0.2
"""Two readings of a gauge that are so far apart have to agree before they free anything."""
SETTLE_S: Final = 0.25
"""A request is in the engine's gauge at the latest so long after its replica admitted it (design, section 4, Endings)."""
SHOWN_S: Final = 2.0 * OLDEST_S
"""What a gauge shows to run stays out for so long after the reading: until the next one, which may be as old as a gauge may be."""
LONGER: Final = 2.0
"""A gauge is believed for up to so many times as long as an answer was to last: other work at the engine looks the same."""
_MOST_ANSWERS: Final = 16
_LONG_AGO: Final = -1e9


class Answer(NamedTuple):
    """What one answer let a replica use, and when it was given."""

    number: int
    given_at: float
    shares: dict[str, float]


class Reading(NamedTuple):
    """What a gauge left for all replicas without a lease together, and the earliest time at which it was read."""

    amount: float
    read_at: float


class _Lows:
    """The least that was used since a time: what was reported last, and the least of each part of the time before."""

    def __init__(self, used: float, now: float) -> None:
        self._parts = [(now, used)]

    def least(self, since: float) -> float:
        least = inf
        for begins, used in reversed(self._parts):
            least = min(least, used)
            if begins <= since:
                break
        return least

    def add(self, used: float, now: float) -> None:
        begins, least = self._parts[-1]
        if used != least and now - begins >= PART_S:
            self._parts = [*self._parts[1 - MOST_PARTS :], (now, used)]
        else:
            self._parts[-1] = begins, min(least, used)


class Left:
    """What a replica without a lease may still use: an amount that only falls, and ends at a time, later where a gauge shows that it runs."""

    def __init__(self, amount: float, now: float, lingers_s: float) -> None:
        self.amount = amount
        self._settled_at = now + SETTLE_S
        self.ends_at = now + lingers_s
        self._until = now + LONGER * lingers_s
        self._last: Reading | None = None

    def learn(self, reading: Reading) -> None:
        """Lower the amount to what this reading and the last one leave, and keep it while they do; this one shows all that was admitted."""
        last = self._last
        if last is not None:
            if reading.read_at < max(self._settled_at, last.read_at + PROOF_PAUSE_S):
                return
            self.amount = min(self.amount, max(reading.amount, last.amount))
            self.ends_at = max(self.ends_at, min(self._until, reading.read_at + SHOWN_S))
        self._last = reading


class Member:
    """One replica: with a lease until `ends_at`, or gone, with something left."""

    def __init__(self, renewal: Renewal, epoch: int, before: "Member | None") -> None:
        """Begin a lease; what it may have been using, and what it says to hold, counts until it takes over a new answer."""
        self.epoch = epoch
        self.applied = renewal.applied
        self.number: int = max(renewal.applied, before.number if before is not None else 0)
        self.ends_at = 0.0
        self.holdings: dict[str, Holding] = {}
        self.lines: tuple[Line, ...] = ()
        self.left: dict[str, Left] | None = None
        self._lows: dict[str, _Lows] = {}
        held = {holding.key: holding.held for holding in renewal.holdings}
        self._answers = [Answer(renewal.applied, _LONG_AGO, held)]
        if before is not None:
            self._answers.append(Answer(before.number, _LONG_AGO, before.bounds()))

    @property
    def is_gone(self) -> bool:
        """Whether its lease has ended."""
        return self.left is not None

    def report(self, renewal: Renewal, now: float) -> None:
        """Take what it reports; answers before the one that it has taken over do not count any more."""
        self.applied, self.lines = renewal.applied, renewal.lines
        self.ends_at = now + renewal.lease_s
        self._answers = [answer for answer in self._answers if answer.number >= renewal.applied]
        self.holdings = {holding.key: holding for holding in renewal.holdings}
        lows = self._lows
        self._lows = {key: lows.get(key) or _Lows(each.used, now) for key, each in self.holdings.items()}
        for key, holding in self.holdings.items():
            self._lows[key].add(holding.used, now)

    def answer(self, shares: dict[str, float], now: float) -> None:
        """Note what the next answer lets it use; of too many the two oldest become one that allows what either does."""
        self.number += 1
        self._answers.append(Answer(self.number, now, shares))
        if len(self._answers) > _MOST_ANSWERS:
            first, second = self._answers[:2]
            both = {
                key: max(first.shares.get(key, 0.0), second.shares.get(key, 0.0))
                for key in first.shares | second.shares
            }
            self._answers[:2] = [Answer(second.number, first.given_at, both)]

    def bound(self, key: str) -> float:
        """Return the most that it may be using of this number."""
        if self.left is not None:
            return self.left[key].amount if key in self.left else 0.0
        holding = self.holdings.get(key)
        used = holding.used if holding is not None else 0.0
        return max(used, max((answer.shares.get(key, 0.0) for answer in self._answers), default=0.0))

    def bounds(self) -> dict[str, float]:
        """Return the most that it may be using of every number."""
        return {key: self.bound(key) for key in (self.holdings if self.left is None else self.left)}

    def least_used(self, key: str, since: float) -> float:
        """Return the least that it has reported to use since then."""
        return self._lows[key].least(since)

    def asked_at(self) -> float:
        """Return the earliest time at which it can have made its last report: when the answer that the report names was given."""
        return next((each.given_at for each in self._answers if each.number == self.applied), _LONG_AGO)

    def vanish(self) -> None:
        """End the lease: whatever it may be using stays out for as long as it may last."""
        self._go(self.bounds(), self.ends_at)

    def leave(self, now: float) -> None:
        """End the lease of a replica that starts nothing any more: what it uses stays out for as long as it may last."""
        self.ends_at = now
        self._go({key: holding.used for key, holding in self.holdings.items()}, now)

    def forget(self, now: float) -> None:
        """Forget what has ended or is shown to be gone."""
        if self.left is not None:
            self.left = {
                key: left for key, left in self.left.items() if left.amount > 0 and left.ends_at > now
            }

    def _go(self, amounts: dict[str, float], now: float) -> None:
        self.left = {
            key: Left(amount, now, self.holdings[key].lingers_s)
            for key, amount in amounts.items()
            if amount > 0 and self.holdings[key].lingers_s > 0
        }
        self.lines = ()
