"""What the first answers of a lane say of length, when most of it still runs.

The mean of those that have ended is far too small at first (`measure/lifetimes`): hints that rest on it were 40 % too
short in the first seconds, and still 10 % after ten mean answers. What all say together is right on average, but of a few
it varies much. So of n ended their mean is stretched towards it by n / (n + 32) (of the logarithm), which is off by less
than either, until so many have ended for each that runs that it makes no difference.
"""

from bisect import insort
from typing import Final

from millgate.core.measure.lifetimes import LEAST_ENDED, LIVES, lifetimes, say_enough

# Eight bytes and a reference each; of more streams the first answers are looked at for less long.
_MOST: Final = 4096
# Root mean squares of the error, 8 streams, cv 1, after 1, 2 and 5 mean answers: 0.46, 0.28 and 0.14 (the ended 0.53, 0.37 and
# 0.20; a test says so). 8 to 16 err less still, but as much too long as too short, and a hint that is too long idles a
# stream: with 12, at 1.3 times the capacity, 1.9 instead of 1.65 % of the time after twenty seconds (this changed by hand).
_DOUBT: Final = 32.0
# A few short answers that end first may say anything.
_MOST_STRETCH: Final = 2.0


class FirstAnswers:
    """The answers of one lane and model since its first; lengths are output tokens.

    `has_news` says whether one has ended since the last reading. It `is_over` when it has nothing more to say.
    """

    __slots__ = ("_ended", "_running", "has_news", "is_over")

    def __init__(self) -> None:
        self._ended: list[int] = []
        self._running: list[int] = []
        self.has_news = self.is_over = False

    def ended(self, output_tokens: int) -> None:
        """Take note of a whole answer."""
        insort(self._ended, output_tokens)
        self.has_news = True

    def runs(self, output_tokens: int) -> None:
        """Take note, for the next reading, of an answer that runs and is so long so far."""
        self._running.append(output_tokens)

    def stretch(self, mean: float) -> float:
        """Return what this mean of those that have ended has to be multiplied by, and forget those that run."""
        ended, running = self._ended, self._running
        self._running, self.has_news = [], False
        self.is_over = len(ended) >= _MOST or say_enough(len(ended), len(running))
        if self.is_over or len(ended) < LEAST_ENDED:
            return 1.0
        lives = lifetimes(ended, sorted(running))
        believed = len(ended) / (len(ended) + _DOUBT)
        stretch: float = max(1.0, sum(lives, 0.0) / LIVES / mean) ** believed
        return min(_MOST_STRETCH, stretch)
