"""How big is it, and how long will it take?

Each estimator starts from what is believed and forgets what is old; the numbers of both stand here, once for all.
"""

from typing import Final

MEMORY_ANSWERS: Final = 200
"""An old answer weighs 1/e after so many: a 95th percentile is steady, and a new release shows within a minute of traffic."""
FEW_ANSWERS: Final = 8
"""What was believed before counts as so many answers, and of fewer answers no trend is concluded.

n answers are believed by n / (n + 8): Buehlmann, *Experience rating and credibility*, ASTIN Bulletin 1967, with one k for
all keys. A learned k served 0.1 +- 0.3 points of goodput more or fewer (`lab`, unknown lengths), and took 80 lines.
"""
USUAL_PROMPT_TOKENS: Final = 1000
"""What is believed of reading before anything was read counts as one prompt of this length."""
MOST_NAMES: Final = 500
"""Models, and kinds of requests, that are known apart: clients choose the names (INV-5)."""
