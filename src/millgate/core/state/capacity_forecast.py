"""When will permits come free? Read off the running work, and off how fast a full gate empties.

With N permits out, the first N places open when the running work is expected to end. The requests in line are known by
the length that is foreseen for them, so each takes the permit that comes free first and has it for so long (list
scheduling: Graham 1966). Of those beyond the first `LISTED` the sum of their lengths says as much, a round of N at a
time. Where lengths are known that is exact, for one stream as for many. Where only a mean is, it is right on average,
and what remains of the running work is read off how long permits have lasted (`sizing/service_demand`): a permit that
has run for the mean of very uneven answers is not about to end. One that outlives its expectation by d is expected to
take d more and the least hint that there is: the doubling rule, which fits an engine that is a little slow and a heavy
tail alike. Where only the prefill meter is full, a place opens as soon as the prompts before it are read.

The expected ends are kept in a sorted list. A permit that starts, gets its first token or ends is only noted, and the
list is brought up to date when it is asked for: a gate that refuses nothing pays one append. The ends rest on each
engine's *pace*, its learned TPOT as it was read when, over all engines, an eighth of the running streams had answered
since the last reading: re-sorting a thousand streams at every answer would cost more than the rest of the decision. All
of it is a cache: asking, or not, changes no answer.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from heapq import heapreplace
from math import sqrt
from typing import Final

from millgate.core.lifecycle import State
from millgate.core.limits.gate import DrainReading
from millgate.core.measure import UPPER_Z
from millgate.core.settings import LONGEST_HINT_S
from millgate.core.state.engine import LEAST_WORK_S, Engine, Permit, usual_kv_tokens
from millgate.core.tickets import SOONEST_RETURN_S
from millgate.core.tickets.appointments import TICKS_PER_S, WORK_PARTS

# The pace is read again after one answer in so many running streams.
_PACE_SHARE: Final = 8
# So many of those ahead are given their permits one by one, and of so many streams each one's end is looked at anew; of
# more the sum, or the mean, says as much.
LISTED: Final = 64
# Compiled, a name from elsewhere is looked up each time it is used, and a constant is not.
_heapreplace: Final = heapreplace


class CapacityForecast:
    """The expected times at which the permits of one pool's engines come free."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._answers = 0
        self._engines = list(engines)  # compiled, a list is walked through without an iterator
        self._ends: list[float] = []
        self._listed = 0
        self._noted: list[tuple[Permit, Engine]] = []
        self._most_notes = 0
        self._stale = False
        self._per_s: float | None = None
        self._prompt_metered: list[Engine] = []
        # When it was looked at where permits come free: anew when something has changed, and otherwise at each tick, so that a
        # flood is refused by one look.
        self._tick: int | None = None
        self._first = array("I")
        self._free = 0
        self._share = 1.0
        self._first_s = 0.0
        # What a running stream has of a memory that binds (0 where it does not), and how many times that a usual one takes.
        self._held_tokens, self._usual_size = 0.0, 1.0
        self._elsewhere = 0
        self._opens: list[float] = []

    def note(self, permit: Permit, engine: Engine) -> None:
        """Take note that this permit has begun on this engine, has had its first token, or has ended."""
        self._per_s = None
        self._tick = None
        if not self._stale:
            noted = self._noted
            noted.append((permit, engine))
            self._stale = len(noted) > self._most_notes

    def answered(self, running: int) -> None:
        """Take note that an engine's learned speed has changed by one answer, while so many permits are out."""
        self._answers += 1
        if self._answers * _PACE_SHARE > running:
            self._answers = 0
            for engine in self._engines:
                engine.reads_pace()
            self._stale = True
            self._tick = None

    def rate_changed(self) -> None:
        """Take note that what counts as full has changed."""
        self._per_s = None
        self._tick = None

    def shared_with(self, streams: int) -> None:
        """Count so many streams of the same engines, which other replicas have, as if each was in use."""
        if streams != self._elsewhere:
            self._elsewhere = streams
            self._tick = None

    def unsettle(self) -> None:
        """Forget every derived number: engines or limits have changed, or something was learned of when permits come free."""
        self._per_s = None
        self._tick = None
        self._prompt_metered = [each for each in self._up() if each.gate.prefill_limit is not None]
        self._stale = True

    def wait_s(self, place: int, now: float, *, prompts: bool = True, streams: int = 1) -> float:
        """Return the expected time until the `place`-th permit (1 is next), of so many streams, comes free.

        Without `prompts` it is asked for streams and memory alone, whatever has to be read.
        """
        if prompts and self._prompt_metered and (reading_s := self._reading_s(place)) is not None:
            return reading_s
        ends, per_s = self._sorted_ends(), self.per_s()
        place += self._beyond_limits()
        if not ends:
            return place / per_s
        if streams > 1 or self._listed < len(ends):
            # Ends are those of streams, and departures those of permits.
            streams_each = len(ends) / self._listed
            free = sum([max(0, engine.limit - engine.gate.streams) for engine in self._up()])
            place = round((place - 1) * streams_each) + streams - min(streams - 1, free)
            per_s *= streams_each
        laps, index = divmod(place - 1, len(ends))
        cycle_s = len(ends) / per_s
        if ends[0] >= now:
            return ends[index] - now + laps * cycle_s
        late_by_s = min(cycle_s, now - ends[0] + SOONEST_RETURN_S)
        return _among_late_s(ends, bisect_right(ends, now), late_by_s, index + 1, now) + laps * cycle_s

    def wait_behind_s(
        self, first: "array[int]", share: float, work_s: float, free: int, kv_tokens: float, now: float
    ) -> float:
        """Return the expected time until there is a permit of so many KV tokens behind so much work, in seconds of permits.

        `first` are the first of those ahead, next first, in parts of a second (`tickets.WORK_PARTS`); each takes the
        permit that comes free first, as far as that `share` of them is expected to come. So many are `free` already,
        and wait for prompts alone. Where memory binds, the running permits leave room to as many usual ones as their
        tokens make, and a large one waits for several to end.
        """
        drains = self._drains()
        usual_s, dearness = max(LEAST_WORK_S, drains.usual_work_s), drains.dearness
        ends = self._sorted_ends()
        if not ends and not self._elsewhere:
            return (1.0 + work_s / usual_s) / self.per_s()
        cycle_s = usual_s * dearness
        tick = int(now * TICKS_PER_S)
        if tick != self._tick or free != self._free or share != self._share or first != self._first:
            self._tick, self._free, self._first = tick, free, first
            self._share = share
            up = self._up()
            self._held_tokens = held_tokens = held_where_memory_binds(up)
            self._usual_size = usual_kv_tokens(up[0]) / held_tokens if held_tokens else 1.0
            each_s = share * self._usual_size / WORK_PARTS
            at = tick / TICKS_PER_S
            running = self._opens_at(ends, cycle_s, at)[self._beyond_limits() :] or ends[-1:]
            evenly = [at + (each + 0.5) / self._elsewhere * cycle_s for each in range(self._elsewhere)]
            opens = sorted([at] * free + running + evenly)
            whole, opens_at = 0, opens[0]
            for parts in first.tolist():  # an array is asked for its items one by one
                whole += parts
                opens_at += parts * each_s * dearness
                if len(opens) > 1:
                    _heapreplace(opens, opens_at)
                    opens_at = opens[0]
            opens[0], self._first_s = opens_at, whole * each_s
            opens.sort()
            self._opens = opens
        rest = max(0.0, work_s * self._usual_size - self._first_s) / usual_s
        if self._held_tokens:
            rest += max(0.0, kv_tokens / self._held_tokens - 1.0)
        return max(0.0, _later(self._opens, rest, cycle_s) - now)

    def _beyond_limits(self) -> int:
        """Return how many of the running permits open no place when they end: their engine's limit has fallen below what runs."""
        return sum([max(0, engine.gate.streams - engine.limit) for engine in self._up()], 0)

    def _opens_at(self, ends: list[float], cycle_s: float, now: float) -> list[float]:
        """Return when the running permits come free, ascending; those that are late evenly over as long again."""
        if len(ends) <= LISTED:
            ends = self._likely_ends(now)
        late = bisect_right(ends, now)
        if not late:
            return ends[:]
        late_by_s = min(cycle_s, now - ends[0] + SOONEST_RETURN_S)
        opens = [now + (place + 0.5) / late * late_by_s for place in range(late)]
        return sorted(opens + ends[late:])

    def _likely_ends(self, now: float) -> list[float]:
        """Return the ends of the running work, ascending, each as long as permits like it last.

        The first to end is not the one of the shortest mean: of many that may end at any time some do soon. So by
        their order they are read at ascending levels of what remains.
        """
        running = self._running()
        running.sort(key=_listed)
        ends: list[float] = []
        for at, (permit, engine) in enumerate(running):
            ends += [_likely_end(permit, engine, (at + 0.5) / len(running), now)] * permit.streams
        return sorted(ends)

    def upper_s(self, place: int, *, mean_is_known: bool = True, prompts: bool = True) -> float:
        """Return how much longer than expected the `place`-th permit may take, nine times in ten.

        `mean_is_known` leaves out that the mean of all permits is itself an estimate; `prompts` as for `wait_s`.
        """
        if prompts and self._reading_s(place) is not None:
            return 0.0
        up = self._up()
        widest_s = 0.0
        # Permits of clients that have left end with the abort lag, whatever the lengths of answers.
        leaving = sum(
            [
                each.streams
                for engine in up
                if not engine.hangups.ignored
                for each in engine.departing.values()
            ],
            0,
        )
        for engine in up:
            drains, departures = engine.drains(), max(0, place - leaving) / len(up)
            # A mean of n permits is itself off by 1 / n of their variance, and each of k to come by as much.
            off = 0.0 if mean_is_known else departures * departures / drains.departures
            widest_s = max(widest_s, drains.spread_s * sqrt(departures + off))
        return UPPER_Z * widest_s

    def upper_everywhere_s(self, place: int, elsewhere_s: float) -> float:
        """Return the same behind this place here and so much work at other replicas, whose streams drain beside these."""
        if not self._elsewhere:
            return self.upper_s(place, mean_is_known=False)
        here = sum([engine.drain.full_streams for engine in self._up()], 0.0)
        place += round(elsewhere_s / max(LEAST_WORK_S, self._drains().usual_work_s))
        whole = sum([engine.limit for engine in self._up()], self._elsewhere)
        return self.upper_s(place, mean_is_known=False) * min(1.0, here / whole)

    def per_s(self) -> float:
        """Return how many permits a second end while every gate is full."""
        per_s = self._per_s
        if per_s is None:
            per_s = sum([engine.drains().per_s for engine in self._up()], 0.0)
            per_s = self._per_s = per_s or 1.0 / LONGEST_HINT_S
        return per_s

    def _reading_s(self, place: int) -> float | None:
        """Return the time until the prompts before this place are read, where nothing else is in the way."""
        least_s: float | None = None
        for each in self._prompt_metered:
            if _only_prompts_block(each, place):
                reading_s = _reading_s(each, place)
                if least_s is None or reading_s < least_s:
                    least_s = reading_s
        return least_s

    def _drains(self) -> DrainReading:
        """Return how the first engine that is up empties: all of a pool are alike in what they take."""
        return (self._up() or self._engines)[0].drains()

    def _up(self) -> list[Engine]:
        return [engine for engine in self._engines if engine.up and not engine.retired]

    def _sorted_ends(self) -> list[float]:
        if self._stale:
            self._stale = False
            running = self._running()
            self._listed = len(running)
            self._ends = sorted(
                [end for each, at in running for end in [_list_anew(each, at)] * each.streams]
            )
        elif self._noted:
            for permit, engine in self._noted:
                self._list_again(permit, engine)
        else:
            return self._ends
        self._noted.clear()
        # Beyond that building the list anew is cheaper than changing it.
        self._most_notes = len(self._ends) // 4
        return self._ends

    def _running(self) -> list[tuple[Permit, Engine]]:
        return [(permit, engine) for engine in self._engines for permit in engine.permits.values()]

    def _list_again(self, permit: Permit, engine: Engine) -> None:
        ends, listed, streams = self._ends, permit.listed_end, permit.streams
        if listed is not None:
            self._listed -= 1
            at = bisect_left(ends, listed)
            del ends[at : at + streams]
            permit.listed(None)
        if permit.state is not State.OVER:
            self._listed += 1
            end = _list_anew(permit, engine)
            at = bisect_right(ends, end)
            ends[at:at] = [end] * streams


def held_where_memory_binds(engines: Sequence[Engine]) -> float:
    """Return how many KV tokens a running stream has where memory, not streams, keeps work out of all engines; 0 where it does not."""
    streams = kv_tokens = 0
    for engine in engines:
        if not engine.drain.is_bound_by_memory:
            return 0.0
        streams += engine.gate.streams
        kv_tokens += engine.gate.kv_tokens
    return kv_tokens / max(1, streams)


def _only_prompts_block(engine: Engine, place: int) -> bool:
    """Return whether so many usual attempts more could start, but for prompts that are not yet read."""
    gate = engine.gate
    if gate.prefill_limit is None or gate.streams + place > engine.limit:
        return False
    usual_tokens = engine.work_prompt.mean + engine.work_output.mean
    return gate.kv_limit is None or gate.kv_tokens + place * usual_tokens <= gate.kv_limit


def _reading_s(engine: Engine, place: int) -> float:
    """Return how long the prompts before this place take to be read."""
    return engine.service.ttft_s(engine.gate.unread_tokens + (place - 1) * engine.work_prompt.mean)


def _list_anew(permit: Permit, engine: Engine) -> float:
    end = engine.expected_end(permit)
    permit.listed(end)
    return end


def _listed(running: tuple[Permit, Engine]) -> tuple[float, int]:
    """Return by which end a permit is listed; of equal ends the one that was taken in first."""
    permit, _ = running
    assert permit.listed_end is not None
    return permit.listed_end, permit.serial


def _likely_end(permit: Permit, engine: Engine, level: float, now: float) -> float:
    if permit.state is State.DEPARTING:
        return engine.hangups.departs_at(permit)
    whole_s = engine.foreseen_s(permit)
    so_far = (now - permit.admitted_at) / max(LEAST_WORK_S, whole_s)
    return permit.admitted_at + whole_s * engine.permit_times.share_at(so_far, level)


def _later(opens: list[float], answers: float, cycle_s: float) -> float:
    """Return the time of the opening so many usual answers after the first of these."""
    whole, streams = int(answers), len(opens)
    laps, index = whole // streams, whole % streams
    opens_at = opens[index]
    next_at = opens[index + 1] if index + 1 < streams else opens[0] + cycle_s
    return opens_at + laps * cycle_s + (answers - whole) * max(0.0, next_at - opens_at)


def _among_late_s(ends: list[float], late: int, late_by_s: float, place: int, now: float) -> float:
    """Return the time until so many permits have come free, where the first `late` ends have passed unnoticed.

    Those end evenly over `late_by_s`, beside the others.
    """
    low, high = late, len(ends)
    while low < high:
        middle = (low + high) // 2
        passed = min(1.0, (ends[middle] - now) / late_by_s)
        if middle - late + 1 + passed * late < place:
            low = middle + 1
        else:
            high = middle
    wait_s = (place - (low - late) - 0.5) / late * late_by_s
    if low > late:
        wait_s = max(wait_s, ends[low - 1] - now)
    return wait_s if low == len(ends) else min(wait_s, ends[low] - now)
