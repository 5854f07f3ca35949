"""Where the shortest goes first, what waits is ranked anew while sizes are being learned.

A rank is made of a size that is foreseen. What came first was sized by what is presumed, and equal requests that come
after some answers by what was learned. A tenth less is worth ten seconds of age (`core/queues/short_first.py`), so the
first would be overtaken until their deadline.
"""

from itertools import islice
from typing import Final

from millgate.core.governor.assess import price, sizes_of
from millgate.core.governor.knowledge import Knowledge
from millgate.core.state.attempt import Request
from millgate.core.state.pool import LaneQueue

_MOST_RANKED: Final = 1_000
"""So many, next first. What stands behind them waits for long in any case."""

_LEAST_CHANGE: Final = 0.01
"""A hundredth is worth a second of age."""


def rank_anew(knowledge: Knowledge, queue: LaneQueue) -> None:
    """An answer has come through this queue: if it may have taught much, rank what waits by what is known now.

    Where overtakes are counted the order stays, for it bounds them itself.
    """
    if not queue.answered() or queue.offered is None or queue.settings.max_overtakes is not None:
        return
    for queued in list(islice(queue.order, _MOST_RANKED)):
        attempt = knowledge.attempts.by_number.get(queued.attempt)
        if attempt is None or attempt.request is not queued:
            return  # a queue of the configuration before, which nothing waits in any more
        request = attempt.request
        work_s = _work_s(knowledge, request)
        if request.engine_s and abs(work_s - request.work_s) > _LEAST_CHANGE * request.work_s:
            attempt.is_ranked_by(work_s)


def _work_s(knowledge: Knowledge, request: Request) -> float:
    """Return the part of an engine's time that it is foreseen to take now."""
    arrival = request.arrival
    prompt_tokens = knowledge.prompt_sizes.tokens(
        arrival.model, arrival.prompt_bytes, arrival.fixed_tokens, arrival.prompt_shape
    )
    _, output_tokens, _ = sizes_of(knowledge, request.lane, arrival, prompt_tokens)
    cached_tokens = request.prompt_tokens - request.unread_tokens
    return price(request.route, max(1, prompt_tokens - cached_tokens), output_tokens)[0]
