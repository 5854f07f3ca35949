"""What a run was worth: pure arithmetic over its users' stories and the engine's own counters.

Times come in as real seconds and leave as engine seconds (real seconds x time scale), so that a scaled run reads
like the unscaled one.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from math import ceil
from typing import Any, NamedTuple

from millgate.demos.users import Story, UserEnding

GOOD_MEANS = "finished whole, with the first token within {slo_s:g} s of the request's first attempt"
AMPLIFICATION_MEANS = "attempts per request"
TTFT_MEANS = "from the request's first attempt to its first token, of those that got one"

SCALE_MEANS = "Times are engine seconds (real seconds x time scale); the gate's own constants are not scaled."


class EngineCounts(NamedTuple):
    """The engine's own counters over one run.

    Tokens generated, those of them for departed clients, prompt tokens prefilled, most sequences there at once, waiting
    ones included.
    """

    generated_tokens: int
    wasted_tokens: int
    prefilled_tokens: int
    peak_inflight: int


class Score(NamedTuple):
    """One run's result; times are engine seconds, shares within 0..1, None where nothing was there to measure."""

    requests: int
    good: int
    good_share: float
    goodput_per_s: float
    retry_amplification: float
    wasted_tokens: int
    wasted_token_share: float
    wasted_prefill_share: float
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    peak_inflight: int
    endings: dict[str, int]
    yields: dict[str, int]
    users_late_s: float

    def rounded(self) -> dict[str, Any]:
        """Return it as a record with at most six places after the point, for JSON."""
        return {
            name: round(value, 6) if isinstance(value, float) else value
            for name, value in self._asdict().items()
        }


def score(
    stories: Sequence[Story], counts: EngineCounts, *, slo_s: float, window_s: float, time_scale: float
) -> Score:
    """Judge one run: `slo_s` and `window_s` (how long requests arrived) are engine seconds."""
    good = sum(1 for story in stories if is_good(story, slo_s / time_scale))
    used = sum(story.prompt_tokens for story in stories if story.ending is UserEnding.WHOLE)
    first_tokens = [story.first_token_s * time_scale for story in stories if story.first_token_s is not None]
    return Score(
        requests=len(stories),
        good=good,
        good_share=share(good, len(stories)),
        goodput_per_s=good / window_s,
        retry_amplification=share(sum(story.attempts for story in stories), len(stories)),
        wasted_tokens=counts.wasted_tokens,
        wasted_token_share=share(counts.wasted_tokens, counts.generated_tokens),
        wasted_prefill_share=max(0.0, 1.0 - share(used, counts.prefilled_tokens))
        if counts.prefilled_tokens
        else 0.0,
        ttft_p50_s=quantile(first_tokens, 0.5),
        ttft_p99_s=quantile(first_tokens, 0.99),
        peak_inflight=counts.peak_inflight,
        endings=tally(story.ending.value for story in stories),
        yields=tally(reason for story in stories for reason in story.reasons),
        users_late_s=max((story.late_s for story in stories), default=0.0) * time_scale,
    )


def is_good(story: Story, slo_s: float) -> bool:
    """Tell whether a request finished whole with its first token within `slo_s` real seconds of its first attempt."""
    return (
        story.ending is UserEnding.WHOLE and story.first_token_s is not None and story.first_token_s <= slo_s
    )


def share(part: float, whole: float) -> float:
    """Divide, with 0 for a share of nothing."""
    return part / whole if whole else 0.0


def quantile(values: Iterable[float], at: float) -> float | None:
    """Return the smallest value that a share `at` of the values does not exceed; None of no values."""
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[max(0, ceil(at * len(ordered)) - 1)]


def tally(words: Iterable[str]) -> dict[str, int]:
    """Count words, in alphabetical order."""
    return dict(sorted(Counter(words).items()))
