"""Where to? The engines that take work, each with its price, so that an arrival need not look at all of them.

A price changes when work starts there, reads its first token or ends. That is noted, and the engine is priced anew
when the next arrival wants a place; the cheapest is then found by comparing numbers, a microsecond for 64 engines
where asking each took fifty. Prices are those of the usual request, and are all renewed when it has changed.
"""

from math import inf
from operator import itemgetter
from typing import Final

from millgate.core.governor.records import Attempt, Engine
from millgate.core.governor.streams import streams_of
from millgate.core.measure.ewma import Ewma
from millgate.core.routing.base import Router

# The usual request before one was seen (as in `records`); the first replaces it.
_USUAL_PROMPT_TOKENS: Final = 1000.0
_USUAL_OUTPUT_TOKENS: Final = 256.0
# Long enough that chance alone hardly ever moves a mean by the share below.
_MEMORY_REQUESTS: Final = 400.0
# Prices are renewed when prompt or answer has changed by this share: less moves no ranking that matters.
_CHANGED_SHARE: Final = 0.1


class Placement:
    """Finds the cheapest engine with room; it takes note of changes even while nobody asks, in bounded memory."""

    __slots__ = ("_costs", "_engines", "_output", "_priced_for", "_prompt", "_router", "_unpriced")

    def __init__(self, router: Router) -> None:
        self._router = router
        self._engines: tuple[Engine, ...] = ()
        self._costs: list[float] = []
        self._unpriced: list[Engine] = []
        self._prompt = Ewma(_USUAL_PROMPT_TOKENS, memory=_MEMORY_REQUESTS, prior_samples=0.0)
        self._output = Ewma(_USUAL_OUTPUT_TOKENS, memory=_MEMORY_REQUESTS, prior_samples=0.0)
        self._priced_for = (_USUAL_PROMPT_TOKENS, _USUAL_OUTPUT_TOKENS)

    def choose_among(self, engines: tuple[Engine, ...]) -> None:
        """From now on these engines take work; they may have other limits than before."""
        self._engines = engines
        self._costs = [inf] * len(engines)
        for position, engine in enumerate(engines):
            engine.position = position
        self._forget_prices()

    def changed(self, engine: Engine) -> None:
        """Take note that this engine's load or learned speed has changed."""
        if engine.is_priced:
            engine.is_priced = False
            self._unpriced.append(engine)

    def started(self, attempt: Attempt) -> None:
        """Learn the size of the usual request from one that was admitted."""
        if len(self._engines) < 2:
            return
        self._prompt.add(attempt.prompt_tokens)
        self._output.add(attempt.output_tokens)
        prompt_tokens, output_tokens = self._priced_for
        if (
            abs(self._prompt.mean - prompt_tokens) > _CHANGED_SHARE * prompt_tokens
            or abs(self._output.mean - output_tokens) > _CHANGED_SHARE * output_tokens
        ):
            self._priced_for = (self._prompt.mean, self._output.mean)
            self._forget_prices()

    def cheapest(self, draft: Attempt, engines: tuple[Engine, ...], now: float) -> Engine | None:
        """Return the cheapest of these engines with room for this attempt, the first named among equals, or None.

        `engines` are all that take work, or those of them that answer for its model.
        """
        if self._unpriced:
            self._price()
        costs = self._costs
        if engines is self._engines:
            least = min(costs)
            if least == inf:
                return None
            engine = engines[costs.index(least)]
            if _fits(engine, draft) and engine.has_room(draft, now):
                return engine
        roomy = _with_room(draft, engines, now)
        return min(roomy, key=lambda engine: costs[engine.position], default=None)

    def soonest(self, draft: Attempt, engines: tuple[Engine, ...], now: float) -> tuple[Engine, float] | None:
        """Return the engine with room where this attempt's first token comes first, and when; None without room."""
        times = [
            (engine.expected_ttft_s(draft.prompt_tokens, now), engine)
            for engine in _with_room(draft, engines, now)
        ]
        if not times:
            return None
        ttft_s, engine = min(times, key=itemgetter(0))
        return engine, ttft_s

    def _forget_prices(self) -> None:
        self._unpriced = list(self._engines)
        for engine in self._engines:
            engine.is_priced = False

    def _price(self) -> None:
        """Price every engine that has changed; one without any room costs infinity."""
        costs, engines, cost = self._costs, self._engines, self._router.cost
        prompt_tokens, output_tokens = self._priced_for
        for engine in self._unpriced:
            position, gate, service = engine.position, engine.gate, engine.service
            if position >= len(engines) or engines[position] is not engine:
                continue
            engine.is_priced = True
            if gate.has_room(1, 1):
                streams = gate.streams
                ttft_s = service.ttft_s(prompt_tokens + gate.prefill_tokens)
                costs[position] = cost(streams, ttft_s, service.tpot_s(streams + 1), output_tokens)
            else:
                costs[position] = inf
        self._unpriced.clear()


def _fits(engine: Engine, draft: Attempt) -> bool:
    return engine.gate.fits(draft.prompt_tokens, streams_of(engine.gate, draft.arrival))


def _with_room(draft: Attempt, engines: tuple[Engine, ...], now: float) -> list[Engine]:
    """Return those of these engines that have room for this attempt now."""
    return [engine for engine in engines if _fits(engine, draft) and engine.has_room(draft, now)]
