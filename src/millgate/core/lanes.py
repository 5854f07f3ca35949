"""Which class of traffic is this, whose turn is it, and what may it not borrow?

Three rules between lanes, in this order. *Headroom*: so many streams of each lane are lent to nobody, whatever
the band. *Band*: a smaller number goes first. *Share*: within a band the lane that runs least for its share goes
next. The last one keeps a strict promise: shares are parts of their sum, a lane under its share of the limit has
running / part < limit, one at or over it running / part >= limit, so the first is never passed by the second.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

LaneT = TypeVar("LaneT")

# Headroom as design section 4 (bulkheads) sets it: all of it together is at most half the limit, and a limit that
# small has no streams to spare.
_LEAST_LIMIT_WITH_HEADROOM = 4
# What a lane keeps free without being told: the concurrency that it exceeds for 1 % of the time, over ten minutes.
_LEARNED_QUANTILE = 0.99
_LEARNED_BUCKETS = 10
_LEARNED_BUCKET_S = 60.0
# Learned headroom is read anew this often: a second's walk is nothing, one at every arrival would be.
_LEARNED_FOR_S = 1.0
# Counts below this have a level of their own; above it 16 levels an octave, an error of at most 1/16.
_EXACT_LEVELS = 32


def choose_lane(lanes: Mapping[str, LaneT], hint: str | None, default: LaneT) -> LaneT:
    """Return the lane that the door named, or the default where it named none that exists.

    The door has already made sure that the client may use the lane; an unknown name is an old configuration's
    and must not lose the request.
    """
    if hint is None:
        return default
    return lanes.get(hint, default)


def _level_of(count: int) -> int:
    """Return the level of a count: itself below 32, then 16 a doubling."""
    octave = max(0, count.bit_length() - 5)
    return 16 * octave + (count >> octave)


def _most_at(level: int) -> int:
    """Return the largest count of a level."""
    if level < _EXACT_LEVELS:
        return level
    octave = level // 16 - 1
    return ((level - 16 * octave + 1) << octave) - 1


class Concurrency:
    """A count that goes up and down, and its time-weighted quantiles over the last nine to ten minutes.

    Each minute keeps the seconds spent at each level. Time at a level, not samples at arrivals, since what is
    asked is how often a reserved stream would have been in use; a histogram, not the maximum of each minute, since
    one burst a minute must not reserve its peak for ten. Memory: at most 11 minutes x 32 + 16 log2(peak / 32)
    levels.
    """

    __slots__ = ("_current", "_minutes", "_past", "_rolls_at", "_since", "count")

    def __init__(self, now: float) -> None:
        self.count = 0
        self._since = now
        self._rolls_at = now + _LEARNED_BUCKET_S
        self._current: list[float] = []
        self._minutes: deque[list[float]] = deque(maxlen=_LEARNED_BUCKETS - 1)
        self._past: list[float] = []

    def twin(self) -> "Concurrency":
        """Return another that has seen the same."""
        twin = Concurrency(self._since)
        twin.count, twin._rolls_at = self.count, self._rolls_at
        twin._current, twin._past = list(self._current), self._past
        twin._minutes.extend(self._minutes)
        return twin

    def change(self, step: int, now: float) -> None:
        """Move the count by this step."""
        self._pass_time(now)
        self.count += step

    def quantile(self, share: float, now: float) -> int:
        """Return the least count that was not exceeded for this share of the time; 0 before any time has passed."""
        self._pass_time(now)
        allowed_s = (1.0 - share) * (sum(self._past, 0.0) + sum(self._current, 0.0))
        for level in range(max(len(self._past), len(self._current)) - 1, 0, -1):
            allowed_s -= _at(self._past, level) + _at(self._current, level)
            if allowed_s < 0.0:
                return _most_at(level)
        return 0

    def _pass_time(self, now: float) -> None:
        if now >= self._rolls_at:
            self._roll(now)
        self._spend(now)

    def _spend(self, until: float) -> None:
        level = _level_of(self.count)
        seconds = self._current
        if level >= len(seconds):
            seconds += [0.0] * (level + 1 - len(seconds))
        seconds[level] += until - self._since
        self._since = until

    def _roll(self, now: float) -> None:
        """Close every minute that is over; of a longer silence only the window is walked."""
        window_s = _LEARNED_BUCKETS * _LEARNED_BUCKET_S
        if now - self._rolls_at > window_s:
            self._current = []
            self._since = self._rolls_at = now - window_s
        while now >= self._rolls_at:
            self._spend(self._rolls_at)
            self._minutes.append(self._current)
            self._current = []
            self._rolls_at += _LEARNED_BUCKET_S
        longest = max(len(minute) for minute in self._minutes)
        self._past = [sum([_at(minute, level) for minute in self._minutes]) for level in range(longest)]


def _at(seconds: list[float], level: int) -> float:
    return seconds[level] if level < len(seconds) else 0.0


class LaneShareSettings(NamedTuple):
    """What a lane may claim: a weight above or at 0, streams that it lends to nobody, and its band.

    `share` is a part of the sum of all shares; 0 promises nothing. `headroom` None is learned. A smaller `band`
    is more important.
    """

    name: str
    share: float = 1.0
    headroom: int | None = None
    band: int = 0


class _Claim:
    """One lane's settings and what it has of them now; `position` is its place in the configuration."""

    __slots__ = ("concurrency", "headroom", "position", "running", "settings", "wanted")

    def __init__(self, settings: LaneShareSettings, position: int, now: float) -> None:
        self.settings = settings
        self.position = position
        self.running = 0
        self.wanted = self.headroom = 0
        self.concurrency = Concurrency(now)

    def want(self, now: float) -> int:
        """Return the headroom that is configured or learned."""
        if self.settings.headroom is not None:
            return self.settings.headroom
        return self.concurrency.quantile(_LEARNED_QUANTILE, now)

    def precedence(self) -> tuple[bool, float, int]:
        """Return its rank where headroom is short: configured before learned, then who wants least for its share.

        Not in proportion to what is wanted: a flood wants most, and would so take the headroom of the lanes that
        it floods. Smallest first covers the most lanes in full.
        """
        share = self.settings.share
        return (
            self.settings.headroom is None,
            self.wanted / share if share > 0.0 else float("inf"),
            self.position,
        )

    def turn(self) -> tuple[int, float, float, int]:
        """Return its rank among lanes that wait: band, then running for its share, then the larger share."""
        share = self.settings.share
        used = self.running / share if share > 0.0 else float("inf")
        return self.settings.band, used, -share, self.position


class LaneShares:
    """Who goes next among lanes, and what each must leave free; counts streams of one pool of engines.

    A lane alone costs two comparisons. Raises ValueError where a share or a headroom is negative.
    """

    __slots__ = ("_alone", "_claims", "_limit", "_read_at", "_unused")

    def __init__(self, lanes: Sequence[LaneShareSettings], now: float) -> None:
        self._claims: dict[str, _Claim] = {}
        self.reconfigure(lanes, now)

    def reconfigure(self, lanes: Sequence[LaneShareSettings], now: float) -> None:
        """Put new settings in force; every lane that still holds or runs anything must be named, and goes on."""
        _check(lanes)
        old = self._claims
        self._claims = {}
        for position, settings in enumerate(lanes):
            claim = self._claims[settings.name] = old.get(settings.name) or _Claim(settings, position, now)
            claim.settings, claim.position = settings, position
            claim.concurrency.change(claim.running - claim.concurrency.count, now)
        self._alone = len(self._claims) == 1
        self._limit, self._unused, self._read_at = 0, 0, now

    def entered(self, lane: str, now: float, streams: int = 1) -> None:
        """One attempt of this lane was given a permit of so many streams."""
        claim = self._claims[lane]
        if not self._alone:
            claim.concurrency.change(streams, now)
            if claim.running < claim.headroom:
                self._unused -= min(streams, claim.headroom - claim.running)
        claim.running += streams

    def left(self, lane: str, now: float, streams: int = 1) -> None:
        """One permit of this lane, of so many streams, has ended."""
        claim = self._claims[lane]
        claim.running -= streams
        if not self._alone:
            claim.concurrency.change(-streams, now)
            if claim.running < claim.headroom:
                self._unused += min(streams, claim.headroom - claim.running)

    def reserved_for_others(self, lane: str, limit: int, now: float) -> int:
        """Return how many free streams this lane must leave to others; 0 while it has headroom of its own left."""
        if self._alone:
            return 0
        self._read(limit, now)
        claim = self._claims[lane]
        return 0 if claim.running < claim.headroom else self._unused

    def choose(self, waiting: Sequence[str], free: int, limit: int, now: float) -> str | None:
        """Return the lane that may take the next of `free` streams, of those with waiting work; None if none may."""
        if not waiting or free <= 0:
            return None
        if self._alone:
            return waiting[0]
        claims = self._claims
        for lane in sorted(waiting, key=lambda name: claims[name].turn()):
            if free > self.reserved_for_others(lane, limit, now):
                return lane
        return None

    def running(self, lane: str) -> int:
        """Return how many streams of this lane are out."""
        return self._claims[lane].running

    def headroom(self, lane: str, limit: int, now: float) -> int:
        """Return the streams of this lane that are lent to nobody, used or not."""
        if not self._alone:
            self._read(limit, now)
        return self._claims[lane].headroom

    def granted(self, lane: str) -> int:
        """Return the headroom that was last granted to this lane; changes nothing."""
        return self._claims[lane].headroom

    def undoing(self) -> Callable[[], None]:
        """Return what takes back everything read from here on: reading lets time pass, which mere looking must not."""
        known = self._limit, self._unused, self._read_at
        before = [
            (claim, claim.wanted, claim.headroom, claim.concurrency.twin()) for claim in self._claims.values()
        ]

        def undo() -> None:
            self._limit, self._unused, self._read_at = known
            for claim, wanted, headroom, concurrency in before:
                claim.wanted, claim.headroom, claim.concurrency = wanted, headroom, concurrency

        return undo

    def _read(self, limit: int, now: float) -> None:
        """Grant every lane its headroom anew: the limit has changed, or what was learned is a second old."""
        if limit == self._limit and now < self._read_at:
            return
        claims = list(self._claims.values())
        if now >= self._read_at:
            self._read_at = now + _LEARNED_FOR_S
            for claim in claims:
                claim.wanted = claim.want(now)
        self._limit = limit
        room = limit // 2 if limit >= _LEAST_LIMIT_WITH_HEADROOM else 0
        for claim in sorted(claims, key=_Claim.precedence):
            claim.headroom = min(claim.wanted, room)
            room -= claim.headroom
        self._unused = sum(max(0, claim.headroom - claim.running) for claim in claims)


def _check(lanes: Sequence[LaneShareSettings]) -> None:
    for lane in lanes:
        if lane.share < 0.0:
            raise ValueError(f"share of lane {lane.name} must be at least 0, not {lane.share}")
        if lane.headroom is not None and lane.headroom < 0:
            raise ValueError(f"headroom of lane {lane.name} must be at least 0, not {lane.headroom}")
