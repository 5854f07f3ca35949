"""What happened between two snapshots: attempts per second, and refusals by reason, for one lane or all."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from millgate.core.snapshot import LaneSnapshot, Snapshot
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
    bad_request: float
    yielded: Mapping[str, float]


def rates_between(before: Snapshot, after: Snapshot, lane: str | None = None) -> Rates:
    """Return what became of attempts from one snapshot to a later one, in this lane or in all."""
    over_s = after.now - before.now
    happened = _counts(after, lane)
    happened.subtract(_counts(before, lane))
    # A lane that a new configuration has dropped takes its counts with it: that is no negative rate.
    per_s = {word: max(0, count) / over_s if over_s > 0.0 else 0.0 for word, count in happened.items()}
    return Rates(
        over_s=over_s,
        arrived=per_s["arrived"],
        admitted=per_s["admitted"],
        good=per_s.get(Outcome.GOOD, 0.0),
        late=per_s.get(Outcome.LATE, 0.0),
        client_gone=per_s.get(Outcome.CLIENT_GONE, 0.0),
        engine_failed=per_s.get(Outcome.ENGINE_FAILED, 0.0),
        bad_request=per_s.get(Outcome.BAD_REQUEST, 0.0),
        yielded={reason.value: per_s[reason] for reason in Reason if per_s.get(reason)},
    )


def refused_between(before: Snapshot, after: Snapshot) -> dict[Reason, int]:
    """Return how many attempts were refused from one snapshot to a later one, by reason, zeros left out."""
    happened = _counts(after, None)
    happened.subtract(_counts(before, None))
    return {reason: happened[reason] for reason in Reason if happened[reason] > 0}


def arrived_between(before: Snapshot, after: Snapshot) -> int:
    """Return how many attempts arrived from one snapshot to a later one."""
    arrived = sum([lane.arrived for lane in after.lanes]) - sum([lane.arrived for lane in before.lanes])
    return max(0, arrived)


def _counts(snapshot: Snapshot, lane: str | None) -> Counter[str]:
    """Return all running counts by word; no reason is spelled as an outcome or as one of ours."""
    counts: Counter[str] = Counter(arrived=0, admitted=0)
    for each in snapshot.lanes:
        if lane is None or each.name == lane:
            _add(counts, each)
    return counts


def _add(counts: Counter[str], lane: LaneSnapshot) -> None:
    counts["arrived"] += lane.arrived
    counts["admitted"] += lane.admitted
    for outcome, count in lane.outcomes:
        counts[outcome] += count
    for reason, count in lane.yields:
        counts[reason] += count
