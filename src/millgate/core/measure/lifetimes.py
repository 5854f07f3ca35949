"""How long do they last, when most have only begun? What has ended says it too short: the short ones end first.

Of a first crowd that is served side by side the mean of those that have ended is a third of the truth when most have not, half
of it after one mean life of lognormal ones (cv 1), and still 0.84 of it after five. What still runs is known to last longer
than it has so far, and counts as that (the product-limit estimate: Kaplan and Meier 1958). What lasts longer than all
that has ended is taken to end as those did, so many for so much of all their time (an exponential tail).
"""

from collections.abc import Sequence
from math import log
from typing import Final

LEAST_ENDED: Final = 3
"""Of fewer ends nothing is to be concluded."""
LIVES: Final = 64
"""So many lives stand for all."""
# After twenty ends for each that runs those that have ended are a hundredth or two too short.
_TURNS: Final = 20
_FEWEST: Final = 16
_ROUNDING: Final = 1e-9


def say_enough(ended: int, running: int) -> bool:
    """Return whether so many that have ended say enough by themselves beside those that run."""
    return ended >= max(_FEWEST, _TURNS * running)


def lifetimes(ended: Sequence[float], running: Sequence[float], count: int = LIVES) -> list[float]:
    """Return so many lives, ascending, that stand for all: those at equal steps of their distribution.

    `ended` and `running` are lives, and lives so far, ascending; something must have ended.
    """
    lives: list[float] = []
    at_risk, left, younger = len(ended) + len(running), 1.0, 0
    for life in ended:
        while younger < len(running) and running[younger] < life:
            younger += 1
            at_risk -= 1
        left *= 1.0 - 1.0 / at_risk
        at_risk -= 1
        while len(lives) < count and (len(lives) + 0.5) / count <= 1.0 - left + _ROUNDING:
            lives.append(life)
    longest, older = ended[-1], running[younger:]
    mean = (sum(ended, 0.0) + sum(running, 0.0)) / len(ended)
    if older:
        mean += sum(older, 0.0) / len(older) - longest
    tail = [longest + mean * log(left * count / (count - step - 0.5)) for step in range(len(lives), count)]
    return lives + tail
