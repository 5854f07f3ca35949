"""How big is it, and how long will it take?

Each estimator starts from what is believed and forgets what is old, as `measure.MEMORY` says; its numbers stand here,
once for all.
"""

from typing import Final

FEW_ANSWERS: Final = 8
"""What was believed before counts as so many answers, and of fewer answers no trend is concluded.

n answers are believed by n / (n + 8): Buehlmann, *Experience rating and credibility*, ASTIN Bulletin 1967, with one k for
all keys. A learned k served 0.1 +- 0.3 points of goodput more or fewer (`lab`, unknown lengths), and took 80 lines.
"""
USUAL_PROMPT_TOKENS: Final = 1000
"""A prompt before any was given: what is believed of reading counts as one of this length."""
MOST_NAMES: Final = 500
"""Models, and kinds of requests, that are known apart: clients choose the names (INV-5)."""
UNKNOWN_RATIO: Final = 2
"""What is more times as long as any before is tried, whatever is predicted, for no other way teaches it: a prompt by an idle engine, a whole answer."""
