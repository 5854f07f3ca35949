"""The gate of one engine: three meters, permits that end exactly once (INV-2, INV-3); the limit that it counts against, and its drain.

Streams bound the batch (one for each sequence that the engine makes of a request: `n` answers of each prompt, each text
of a list that it reads), KV tokens the memory, prompt tokens not yet prefilled the wait for a first token. A permit
takes from all three or from none. Permits are kept by attempt: a second release finds nothing and changes nothing.
Where replicas share the engine, a gate also counts against its replica's share; what can ever fit is judged by the
whole.
"""

from math import inf, sqrt
from typing import Final, NamedTuple, Protocol

from millgate.core.events import Arrived, EngineShare
from millgate.core.measure import ENOUGH, MEMORY, Ewma


class LimitReading(NamedTuple):
    """One window of one engine, as a limit sees it; seconds, tokens, streams.

    `tpot_s` is what the steered share of answers keeps. `samples` counts the tokens whose gaps are in it; it is None without any.
    `ttft_excess_p90_s` is the time to first token beyond the predicted prefill. `failures` and `answers` count what ended in this
    window. `kv_share` (0..1) and `waiting` are the engine's own gauges, None where it tells nothing.
    """

    window_s: float
    max_inflight: int
    samples: int
    tpot_s: float | None
    ttft_excess_p90_s: float | None
    failures: int
    answers: int
    kv_share: float | None
    waiting: int | None


class Limit(Protocol):
    """How many streams one engine may run at once: always within 1 and its hard cap."""

    def current(self) -> int:
        """Return the limit in force, at least 1."""

    def observe(self, reading: LimitReading) -> None:
        """Learn from one window; the limit may move."""

    def adopt(self, hard_cap: int) -> None:
        """Take a new hard cap, 1 at least; a limit above it falls to it at once."""


class FixedLimit(Limit):
    """A constant number of streams."""

    def __init__(self, streams: int) -> None:
        self._streams = streams

    def current(self) -> int:
        """Return the constant."""
        return self._streams

    def observe(self, _reading: LimitReading) -> None:
        """Learn nothing."""

    def adopt(self, hard_cap: int) -> None:
        """Become this constant."""
        self._streams = hard_cap


def is_seen_beginning(arrival: Arrived) -> bool:
    """Return whether the first token of its answer is told when it comes; else its prompt is believed to be read in time."""
    return arrival.stream and not arrival.seen_late


def is_only_read(arrival: Arrived) -> bool:
    """Return whether the engine reads this and writes nothing: its answer is there once its prompt has been read."""
    most = arrival.max_tokens
    return most is not None and most == 0  # compiled, None would be compared with 0 as objects are


def is_seen_read(arrival: Arrived) -> bool:
    """Return whether something is told when its prompt has been read: its first token, or an answer that has no other."""
    most = arrival.max_tokens
    is_first_whole = most is not None and most == 1 and not (arrival.stream or arrival.seen_late)
    return is_first_whole or is_seen_beginning(arrival) or is_only_read(arrival)


# Where so many of the whole answers are left by their clients, too many are out at once. Of fewer other things are to blame:
# an engine that takes as long for one alone would only be given fewer of those that it answers (docs/policies/limits.md; with
# 0.3, set by hand, it answered a quarter).
_LEFT_SHARE: Final = 0.75


class _Share:
    """One attempt's share of the meters; the KV share may grow, the prefill share ends first."""

    def __init__(self, kv_tokens: int, prefill_tokens: int, streams: int, unread_tokens: int) -> None:
        self.kv_tokens = kv_tokens
        self.prefill_tokens, self.unread_tokens = prefill_tokens, unread_tokens
        self.streams = streams


class EngineGate:
    """Counts streams, KV tokens and unprefilled prompt tokens against their limits; None turns a meter off.

    `unread_tokens` are all that are to be read, of a prompt that is longer than its meter too. `stream_limit` is the
    limit in force, `most_streams` what it can ever be, None where it may be anything.
    """

    def __init__(
        self,
        limit: Limit,
        kv_limit: int | None = None,
        prefill_limit: int | None = None,
        most_streams: int | None = None,
    ) -> None:
        self.limit, self.stream_limit, self.most_streams = limit, limit.current(), most_streams
        self.kv_limit, self.prefill_limit = kv_limit, prefill_limit
        self.streams = self.kv_tokens = self.prefill_tokens = self.unread_tokens = 0
        self.share: EngineShare | None = None
        self._permits: dict[int, _Share] = {}
        self._level, self._halved_at, self._left = inf, -inf, Ewma(0.0, memory=ENOUGH)

    def current(self) -> int:
        """Return how many streams may run now: the limit, and no more than the share."""
        return self.stream_limit if self.share is None else min(self.stream_limit, self.share.streams)

    def learns(self, reading: LimitReading) -> None:
        """Let the limit learn from one window."""
        self.limit.observe(reading)
        self._follow()

    def _follow(self) -> None:
        self.stream_limit = int(min(float(self.limit.current()), self._level))

    def ended(self, sent_at: float, now: float, *, whole: bool, left: bool = False) -> None:
        """Halve the limit where nearly all clients leave their whole answers; answers raise it again, each a limit's part of one.

        Additive increase, multiplicative decrease (Chiu and Jain 1989), by what was sent since it was halved. Where too many
        are out at once all clients leave, as they hear nothing before the end, and no answer tells a length or a speed.
        """
        if sent_at < self._halved_at:
            return
        if whole:
            self._left.add(float(left))
        if left and self._left.mean > _LEFT_SHARE:
            self._level, self._halved_at = max(1.0, min(self._level, float(self.streams)) / 2.0), now
        elif not left and 2 * self.streams > self.stream_limit:
            self._level += 1.0 / self._level
        self._follow()

    def leased(self, share: EngineShare | None) -> None:
        """Count against this share from now on, None for the whole; a lower one only blocks admissions."""
        self.share = share

    def reconfigured(self, fresh: "EngineGate", *, new_limit: bool, most_streams: int) -> None:
        """Take the bounds of a fresh gate, and its limit where that is a `new_limit`; permits that are out stay out."""
        if new_limit:
            self.limit = fresh.limit
        else:
            self.limit.adopt(most_streams)
        self._follow()
        self.kv_limit, self.prefill_limit = fresh.kv_limit, fresh.prefill_limit
        self.most_streams = fresh.most_streams

    def streams_of(self, arrival: Arrived) -> int:
        """Return how many streams this request takes: one for each sequence that the engine makes of it.

        A list that is only read (embeddings, scores) and is longer than the cap takes all of them and runs alone: its engine
        works it off in rounds, and nothing else waits in there with it.
        """
        streams, most = arrival.answers, self.most_streams
        if streams > 1 and most is not None and is_only_read(arrival):
            return min(streams, most)
        return streams

    def clip(self, kv_tokens: int, prefill_tokens: int) -> tuple[int, int]:
        """Return the reservation cut to what the meters can ever hold.

        A generous `max_tokens`, or a prompt longer than the prefill meter, then runs alone instead of never.
        """
        kv_limit = self.kv_limit
        return kv_tokens if kv_limit is None else min(kv_tokens, kv_limit), self._metered(prefill_tokens)

    def _metered(self, prefill_tokens: int) -> int:
        limit = self.prefill_limit
        return prefill_tokens if limit is None else min(prefill_tokens, limit)

    def fits(self, prompt_tokens: int, streams: int = 1) -> bool:
        """Return whether a prompt of this size and one output token could ever run here, in so many streams."""
        if self.most_streams is not None and streams > self.most_streams:
            return False
        return self.kv_limit is None or prompt_tokens < self.kv_limit

    def has_room(self, kv_tokens: int, prefill_tokens: int, streams: int = 1) -> bool:
        """Return whether a permit of this size, clipped, would be given now: an empty meter takes any that fits."""
        if self.streams and self.streams + streams > self.stream_limit:
            return False
        if self.share is not None and not self._is_within(self.share, kv_tokens, prefill_tokens, streams):
            return False
        kv_limit, prefill_limit = self.kv_limit, self.prefill_limit
        if kv_limit is not None and self.kv_tokens and self.kv_tokens + kv_tokens > kv_limit:
            return False
        if prefill_limit is None or not self.prefill_tokens:
            return True
        return self.prefill_tokens + prefill_tokens <= prefill_limit

    def _is_within(self, share: EngineShare, kv_tokens: int, prefill_tokens: int, streams: int) -> bool:
        """Return whether the share has room too; an empty meter takes no more than it, but where it is the whole limit."""
        is_alone = not self.streams and share.streams >= self.stream_limit
        if not is_alone and self.streams + streams > share.streams:
            return False
        kv_tokens, prefill_tokens = self.clip(kv_tokens, prefill_tokens)
        if share.kv_tokens is not None and self.kv_tokens + kv_tokens > share.kv_tokens:
            return False
        return share.prefill_tokens is None or self.prefill_tokens + prefill_tokens <= share.prefill_tokens

    def take(self, attempt: int, kv_tokens: int, prefill_tokens: int, streams: int = 1) -> None:
        """Give the attempt its permit; the caller has asked `has_room` at this very instant."""
        assert attempt not in self._permits, f"attempt {attempt} already has a permit"
        metered_tokens = self._metered(prefill_tokens)
        self._permits[attempt] = _Share(kv_tokens, metered_tokens, streams, prefill_tokens)
        self.streams += streams
        self.kv_tokens += kv_tokens
        self.prefill_tokens += metered_tokens
        self.unread_tokens += prefill_tokens

    def prefilled(self, attempt: int) -> bool:
        """Give back the prefill share: the prompt has been read; return whether it had one."""
        permit = self._permits.get(attempt)
        if permit is None or not (permit.unread_tokens or permit.prefill_tokens):
            return False
        self._reads_no_more(permit)
        return True

    def _reads_no_more(self, permit: _Share) -> None:
        self.prefill_tokens -= permit.prefill_tokens
        self.unread_tokens -= permit.unread_tokens
        permit.prefill_tokens = permit.unread_tokens = 0

    def grow(self, attempt: int, kv_tokens: int) -> None:
        """Raise the KV share to `kv_tokens` if it is larger; may pass the limit, which then blocks admissions."""
        permit = self._permits.get(attempt)
        if permit is not None and kv_tokens > permit.kv_tokens:
            self.kv_tokens += kv_tokens - permit.kv_tokens
            permit.kv_tokens = kv_tokens

    def kv_held(self, attempt: int) -> int:
        """Return the KV share of one attempt, 0 without a permit."""
        permit = self._permits.get(attempt)
        return 0 if permit is None else permit.kv_tokens

    def keeps(self, attempt: int) -> int:
        """End the permit, but for its memory; return the KV tokens that stay taken until `frees`."""
        permit = self._permits.pop(attempt)
        self.streams -= permit.streams
        self._reads_no_more(permit)
        return permit.kv_tokens

    def frees(self, kv_tokens: int) -> None:
        """Give back memory that outlived its permit."""
        self.kv_tokens -= kv_tokens

    def reads(self, attempt: int, prefill_tokens: int) -> None:
        """Raise the prefill share of a permit, whose prompt is read here after all; may pass the limit, as `grow` may."""
        permit = self._permits[attempt]
        self.prefill_tokens += prefill_tokens - permit.prefill_tokens
        self.unread_tokens += prefill_tokens - permit.unread_tokens
        permit.prefill_tokens = permit.unread_tokens = prefill_tokens

    def kv_left(self) -> float:
        """Return how many KV tokens are free, of its share where it has one; infinitely many where none are counted."""
        limit = self.kv_limit
        if limit is None:
            return inf
        if self.share is not None and self.share.kv_tokens is not None:
            limit = min(limit, self.share.kv_tokens)
        return float(max(0, limit - self.kv_tokens))

    def release(self, attempt: int) -> int | None:
        """End the permit and return the KV tokens that it had; None when there was none (it had ended before)."""
        permit = self._permits.get(attempt)
        if permit is None:
            return None
        del self._permits[attempt]  # compiled, both take half of what `pop` does
        self.streams -= permit.streams
        self.kv_tokens -= permit.kv_tokens
        self._reads_no_more(permit)
        return permit.kv_tokens


# The prior counts as so many departures: the measured rate leads after about a dozen. So many at most, or as many as streams
# run, make one sample of the spread: that all slow down together shows in four as well, and is known sooner.
_FEW: Final = 4.0
# The floor counts for so much. Rate and floor are estimates of one number, each off by some 7 % (lengths that vary as
# much as their mean, 200 of them): the larger of the two as they are would be 4 % too fast, and so would every hint.
FLOOR_SHARE: Final = 0.8


class DrainReading(NamedTuple):
    """Permits that end a second while a gate is full, and one standard deviation of the time that one takes.

    `usual_work_s` is how long one is usually out by the price list, and what is out is out `dearness` times as long;
    all of it rests on so many `departures`.
    """

    per_s: float
    spread_s: float
    usual_work_s: float
    dearness: float
    departures: float


class DrainRate:
    """Departures per second of one full gate, with the spread of the time that many of them take.

    A quiet system completes at its arrival rate, which says nothing about its capacity. Prior and floor are streams /
    E[service] (Little's law on the full gate), with the streams that it really ran while full: where its KV meter
    binds, fewer than its limit. The spread is that of permits about what was foreseen of each: gaps between departures
    are no chance where answers began together. It is taken over cycles of a few departures, so that what makes all of
    them slow shows.

    `usual_kv_tokens` is what a stream holds at its end, the mean over the time that streams were out: of such streams a
    memory that is full holds so many, however large those are that happen to run. 0 until one has ended.
    """

    def __init__(self, limit: int) -> None:
        self._departures = self._full_time_s = self._work_s = self._stayed_s = self._token_s = 0.0
        self._full_since: float | None = None
        self._cycle = Ewma(0.0, prior_samples=0.0)
        self._cycle_departures, self._cycle_s = 0, 0.0
        self._streams = Ewma(float(limit))
        self._by_memory = Ewma(0.0)

    @property
    def usual_kv_tokens(self) -> float:
        """How many KV tokens a stream usually holds."""
        return self._token_s / self._stayed_s if self._stayed_s else 0.0

    @property
    def is_bound_by_memory(self) -> bool:
        """Whether it is mostly memory that was full when the gate was."""
        return self._by_memory.mean > 0.5

    @property
    def full_streams(self) -> float:
        """How many streams run while the gate is full, on average; the limit until that was seen."""
        return self._streams.mean

    @property
    def is_full(self) -> bool:
        """Whether the gate has been full since its last departure."""
        return self._full_since is not None

    @property
    def spread_is_measured(self) -> bool:
        """Whether `spread_s` is more than a belief: one cycle has no deviation."""
        return self._cycle.samples > 1.0

    def became_full(self, now: float, streams: int, *, by_memory: bool = False) -> None:
        """The gate has no room left, with this many streams running; what is full is its memory, or another meter."""
        if self._full_since is None:
            self._full_since = now
            self._streams.add(float(streams))
            self._by_memory.add(by_memory)

    def stood_still(self, now: float) -> None:
        """What ended until now was not seen to: a full gate counts from here."""
        if self._full_since is not None:
            self._full_since = now

    def departed(
        self, now: float, work_s: float, foreseen_s: float, stayed_s: float, kv_tokens: float = 0.0
    ) -> None:
        """A permit has ended after `stayed_s`; counts only if the gate was full.

        `work_s` is what it took and `foreseen_s` what was foreseen, both by the price list; each of its streams had `kv_tokens`.
        """
        if self._full_since is None:
            return
        fade = 1.0 - 1.0 / MEMORY
        self._departures = self._departures * fade + 1.0
        self._full_time_s *= fade
        self._work_s = self._work_s * fade + work_s
        self._stayed_s = self._stayed_s * fade + stayed_s
        self._token_s = self._token_s * fade + stayed_s * kv_tokens
        self.left(now)
        dearness = self._stayed_s / self._work_s if self._work_s else 0.0
        self._cycle_departures += 1
        self._cycle_s += (stayed_s - dearness * foreseen_s) / self._streams.mean
        if self._cycle_departures >= self._cycle_size():
            self._cycle.add(self._cycle_s / self._cycle_departures)
            self._cycle_departures, self._cycle_s = 0, 0.0

    def _cycle_size(self) -> float:
        return min(self._streams.mean, _FEW)

    def left(self, now: float) -> None:
        """A permit has ended that says nothing of how long work takes: the full time counts, the departure does not."""
        if self._full_since is not None:
            self._full_time_s += max(0.0, now - self._full_since)
            self._full_since = None

    def per_s(self, service_s: float, floor_share: float = FLOOR_SHARE) -> float:
        """Return departures per second, so much of the floor at least, given the expected service time of one permit."""
        floor = self._streams.mean / max(service_s, 1e-6)
        time_s = self._full_time_s + _FEW / floor
        return max(floor_share * floor, (self._departures + _FEW) / time_s)

    def read(self, service_s: float, work_s: float, floor_share: float) -> DrainReading:
        """Return all of it at once, given what is believed of one permit: its time, and the same by the price list."""
        work_sum_s = max(1e-6, self._work_s + _FEW * work_s)
        return DrainReading(
            self.per_s(service_s, floor_share),
            self.spread_s(1.0, service_s),
            work_sum_s / (self._departures + _FEW),
            (self._stayed_s + _FEW * service_s) / work_sum_s,
            max(1.0, self._departures),
        )

    def spread_s(self, departures: float, service_s: float) -> float:
        """Return one standard deviation of the time that this many departures take; half a gap each until measured."""
        if not self.spread_is_measured:
            return sqrt(departures) * 0.5 / self.per_s(service_s, 1.0)
        return sqrt(departures * self._cycle_size()) * self._cycle.deviation
