"""What passed, in distributions: waits, times to the first token, gaps between tokens; by lane, engine and tenant.

The core counts attempts; here is how long they took. Everything is a plain integer or float that the path adds to,
and every set of names is bounded: beyond it the latecomers are counted together as `other` (INV-5).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from headgate.core.decisions import Ended
from headgate.core.words import Outcome
from headgate.observe.histogram import Buckets, Histogram, Spread

OTHER: Final = "other"
"""The label of everybody who has none of their own."""
NOBODY: Final = "-"
"""The label of what comes without a tenant, as everything does where none is configured; no tenant's name begins so."""
MOST_LANES: Final = 6
MOST_ENGINES: Final = 8
MOST_TENANTS: Final = 100
"""Lanes, engines and tenants that are told apart; more histograms would be more than a scrape should carry."""
FORGET_AFTER_S: Final = 3600.0
"""A tenant keeps its label for so long after its last attempt while others want one."""

# Bounds in seconds. Waits and totals span what deadlines do; a gap of 10-50 ms is an engine at work, 0.2 s and more
# is preemption or a prompt in the way (docs/policies/monitor.md).
WAIT_S: Final = (0.01, 0.05, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
TTFT_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
TOTAL_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
HINT_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 60.0)
HINT_ERROR_S: Final = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
GAP_S: Final = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 2.0)


@dataclass(frozen=True, slots=True)
class LaneTraffic:
    """One lane's times in seconds, each counted from arrival, and the hints that its refusals gave.

    `hint_error` is how far from the promised time those were admitted who came back with a ticket.
    """

    name: str
    wait: Histogram
    ttft: Histogram
    total: Histogram
    hint: Histogram
    hint_error: Histogram


@dataclass(frozen=True, slots=True)
class EngineTraffic:
    """One engine's times in seconds: `ttft` from admission, `tpot` per answer, `gap` per token.

    `gap_mean` and `gap_variance` (seconds squared) are those of about the last minute, None before the first token.
    """

    name: str
    ttft: Histogram
    tpot: Histogram
    gap: Histogram
    gap_mean: float | None
    gap_variance: float | None


@dataclass(frozen=True, slots=True)
class TenantTraffic:
    """One tenant's counts since it has its label."""

    name: str
    attempts: int
    yields: int
    good: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class TrafficSnapshot:
    """All distributions at one instant; at most `MOST_*` names of each kind, and `other`."""

    lanes: tuple[LaneTraffic, ...]
    engines: tuple[EngineTraffic, ...]
    tenants: tuple[TenantTraffic, ...]


class _Lane:
    __slots__ = ("hint", "hint_error", "total", "ttft", "wait")

    def __init__(self) -> None:
        self.wait, self.ttft = Buckets(WAIT_S), Buckets(TTFT_S)
        self.total, self.hint = Buckets(TOTAL_S), Buckets(HINT_S)
        self.hint_error = Buckets(HINT_ERROR_S)


class _Engine:
    __slots__ = ("gap", "spread", "tpot", "ttft")

    def __init__(self) -> None:
        self.ttft, self.tpot, self.gap = Buckets(TTFT_S), Buckets(GAP_S), Buckets(GAP_S)
        self.spread = Spread()


class _Tenant:
    __slots__ = ("attempts", "good", "output_tokens", "prompt_tokens", "seen_at", "yields")

    def __init__(self) -> None:
        self.attempts = self.yields = self.good = self.prompt_tokens = self.output_tokens = 0
        self.seen_at = 0.0


class Traffic:
    """Takes what happens and gives it back as distributions; `pinned` tenants have their label from the start, for ever."""

    def __init__(self, pinned: Iterable[str] = ()) -> None:
        self._lanes: dict[str, _Lane] = {}
        self._engines: dict[str, _Engine] = {}
        self._pinned = frozenset(list(pinned)[:MOST_TENANTS])
        self._tenants = {name: _Tenant() for name in sorted(self._pinned)}
        self._others = _Tenant()
        self._full_until = 0.0

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

    def returned(self, lane: str, promised_at: float, now: float) -> None:
        """Count one that came back and was admitted now, where it had been promised to be at `promised_at`."""
        self._lane(lane).hint_error.add(abs(now - promised_at))

    def ended(self, tenant: str, ended: Ended) -> None:
        """Count what was admitted and is over."""
        engine_name = ended.engine
        assert engine_name is not None
        waited_s, ttft_s, lane = ended.waited_s, ended.ttft_s, self._lane(ended.lane)
        lane.wait.add(waited_s)
        lane.total.add(ended.total_s)
        if ttft_s is not None:
            engine = self._engine(engine_name)
            lane.ttft.add(ttft_s)
            engine.ttft.add(ttft_s - waited_s)
            if ended.output_tokens > 1:
                engine.tpot.add((ended.total_s - ttft_s) / (ended.output_tokens - 1))
        known = self._tenants.get(tenant, self._others)
        known.good += ended.outcome is Outcome.GOOD
        known.prompt_tokens += ended.prompt_tokens
        known.output_tokens += ended.output_tokens

    def decoded(self, engine_name: str, now: float, took_s: float, tokens: int) -> None:
        """Count the tokens that one stream got in this time."""
        engine = self._engine(engine_name)
        gap_s = took_s / tokens
        engine.gap.add(gap_s, tokens)
        engine.spread.add(now, gap_s, tokens)

    def read(self) -> TrafficSnapshot:
        """Return everything as it is now."""
        tenants = [*self._tenants.items()]
        if self._others.attempts:
            tenants.append((OTHER, self._others))
        return TrafficSnapshot(
            tuple(_lane_traffic(name, lane) for name, lane in self._lanes.items()),
            tuple(_engine_traffic(name, engine) for name, engine in self._engines.items()),
            tuple(_tenant_traffic(name, tenant) for name, tenant in tenants),
        )

    def _lane(self, name: str) -> _Lane:
        found = self._lanes.get(name)
        if found is None:
            name = name if len(self._lanes) < MOST_LANES else OTHER
            found = self._lanes.setdefault(name, _Lane())
        return found

    def _engine(self, name: str) -> _Engine:
        found = self._engines.get(name)
        if found is None:
            name = name if len(self._engines) < MOST_ENGINES else OTHER
            found = self._engines.setdefault(name, _Engine())
        return found

    def _newcomer(self, tenant: str, now: float) -> _Tenant:
        """Give a label to a tenant that has none, if there is one left or somebody idle gives one back."""
        if tenant == OTHER or now < self._full_until:
            return self._others
        if len(self._tenants) >= MOST_TENANTS and not self._forget_one(now):
            return self._others
        known = self._tenants[tenant] = _Tenant()
        return known

    def _forget_one(self, now: float) -> bool:
        """Take the label of whoever has been idle longest; when nobody has been so for long, note until when not to ask."""
        own = [name for name in self._tenants if name not in self._pinned]
        idle = min(own, key=lambda name: self._tenants[name].seen_at, default=None)
        self._full_until = (
            now + FORGET_AFTER_S if idle is None else self._tenants[idle].seen_at + FORGET_AFTER_S
        )
        if idle is None or now < self._full_until:
            return False
        del self._tenants[idle]
        return True


def _lane_traffic(name: str, lane: _Lane) -> LaneTraffic:
    return LaneTraffic(
        name,
        lane.wait.read(),
        lane.ttft.read(),
        lane.total.read(),
        lane.hint.read(),
        lane.hint_error.read(),
    )


def _engine_traffic(name: str, engine: _Engine) -> EngineTraffic:
    spread = engine.spread
    return EngineTraffic(
        name, engine.ttft.read(), engine.tpot.read(), engine.gap.read(), spread.mean, spread.variance
    )


def _tenant_traffic(name: str, tenant: _Tenant) -> TenantTraffic:
    return TenantTraffic(
        name or NOBODY,
        tenant.attempts,
        tenant.yields,
        tenant.good,
        tenant.prompt_tokens,
        tenant.output_tokens,
    )
