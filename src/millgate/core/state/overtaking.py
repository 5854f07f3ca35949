"""How much longer a line of several tenants takes than it says, learned by what became of promises.

Fairness lets a newcomer whose tenant has no place stand before places that are already promised, and nobody knows how
many will come. So the waits of such a line are stretched until nine of ten who come back when told are let in; and less as
soon as newcomers find a stream free while others, who were told to come later, are away.
"""

from typing import Final

# What an outcome weighs, in seconds of permits: with twice as much the share swings where hints are long (the outcome of one
# is known when it is over), with half as much it is not learned within minutes. Of ten outcomes one may be broken.
_WEIGHT_S: Final = 0.03
_BROKEN_SHARE: Final = 0.1
# No wait is more than doubled.
_MOST: Final = 1.0


class Overtaking:
    """The share by which waits are stretched, 0 to 1; `per_s` is how many permits a second end."""

    __slots__ = ("share",)

    def __init__(self) -> None:
        self.share = 0.0

    def was_kept(self, per_s: float) -> None:
        """Learn that somebody who came back when told was let in."""
        self._move(-_BROKEN_SHARE / per_s)

    def was_broken(self, per_s: float) -> None:
        """Learn that somebody who came back when told was not."""
        self._move((1.0 - _BROKEN_SHARE) / per_s)

    def was_idle(self, per_s: float) -> None:
        """Learn that a newcomer found a stream free while others had been told to come later."""
        self._move(-1.0 / per_s)

    def _move(self, by_s: float) -> None:
        share = self.share + _WEIGHT_S * by_s
        self.share = 0.0 if share < 0.0 else min(share, _MOST)
