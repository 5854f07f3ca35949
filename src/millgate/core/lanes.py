"""Which lane goes next, and what may it not borrow?

Three rules between lanes, in this order. *Headroom*: so many streams of each lane are not lent, whatever
the band. *Band*: a smaller number goes first. *Share*: within a band the lane that runs least for its share goes
next. The last one keeps a strict promise. Shares are parts of their sum, a lane under its share of the limit has
running / part < limit, one at or over it running / part >= limit, so the first is never passed by the second.
"""

from collections.abc import Sequence

from millgate.core.settings import LEAST_LIMIT, LaneSettings


class _Claim:
    """One lane's settings and what it has of them now; `position` is its place in the configuration."""

    def __init__(self, settings: LaneSettings, position: int) -> None:
        self.settings = settings
        self.position = position
        self.running = self.headroom = 0

    def precedence(self) -> tuple[float, int]:
        """Return its rank where headroom is short: the lane that wants least for its share comes first.

        In proportion to what is wanted a lane with a large claim would take the headroom of the others; smallest
        first covers the most lanes in full.
        """
        return self.settings.headroom / self.settings.share, self.position

    def turn(self) -> tuple[int, float, float, int]:
        """Return its rank among lanes that wait: band, then running for its share, then the larger share."""
        share = self.settings.share
        return self.settings.band, self.running / share, -share, self.position


class LaneShares:
    """The lane that goes next, and what each must leave free; counts streams of one pool of engines.

    A lane's `share`, above 0, is a part of the sum of all shares; a smaller `band` is more important.

    A lane alone costs two comparisons, and so does one of many while nothing waits and it `lends_all`: no lane keeps
    streams for itself.
    """

    def __init__(self, lanes: Sequence[LaneSettings]) -> None:
        self._claims: dict[str, _Claim] = {}
        self.reconfigure(lanes)

    def reconfigure(self, lanes: Sequence[LaneSettings]) -> None:
        """Put new settings in force; every lane that still holds or runs anything must be named, and goes on."""
        old = self._claims
        self._claims = {}
        for position, settings in enumerate(lanes):
            claim = self._claims[settings.name] = old.get(settings.name) or _Claim(settings, position)
            claim.settings, claim.position = settings, position
        self._alone = len(self._claims) == 1
        self.lends_all = not any(lane.headroom for lane in lanes)
        # No limit: what is granted now is granted anew.
        self._limit, self._unused = -1, 0

    def entered(self, lane: str, streams: int = 1) -> None:
        """One attempt of this lane was given a permit of so many streams."""
        claim = self._claims[lane]
        if claim.running < claim.headroom:
            self._unused -= min(streams, claim.headroom - claim.running)
        claim.running += streams

    def left(self, lane: str, streams: int = 1) -> None:
        """One permit of this lane, of so many streams, has ended."""
        claim = self._claims[lane]
        claim.running -= streams
        if claim.running < claim.headroom:
            self._unused += min(streams, claim.headroom - claim.running)

    def reserved_for_others(self, lane: str, limit: int) -> int:
        """Return how many free streams this lane must leave to others; 0 while it has headroom of its own left."""
        if self._alone:
            return 0
        self._grant(limit)
        claim = self._claims[lane]
        return 0 if claim.running < claim.headroom else self._unused

    def choose(self, waiting: Sequence[str], free: int, limit: int) -> str | None:
        """Return the lane that may take the next of `free` streams, of those with waiting work; None if none may."""
        if not waiting or free <= 0:
            return None
        if self._alone:
            return waiting[0]
        claims = self._claims
        for lane in sorted(waiting, key=lambda name: claims[name].turn()):
            if free > self.reserved_for_others(lane, limit):
                return lane
        return None

    def running(self, lane: str) -> int:
        """Return how many streams of this lane are out."""
        return self._claims[lane].running

    def headroom(self, lane: str, limit: int) -> int:
        """Return the streams of this lane that are not lent, used or not."""
        if not self._alone:
            self._grant(limit)
        return self._claims[lane].headroom

    def _grant(self, limit: int) -> None:
        """Grant every lane its headroom anew where the limit has changed; what was granted last is kept to save time only."""
        if limit == self._limit:
            return
        self._limit = limit
        claims = list(self._claims.values())
        room = limit // 2 if limit >= LEAST_LIMIT else 0  # a limit that small has no streams to spare
        for claim in sorted(claims, key=_Claim.precedence):
            claim.headroom = min(claim.settings.headroom, room)
            room -= claim.headroom
        self._unused = sum([max(0, claim.headroom - claim.running) for claim in claims])
