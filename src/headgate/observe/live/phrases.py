"""Times, shares and decisions in plain words, for people in a hurry."""

from headgate.core.decisions import Admit, Decision, Ended, Hold, Yield
from headgate.core.words import Reason

# What `value` and `bound` of a refusal count (core/decisions): seconds here, else attempts, streams or tokens.
_IN_SECONDS = frozenset({Reason.TOO_LATE, Reason.EXPIRED})


def seconds(value: float) -> str:
    """Return a time as people read it: 40 ms, 1.2 s, 42 s, 3 min, 2 h."""
    if value < 0.0005:
        return "0 s"
    if value < 0.0995:
        return f"{1000 * value:.0f} ms"
    if value < 9.95:
        return f"{value:.1f} s"
    if value < 119.5:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7170 else f"{value / 3600:.0f} h"


def percent(share: float) -> str:
    """Return a share as whole per cent, and never "0 %" for something that is there."""
    return "under 1 %" if 0.0 < share < 0.005 else f"{100 * share:.0f} %"


def decision_words(decision: Decision) -> str:
    """Return one decision with the numbers that made it."""
    if isinstance(decision, Admit):
        return _admitted(decision)
    if isinstance(decision, Hold):
        return f"waits at place {decision.place}, about {seconds(decision.expected_wait_s)}"
    if isinstance(decision, Yield):
        return _yielded(decision)
    if isinstance(decision, Ended):
        return _ended(decision)
    return f"stopped while running; told to come back in {seconds(decision.retry_after_s)}"


def _admitted(decision: Admit) -> str:
    waited = f"after {seconds(decision.waited_s)}" if decision.waited_s > 0.0 else "at once"
    legs = ", ".join(
        f"{leg.kv_tokens} KV tokens" if leg.kv_tokens else f"{leg.prompt_tokens} prompt tokens"
        for leg in decision.legs
    )
    would = f"; a protecting gate would have refused: {decision.would.value}" if decision.would else ""
    return f"runs {waited}, first token expected in {seconds(decision.expected_ttft_s)} ({legs}){would}"


def _yielded(decision: Yield) -> str:
    hint = f"come back in {seconds(decision.retry_after_s)}" if decision.retry else "no use coming back"
    if decision.reason in _IN_SECONDS:
        return f"would take {seconds(decision.value)}, {seconds(max(0.0, decision.bound))} left; {hint}"
    if decision.value or decision.bound:
        return f"{decision.value:.4g} against {decision.bound:.4g}; {hint}"
    return hint


def _ended(decision: Ended) -> str:
    cause = f" ({decision.cause.value})" if decision.cause else ""
    ttft = "" if decision.ttft_s is None else f", first token at {seconds(decision.ttft_s)}"
    tokens = f"{decision.prompt_tokens} tokens read, {decision.output_tokens} written"
    return f"{seconds(decision.total_s)} in all{cause}{ttft}; {tokens}"
