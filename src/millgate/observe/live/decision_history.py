"""Ten minutes of history in a hundred and twenty points, kept with and without watchers.

It is looked after at the beats of the accounting; every five seconds it reads a snapshot. Without it a page that is opened
in the middle of an overload could not say what came before.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from millgate.core.snapshot import Alarm, LaneSnapshot, Snapshot
from millgate.core.words import Outcome, Reason


@dataclass(frozen=True, slots=True)
class Rates:
    """Attempts per second over the last `over_s` seconds, by what became of them; `yielded` by reason, no zeros."""

    over_s: float
    arrived: float
    admitted: float
    good: float
    late: float
    client_gone: float
    engine_failed: float
    yielded: Mapping[str, float]


def rates_between(before: Snapshot, after: Snapshot, lane: str | None = None) -> Rates:
    """Return what became of attempts from one snapshot to a later one, in this lane or in all."""
    over_s = after.now - before.now
    happened = happened_between(before, after, lane)
    per_s = defaultdict(float, {word: n / over_s for word, n in happened.items() if over_s > 0.0})
    return Rates(
        over_s=over_s,
        arrived=per_s["arrived"],
        admitted=per_s["admitted"],
        good=per_s[Outcome.GOOD],
        late=per_s[Outcome.LATE],
        client_gone=per_s[Outcome.CLIENT_GONE],
        engine_failed=per_s[Outcome.ENGINE_FAILED],
        yielded={reason.value: per_s[reason] for reason in Reason if per_s[reason]},
    )


def happened_between(before: Snapshot, after: Snapshot, lane: str | None = None) -> Counter[str]:
    """Return how many attempts arrived, were admitted, were refused by reason and ended by outcome, in this lane or in all.

    A lane that a new configuration has dropped takes its counts with it, and nothing of those of others.
    """
    earlier = {each.name: _counts(each) for each in before.lanes}
    found: Counter[str] = Counter()
    for each in after.lanes:
        if lane is None or each.name == lane:
            found += _counts(each) - earlier.get(each.name, Counter())
    return found


def _counts(lane: LaneSnapshot) -> Counter[str]:
    """Return all running counts by word; no reason is spelled as an outcome or as one of ours."""
    counts = {"arrived": lane.arrived, "admitted": lane.admitted}
    return Counter(counts | dict(lane.outcomes) | dict(lane.yields))


EVERY_S: Final = 5.0
MOST_POINTS: Final = 120
_SNAPSHOTS_KEPT: Final = 4
"""The rates of the page look back 5 to 10 s and its trends 15: no older snapshot is asked for."""


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """One step of history, ending at core time `at`: attempts per second, and the state at its end.

    `used` is streams out over streams allowed, `wait_s` the longest expected wait of any lane.
    """

    at: float
    arrived_per_s: float
    good_per_s: float
    refused_per_s: float
    queued: int
    used: float
    wait_s: float


class DecisionHistory:
    """Marks the state about every five seconds; reads no clock but the core's.

    `cleared` is the alarm that ended last and when it was seen to have ended, None before there is one.
    """

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot
        first = snapshot()
        self._snapshots: deque[Snapshot] = deque([first], maxlen=_SNAPSHOTS_KEPT)
        self._points: deque[HistoryPoint] = deque(maxlen=MOST_POINTS)
        self._mark_at = first.now + EVERY_S
        self.cleared: tuple[Alarm, float] | None = None

    def look(self, now: float) -> None:
        """Mark the state, if five seconds have passed at core time `now`."""
        if now >= self._mark_at:
            self.mark(self._snapshot())

    def mark(self, snapshot: Snapshot) -> None:
        """Take this snapshot as the end of a step, if it is due."""
        if snapshot.now < self._mark_at:
            return
        self._mark_at = snapshot.now + EVERY_S
        last = self._snapshots[-1]
        self._points.append(point_between(last, snapshot))
        self._snapshots.append(snapshot)
        over = [
            alarm
            for pool, now in zip(last.pools, snapshot.pools, strict=False)
            for alarm in pool.alarms
            if alarm.signal not in [other.signal for other in now.alarms]
        ]
        if over:
            self.cleared = (over[0], snapshot.now)

    @property
    def points(self) -> tuple[HistoryPoint, ...]:
        """All steps, oldest first."""
        return tuple(self._points)

    @property
    def newest(self) -> HistoryPoint | None:
        """The last whole step, None before there is one."""
        return self._points[-1] if self._points else None

    def before(self, now: float, age_s: float) -> Snapshot:
        """Return the newest kept snapshot that is at least this old, else the oldest."""
        for snapshot in reversed(self._snapshots):
            if now - snapshot.now >= age_s:
                return snapshot
        return self._snapshots[0]


def point_between(before: Snapshot, after: Snapshot) -> HistoryPoint:
    """Return the step from one snapshot to a later one."""
    rates = rates_between(before, after)
    limit = sum([engine.limit for engine in after.engines if engine.takes_requests])
    return HistoryPoint(
        at=after.now,
        arrived_per_s=rates.arrived,
        good_per_s=rates.good,
        refused_per_s=sum(rates.yielded.values()),
        queued=sum([lane.queued for lane in after.lanes]),
        used=sum([engine.running for engine in after.engines if engine.takes_requests]) / limit
        if limit
        else 0.0,
        wait_s=max([lane.expected_wait_s for lane in after.lanes], default=0.0),
    )
