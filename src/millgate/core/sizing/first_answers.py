"""What the first answers of a lane say of length, when most of it still runs.

The mean of those that have ended is far too small at first, for the short ones end first: a third of the truth when most have
not ended, half of it after one mean life of lognormal ones (cv 1), and still 0.84 of it after five. The tokens that running
answers have so far count as well: (tokens of all, ended and running) / ended is the most likely mean of lives that end at
any time alike, where some are cut off by the time of looking (Epstein and Sobel, *Life testing*, JASA 1953). The mean is
stretched to it until so many have ended for each that runs that it makes no difference.
"""

from typing import Final

from millgate.core.measure.lifetimes import LEAST_ENDED, say_enough

# A few short answers that end first may say anything.
_MOST_STRETCH: Final = 1.5


class FirstAnswers:
    """The answers of one lane and model since its first; lengths are output tokens.

    A mean of answers that have ended is multiplied by `stretch`. `has_news` says whether one has ended since the last look;
    when it `is_over`, the ended ones say enough.
    """

    __slots__ = ("_ended", "_running", "_running_tokens", "_tokens", "has_news", "is_over", "stretch")

    def __init__(self) -> None:
        self._ended = self._tokens = self._running = self._running_tokens = 0
        self.has_news = self.is_over = False
        self.stretch = 1.0

    def ended(self, output_tokens: int) -> None:
        """Take note of a whole answer."""
        self._ended += 1
        self._tokens += output_tokens
        self.has_news = True

    def runs(self, output_tokens: int) -> None:
        """Take note, for the next look, of an answer that runs and is so long so far."""
        self._running += 1
        self._running_tokens += output_tokens

    def look(self) -> None:
        """Set `stretch` by the answers that run, and forget them."""
        running, running_tokens = self._running, self._running_tokens
        self._running = self._running_tokens = 0
        self.has_news = False
        self.is_over = say_enough(self._ended, running)
        self.stretch = 1.0
        if not self.is_over and self._ended >= LEAST_ENDED:
            self.stretch = min(_MOST_STRETCH, 1.0 + running_tokens / self._tokens)
