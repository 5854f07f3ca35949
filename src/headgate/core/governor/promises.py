"""When will a place open, and what may be promised to whom.

A hint is the time at which this client would be admitted if it came back then (design section 4). With N permits
out, the first N places open when the running work is expected to end, in that order; every further N one cycle
later, a cycle being N over the measured drain rate. For one stream that is the residual of the running answer;
for a large batch of mixed ages it approaches place / drain rate; for a batch that started together it is right
where place / drain rate would be wrong by the whole batch.

Hints are spread so that equal promises do not come back as one herd: a low-discrepancy sequence (multiples of the
golden ratio, Weyl 1916) instead of dice, so that the core stays deterministic.
"""

from math import floor

from headgate.core.governor.knowledge import Knowledge
from headgate.core.governor.records import Attempt, Engine
from headgate.core.lifecycle import State
from headgate.core.tickets import DUE_HOLD_S

# Hints stay in a range that every SDK honours: openai gives up above 120 s and treats 0 as absent (wire.md B1).
SHORTEST_HINT_S = 0.1
LONGEST_HINT_S = 60.0
# Beyond this a place is a guess; those clients are spread evenly up to the longest hint.
FAR_HINT_S = 45.0
# A client is asked to be back this share of the hold that awaits it early: coming early costs a short hold,
# coming late costs an idle stream.
_LEAD_S = 0.3 * DUE_HOLD_S
_SPREAD_S = 0.2
_GOLDEN = 0.6180339887498949
# One-sided 90 % point of the normal law: promises of waiting are kept nine times in ten (QLM's upper quantile).
_UPPER_Z = 1.2816
# No engine: time for a health check and a restart to show.
_NO_ENGINE_HINT_S = 5.0
DRAINING_HINT_S = 1.0


class Openings:
    """The expected times at which permits come free; kept until what runs changes."""

    __slots__ = ("_ends", "_knowledge", "_version")

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge
        self._version = -1
        self._ends: list[float] = []

    def wait_s(self, place: int, now: float) -> float:
        """Return the expected time until the `place`-th permit (1 is next) comes free."""
        ends = self._sorted_ends()
        rate = self.drain_per_s()
        if not ends:
            return place / rate
        lap, index = divmod(place - 1, len(ends))
        end = ends[index]
        # Work that has outlived its expectation ends at the drain rate's pace.
        residual_s = end - now if end > now else (index + 0.5) / rate
        return residual_s + lap * len(ends) / rate

    def upper_wait_s(self, place: int, now: float) -> float:
        """Return a time within which the `place`-th permit comes free nine times in ten."""
        spread_s = max(
            (engine.drain.spread_s(place, engine.expected_service_s()) for engine in self._up()), default=0.0
        )
        return self.wait_s(place, now) + _UPPER_Z * spread_s

    def drain_per_s(self) -> float:
        """Return how many permits a second end while every gate is full."""
        return sum(engine.drain_per_s() for engine in self._up()) or 1.0 / LONGEST_HINT_S

    def _up(self) -> list[Engine]:
        return [engine for engine in self._knowledge.engines.values() if engine.up]

    def _sorted_ends(self) -> list[float]:
        if self._version != self._knowledge.version:
            self._version = self._knowledge.version
            self._ends = sorted(
                expected_end(attempt)
                for attempt in self._knowledge.attempts.values()
                if attempt.engine is not None
            )
        return self._ends


def expected_end(attempt: Attempt) -> float:
    """Return when this attempt's permit is expected to end, an absolute core time."""
    if attempt.state is State.DEPARTING:
        return attempt.give_up_at
    assert attempt.engine is not None
    decode_s = attempt.output_tokens * attempt.engine.service.tpot_s(attempt.engine.limit)
    if attempt.first_token_at is None:
        return attempt.admitted_at + attempt.expected_ttft_s + decode_s
    return attempt.first_token_at + decode_s


def spread(count: int) -> float:
    """Return the `count`-th number of the golden-ratio sequence, in [0, 1)."""
    turn = (count + 1) * _GOLDEN
    return turn - floor(turn)


def hint_s(knowledge: Knowledge, openings: Openings, draft: Attempt, now: float) -> float:
    """Return when this client, refused now, would be admitted if it came back then, in [0.1, 60] s."""
    place = knowledge.held_count() + knowledge.places.rank(draft.arrival.tenant, draft.first_seen)
    wait_s = openings.wait_s(place, now)
    share = spread(knowledge.hints_given)
    if wait_s > FAR_HINT_S:
        return FAR_HINT_S + share * (LONGEST_HINT_S - FAR_HINT_S)
    early_s = min(_LEAD_S + share * min(_SPREAD_S, 1.0 / openings.drain_per_s()), wait_s / 2.0)
    return max(SHORTEST_HINT_S, wait_s - early_s)


def no_engine_hint_s(knowledge: Knowledge) -> float:
    """Return 5 to 10 s, spread."""
    return _NO_ENGINE_HINT_S * (1.0 + spread(knowledge.hints_given))


def place_until(now: float, hint: float) -> float:
    """Return when a promised place ends unclaimed: max(1 s, 10 % of the hint) after it was due."""
    return now + hint + max(1.0, 0.1 * hint)


def known_until(now: float, hint: float, deadline: float) -> float:
    """Return until when the promised client is recognised: its deadline, or its hint and some grace if later."""
    return max(deadline, now + hint + max(2.0, 0.1 * hint))
