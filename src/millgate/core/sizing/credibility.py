"""How far is a key believed, and how far what lies below it? As far as keys have turned out to differ.

A key with n answers is believed by n / (n + k), k = variance within keys / variance between them (Buehlmann,
*Experience rating and credibility*, ASTIN Bulletin 1967). Where keys differ k is small and each speaks for itself.
Where they do not, what one had more than another was chance, and an order by it is an order by noise: k has to be
large. It is learned by moments (DerSimonian and Laird, *Meta-analysis in clinical trials*, 1986, without their term
of second order): each key's squared distance from what lies below it, in standard errors, is 1 on average where
chance alone is at work, and k = answers of all keys / (sum of squares - what chance explains).

Many keys that agree would drown the one that does not. So whoever is far off by its own account is believed by at
least 1 - what chance explains / its square (the non-negative garrote: Breiman, *Better subset regression*,
Technometrics 1995).
"""

from typing import Final

from millgate.core.measure.ewma import Ewma

# Variance of the logarithm of lengths inside one key: they scatter by a factor of two, e^0.7 (the virtual overload's
# by 1.8 to 3.3). It counts as much as twenty answers, and an old answer weighs 1/e after a thousand.
_PRIOR_SCATTER, _PRIOR_SCATTER_ANSWERS = 0.5, 20.0
_MEMORY_ANSWERS: Final = 1000.0
# Answers that are all equal scatter by a hundredth at least, or nothing would ever be chance.
_LEAST_SCATTER: Final = 1e-4
# Before keys can be compared, what lies below one counts as eight of its answers, and that belief as eight as well.
# Good users of a virtual overload over the first-come-first-served optimum with 4 / 12: 1.10 / 1.11 where prompts say
# nothing of answers, 1.45 / 1.38 where long prompts have short answers, for what is hardly served teaches little.
_PRIOR_WORTH: Final = 8.0
_PRIOR_ANSWERS: Final = 8.0
# Squared standard errors that chance explains: on average over keys, and of a single one (three errors).
_CHANCE_OF_ALL: Final = 1.5
_CHANCE_OF_ONE: Final = 9.0


class KeyStanding:
    """Where one key stood when it was last compared: its answers, and its squared distance in standard errors."""

    __slots__ = ("answers", "squares")

    def __init__(self) -> None:
        self.answers = self.squares = 0.0


class Credibility:
    """How much the keys above one level differ; errors and distances are differences of logarithms of lengths."""

    __slots__ = ("_answers", "_keys", "_scatter", "_squares")

    def __init__(self) -> None:
        self._scatter = Ewma(_PRIOR_SCATTER, memory=_MEMORY_ANSWERS, prior_samples=_PRIOR_SCATTER_ANSWERS)
        self._keys = 0
        self._answers = self._squares = 0.0

    def scattered(self, error: float, answers: float) -> None:
        """Learn how far one answer was from the word of its key, which rested on so many answers."""
        # A mean of n answers misses the next one by (n + 1) / n of the variance.
        self._scatter.add(error * error * answers / (answers + 1.0))

    def compare(self, key: KeyStanding, distance: float, answers: float, below_answers: float) -> float:
        """Take note of where a key stands now, and return how far it is believed, 0 to 1.

        `distance` is that of its word from the word of what lies below it; both rest on at least one answer.
        """
        variance = max(_LEAST_SCATTER, self._scatter.mean) * (1.0 / answers + 1.0 / below_answers)
        squares = distance * distance / variance
        self._keys += key.answers == 0.0
        self._answers += answers - key.answers
        self._squares += squares - key.squares
        key.answers, key.squares = answers, squares
        pooled = answers / (answers + self.worth_answers())
        return max(pooled, 1.0 - _CHANCE_OF_ONE / squares) if squares else pooled

    def worth_answers(self) -> float:
        """Return as how many of a key's own answers that counts which lies below it: k."""
        differing = max(0.0, self._squares - _CHANCE_OF_ALL * self._keys)
        return (self._answers + _PRIOR_ANSWERS) / (differing + _PRIOR_ANSWERS / _PRIOR_WORTH)

    def forget(self, key: KeyStanding) -> None:
        """Leave out a key that is dropped."""
        self._keys -= key.answers > 0.0
        self._answers -= key.answers
        self._squares -= key.squares
