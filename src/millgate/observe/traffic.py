"""What passed, in distributions: waits, times to the first token, gaps between tokens, prompts found in a cache.

By lane, engine, tenant and model.

The core counts attempts; here is how long they took. Everything is a plain integer or float that the path adds to,
and every set of names is bounded: beyond it the latecomers are counted together as `other` (INV-5).
"""

from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple, TypeVar

from millgate.core.decisions import Admit, Ended
from millgate.core.measure import Sketch
from millgate.core.words import Outcome
from millgate.observe.histogram import Buckets, Spread
from millgate.observe.traffic_records import (
    EngineLately,
    EngineTraffic,
    LaneLately,
    LaneTraffic,
    ModelTraffic,
    TenantTraffic,
    TrafficSnapshot,
)

OTHER: Final = "other"
"""The label of all tenants without one of their own."""
NO_TENANT: Final = "-"
"""The label of what comes without a tenant, as everything does where none is configured; no tenant's name begins so."""
MOST_LANES: Final = 5
MOST_ENGINES: Final = 8
MOST_TENANTS: Final = 100
MOST_MODELS: Final = 32
"""Lanes, engines, tenants and models that are told apart; more histograms would be more than a scrape should carry."""
FORGET_AFTER_S: Final = 3600.0
"""A tenant keeps its label for so long after its last attempt while others want one."""

_Kept = TypeVar("_Kept")
Bounds = tuple[float, ...]
# Bounds in seconds. Waits and totals span what deadlines do; a gap of 10-50 ms is an engine at work, 0.2 s and more
# is preemption or a prompt in the way (docs/policies/monitor.md).
WAIT_S: Final[Bounds] = (0.01, 0.05, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
TTFT_S: Final[Bounds] = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
TOTAL_S: Final[Bounds] = (0.5, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
HINT_S: Final[Bounds] = (0.5, 1.0, 2.0, 5.0, 20.0, 60.0)
HINT_ERROR_S: Final[Bounds] = (0.2, 0.5, 2.0, 10.0)
WINDOW_S: Final[Bounds] = (0.005, 0.02, 0.1, 0.5)
GAP_S: Final[Bounds] = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5)
TPOT_S: Final[Bounds] = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


_WHOLE: Final = (Outcome.GOOD, Outcome.LATE)
_JUDGED: Final = (Outcome.GOOD, Outcome.LATE, Outcome.ENGINE_FAILED)
# A tenant's quantiles are those of about its last so many streams, between these ends in seconds.
_TENANT_MEMORY: Final = 1000.0
_SHORTEST_S, _LONGEST_S = 0.001, 600.0


# So many events of a stream, or more, say how many tokens each carries; of that the next streams are taken to have as many.
_ENOUGH_EVENTS: Final = 8
_LEARNS: Final = 0.2


class HeardStream(NamedTuple):
    """What is known of a stream that runs: when its first event and its last look came, and how many events it had by then."""

    first_at: float
    at: float
    events: int


class _Lane:
    def __init__(self) -> None:
        self.wait, self.ttft = Buckets(WAIT_S), Buckets(TTFT_S)
        self.total, self.hint = Buckets(TOTAL_S), Buckets(HINT_S)
        self.hint_error, self.hint_return = Buckets(HINT_ERROR_S), Buckets(HINT_ERROR_S)
        self.window, self.window_spread = Buckets(WINDOW_S), Spread()
        self.tpot_spread = Spread()
        self.clipped = self.demoted = 0


class _Cache:
    """What came from a cache, since an engine first said so."""

    def __init__(self) -> None:
        self.known = False
        self.prompt_tokens = self.cached_tokens = 0
        self.lately = Spread()

    def add(self, now: float, prompt_tokens: int, cached_tokens: int) -> None:
        self.known = True
        if prompt_tokens > 0:
            self.prompt_tokens += prompt_tokens
            self.cached_tokens += cached_tokens
            self.lately.add(now, cached_tokens / prompt_tokens, prompt_tokens)


class _Engine:
    def __init__(self) -> None:
        self.ttft, self.tpot, self.gap = Buckets(TTFT_S), Buckets(TPOT_S), Buckets(GAP_S)
        self.ttft_spread, self.tpot_spread, self.gap_spread = Spread(), Spread(), Spread()
        self.ended = self.failed = 0
        self.tokens_per_event = 1.0
        self.cache = _Cache()


class _Tenant:
    def __init__(self) -> None:
        self.attempts = self.yields = self.judged = self.good = 0
        self.prompt_tokens = self.output_tokens = 0
        self.seen_at = 0.0
        self.ttft: Sketch | None = None


class Traffic:
    """Takes what happens and gives it back as distributions; `pinned` tenants have their label from the start, and keep it.

    Of the labels for other tenants it gives its part, as one of so many `workers` whose numbers are added up.
    """

    def __init__(self, pinned: Iterable[str] = (), workers: int = 1) -> None:
        self._workers = workers
        self.now = 0.0
        """The core's time at its last step, by which what was lately is told from what was long ago."""
        self._lanes: dict[str, _Lane] = {}
        self._engines: dict[str, _Engine] = {}
        self._models: dict[str, _Cache] = {}
        self._tenants: dict[str, _Tenant] = {}
        self._others = _Tenant()
        self.tenants_are(pinned)

    def arrived(self, tenant: str, now: float) -> None:
        """Count an attempt."""
        known = self._tenants.get(tenant)
        if known is None:
            known = self._newcomer(tenant, now)
        known.attempts += 1
        known.seen_at = now

    def refused(self, tenant: str, lane: str, hint_s: float | None) -> None:
        """Count a refusal, and its hint where one was given."""
        self._tenants.get(tenant, self._others).yields += 1
        if hint_s is not None:
            self._lane(lane).hint.add(hint_s)

    def admitted(self, lane_name: str, admit: Admit, now: float) -> None:
        """Count one that was admitted now after a batch window, reshaped, or had been told when to come back."""
        lane = self._lane(lane_name)
        if admit.reshaped is not None:
            lane.demoted += admit.reshaped.lane is not None
            lane.clipped += admit.reshaped.max_tokens is not None
        if admit.window_s > 0.0:
            lane.window.add(admit.window_s)
            lane.window_spread.add(now, admit.window_s, 1.0)
        if admit.due_at is not None:
            lane.hint_error.add(abs(now - admit.due_at))
            lane.hint_return.add(abs(now - admit.waited_s - admit.due_at))

    def ended(self, tenant: str, model: str, ended: Ended, now: float, *, held_back: bool = False) -> None:
        """Count what was admitted and is over; the pace of what its client `held_back` is not its engine's."""
        engine_name = ended.engine
        assert engine_name is not None
        lane, engine = self._lane(ended.lane), self._engine(engine_name)
        known = self._tenants.get(tenant, self._others)
        engine.ended += 1
        engine.failed += ended.outcome is Outcome.ENGINE_FAILED
        lane.wait.add(ended.waited_s)
        lane.total.add(ended.total_s)
        if ended.ttft_s is not None:
            lane.ttft.add(ended.ttft_s)
            _note_begun(engine, known, ended, ended.ttft_s, now)
            if ended.output_tokens > 1 and not held_back:
                tpot_s = (ended.total_s - ended.ttft_s) / (ended.output_tokens - 1)
                engine.tpot.add(tpot_s)
                engine.tpot_spread.add(now, tpot_s, 1.0)
                lane.tpot_spread.add(now, tpot_s, 1.0)
        _note_outcome(known, ended)
        speaks = engine.cache.known or ended.cached_tokens is not None
        if speaks and ended.outcome in _WHOLE:
            # Engines that speak of their caches leave a 0 out (vLLM does).
            cached_tokens = ended.cached_tokens or 0
            engine.cache.add(now, ended.prompt_tokens, cached_tokens)
            self._model(model).add(now, ended.prompt_tokens, cached_tokens)

    def decoded(self, engine_name: str, now: float, took_s: float, events: int) -> None:
        """Count the tokens that one stream got in this time, by its events."""
        engine = self._engine(engine_name)
        _note_gaps(engine, now, took_s, round(events * engine.tokens_per_event))

    def decoded_whole(self, engine_name: str, heard: HeardStream, tokens: int, now: float) -> None:
        """Count what one stream got since it was heard last; it is over, and has got so many `tokens` in all.

        Where that is more than its events, as with speculative decoding, events carry several: a stream does not say how many before its end.
        """
        engine = self._engine(engine_name)
        if heard.events >= _ENOUGH_EVENTS and heard.at > heard.first_at:
            pace = (heard.events - 1) / (heard.at - heard.first_at)
            carried = tokens / (heard.events + pace * (now - heard.at))
            engine.tokens_per_event += _LEARNS * (max(1.0, carried) - engine.tokens_per_event)
        rest = round(tokens - heard.events * engine.tokens_per_event)
        if rest > 0:
            _note_gaps(engine, now, now - heard.at, rest)

    def places_are(self, lanes: Collection[str], engines: Collection[str]) -> None:
        """Forget lanes and engines that are not among these: where they come and go, those that are there need the labels."""
        self._lanes = {name: lane for name, lane in self._lanes.items() if name in lanes or name == OTHER}
        self._engines = {
            name: engine for name, engine in self._engines.items() if name in engines or name == OTHER
        }

    def tenants_are(self, pinned: Iterable[str]) -> None:
        """Let these have their label from now on; those that had are forgotten when they have been idle for long."""
        self._pinned = frozenset(list(pinned)[:MOST_TENANTS])
        self._most = len(self._pinned) + (MOST_TENANTS - len(self._pinned)) // self._workers
        self._full_until = 0.0
        for name in sorted(self._pinned.difference(self._tenants)):
            if len(self._tenants) >= MOST_TENANTS:
                idle = self._most_idle()
                assert idle is not None  # of that many some are not configured
                del self._tenants[idle]
            self._tenants[name] = _Tenant()

    def read(self) -> TrafficSnapshot:
        """Return everything as it is now."""
        tenants = [*self._tenants.items()]
        if self._others.attempts:
            tenants.append((OTHER, self._others))
        return TrafficSnapshot(
            tuple(_lane_traffic(name, lane, self.now) for name, lane in self._lanes.items()),
            tuple(_engine_traffic(name, engine, self.now) for name, engine in self._engines.items()),
            tuple(_tenant_traffic(name, tenant) for name, tenant in tenants),
            tuple(
                ModelTraffic(name, cache.prompt_tokens, cache.cached_tokens, cache.lately.mean or 0.0)
                for name, cache in self._models.items()
            ),
        )

    def _lane(self, name: str) -> _Lane:
        return self._lanes.get(name) or _kept(self._lanes, name, MOST_LANES, _Lane)

    def _engine(self, name: str) -> _Engine:
        return self._engines.get(name) or _kept(self._engines, name, MOST_ENGINES, _Engine)

    def _model(self, name: str) -> _Cache:
        return self._models.get(name) or _kept(self._models, name, MOST_MODELS, _Cache)

    def _newcomer(self, tenant: str, now: float) -> _Tenant:
        """Give a label to a tenant that has none, if one is left or an idle tenant gives one back."""
        if tenant == OTHER or now < self._full_until:
            return self._others
        if len(self._tenants) >= self._most and not self._forget_one(now):
            return self._others
        known = self._tenants[tenant] = _Tenant()
        return known

    def _forget_one(self, now: float) -> bool:
        """Take the label of the tenant idle longest; when none has been idle for long, note until when not to ask."""
        idle = self._most_idle()
        self._full_until = (
            now + FORGET_AFTER_S if idle is None else self._tenants[idle].seen_at + FORGET_AFTER_S
        )
        if idle is None or now < self._full_until:
            return False
        del self._tenants[idle]
        return True

    def _most_idle(self) -> str | None:
        own = [name for name in self._tenants if name not in self._pinned]
        return min(own, key=lambda name: self._tenants[name].seen_at, default=None)


def _kept(known: dict[str, _Kept], name: str, most: int, make: Callable[[], _Kept]) -> _Kept:
    """Return what a new name begins, or what all share that come when `most` are told apart."""
    name = name if len(known) - (OTHER in known) < most else OTHER
    return known.get(name) or known.setdefault(name, make())


def _note_gaps(engine: _Engine, now: float, took_s: float, tokens: int) -> None:
    engine.gap.add(took_s / tokens, tokens)
    engine.gap_spread.add(now, took_s / tokens, tokens)


def _note_begun(engine: _Engine, tenant: _Tenant, ended: Ended, ttft_s: float, now: float) -> None:
    admitted_ttft_s = ttft_s - ended.waited_s
    engine.ttft.add(admitted_ttft_s)
    engine.ttft_spread.add(now, admitted_ttft_s, 1.0)
    if tenant.ttft is None:
        tenant.ttft = Sketch(_SHORTEST_S, _LONGEST_S, memory=_TENANT_MEMORY)
    tenant.ttft.add(ttft_s)


def _note_outcome(tenant: _Tenant, ended: Ended) -> None:
    if ended.outcome in _JUDGED:
        tenant.judged += 1
        tenant.good += ended.outcome is Outcome.GOOD
    tenant.prompt_tokens += ended.prompt_tokens
    tenant.output_tokens += ended.output_tokens


def _lane_traffic(name: str, lane: _Lane, now: float) -> LaneTraffic:
    window, tpot = lane.window_spread.lately(now), lane.tpot_spread.lately(now)
    return LaneTraffic(
        name,
        lane.wait.read(),
        lane.window.read(),
        lane.ttft.read(),
        lane.total.read(),
        lane.hint.read(),
        lane.hint_return.read(),
        lane.hint_error.read(),
        lane.clipped,
        lane.demoted,
        LaneLately(window.mean, tpot.mean, tpot.variance),
    )


def _engine_traffic(name: str, engine: _Engine, now: float) -> EngineTraffic:
    ttft, tpot, cache = engine.ttft_spread.lately(now), engine.tpot_spread.lately(now), engine.cache
    gap, hits = engine.gap_spread.lately(now), cache.lately.lately(now)
    return EngineTraffic(
        name,
        engine.ttft.read(),
        engine.tpot.read(),
        engine.gap.read(),
        engine.ended,
        engine.failed,
        cache.prompt_tokens if cache.known else None,
        cache.cached_tokens if cache.known else None,
        EngineLately(ttft.mean, ttft.variance, tpot.mean, tpot.variance, gap.mean, gap.variance, hits.mean),
    )


def _tenant_traffic(name: str, tenant: _Tenant) -> TenantTraffic:
    ttft = tenant.ttft
    return TenantTraffic(
        name or NO_TENANT,
        tenant.attempts,
        tenant.yields,
        tenant.judged,
        tenant.good,
        tenant.prompt_tokens,
        tenant.output_tokens,
        None if ttft is None else ttft.quantile(0.95),
        None if ttft is None else ttft.quantile(0.99),
    )
