"""Lifetimes where most still run: the mean of what has ended is too short, because the short ones end first.

Of a first crowd that is served side by side it is half of the truth after one mean life of lognormal lives (cv 1). What
still runs lasts longer than so far, and counts as that (the product-limit estimate: Kaplan and Meier 1958). Lives beyond
the longest that has ended follow an exponential tail.
"""

from collections.abc import Sequence
from math import log
from typing import Final

LEAST_ENDED: Final = 3
"""Fewer ends say nothing."""
LIVES: Final = 64
"""So many lives stand for all."""
# After so many ends for each that runs the mean of what has ended is a hundredth or two too short.
_TURNS: Final = 20


def say_enough(ended: int, running: int) -> bool:
    """Return whether the ends alone say how long lives are, beside so many that run."""
    return ended >= _TURNS * max(1, running)


def lifetimes(ended: Sequence[float], running: Sequence[float], count: int = LIVES) -> list[float]:
    """Return `count` lives, ascending, at equal steps of the distribution of all.

    `ended` are lives and `running` lives so far, both ascending; `ended` is not empty.
    """
    lives: list[float] = []
    at_risk, left, younger = len(ended) + len(running), 1.0, 0
    for life in ended:
        while younger < len(running) and running[younger] < life:
            younger += 1
            at_risk -= 1
        left *= 1.0 - 1.0 / at_risk
        at_risk -= 1
        while len(lives) < count and (len(lives) + 0.5) / count <= 1.0 - left:
            lives.append(life)
    longest, older = ended[-1], running[younger:]
    mean = (sum(ended, 0.0) + sum(running, 0.0)) / len(ended)
    if older:
        mean += sum(older, 0.0) / len(older) - longest
    tail = [longest + mean * log(left * count / (count - step - 0.5)) for step in range(len(lives), count)]
    return lives + tail
