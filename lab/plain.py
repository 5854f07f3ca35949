"""The plain rules that stand in the place of refinements."""

from typing import Any

from millgate.core.governor.assess import LAST_RETRY
from millgate.core.queues.short_first import ShortFirstOrder
from millgate.core.tickets import ClientKind

_UNLIMITED = 1 << 60
_begin_short_first = ShortFirstOrder.__init__


def nothing(*_arguments: Any, **_named: Any) -> None:
    """Do nothing."""


def zero(*_arguments: Any) -> float:
    """Return 0."""
    return 0.0


def one(*_arguments: Any) -> float:
    """Return 1."""
    return 1.0


def overtaken_without_bound(order: ShortFirstOrder, _max_overtakes: int = 0) -> None:
    """Let shorter work pass the oldest for ever."""
    _begin_short_first(order, _UNLIMITED)


def given(_reading: Any, tokens: int, _now: float) -> int:
    """Count a prompt as unread until its first token."""
    return tokens


def wait_alone(_draft: Any, wait_s: float, late_s: float, _now: float) -> tuple[float, float, float]:
    """Return the wait as if no shorter work came."""
    return wait_s, late_s, wait_s + late_s


def aim_at_the_mean(expected_s: float, _late_s: float, _per_s: float) -> float:
    """Ask a client back when its permit is expected."""
    return expected_s


def censored_mean(first: Any, mean: float) -> float:
    """Return (tokens of all, ended and running) / ended, over the mean of the ended, at most 2."""
    ended, running = first._ended, first._running  # noqa: SLF001 - the lab replaces the method
    first._running, first.has_news = [], False  # noqa: SLF001 - the same
    first.is_over = len(ended) >= max(16, 20 * len(running))
    if first.is_over or not ended:
        return 1.0
    stretch: float = (sum(ended) + sum(running)) / len(ended) / mean
    return min(2.0, max(1.0, stretch))


def eight_answers(_credibility: Any, _key: Any, _distance: float, answers: float, _below: float) -> float:
    """Believe a key by n / (n + 8)."""
    return answers / (answers + 8.0)


def class_of_bound(max_tokens: int | None, _prompt_tokens: int) -> int:
    """Return one number for the log2 class of `max_tokens` alone."""
    return 0 if max_tokens is None else max_tokens.bit_length() << 6


def first_or_last(draft: Any) -> int:
    """Return the last retry's kind or, for all others, the first's."""
    return ClientKind.LAST_RETRY if (draft.arrival.retry_count or 0) >= LAST_RETRY else ClientKind.FIRST


def first_or_returned(draft: Any) -> int:
    """Return one kind for clients that returned before and one for all others, last retries among them."""
    return ClientKind.RETURNED if draft.recognised else ClientKind.FIRST
