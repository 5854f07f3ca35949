"""Snapshot to picture: the one place that knows which number of the core stands where on the page.

A new field of the snapshot needs one line in a record of `picture`, one here, and one in the page. Rates are
differences of counts over the last five to ten seconds.
"""

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite, sqrt
from typing import Final, NamedTuple

from millgate.core.decisions import Admit, Explanation, Queue, Yield
from millgate.core.events import Arrived
from millgate.core.snapshot import (
    Alarm,
    EngineSnapshot,
    LaneSnapshot,
    PoolSnapshot,
    Promise,
    Quantiles,
    SloReading,
    Snapshot,
    WarningReading,
)
from millgate.core.words import Outcome, Reason
from millgate.instruments.objectives import quantile
from millgate.observe.live import picture
from millgate.observe.live.banner import REFUSED_BECAUSE, Banner, LaneWait, Situation, banner, seconds
from millgate.observe.live.decision_history import (
    EVERY_S,
    DecisionHistory,
    HistoryPoint,
    happened_between,
    rates_between,
)
from millgate.observe.live.feed import LiveFeed
from millgate.observe.live.picture import Picture
from millgate.observe.live.recent import DecisionFilter, DecisionRow, Recent
from millgate.observe.observers import Observers
from millgate.observe.traffic import NO_TENANT, OTHER
from millgate.observe.traffic_records import EngineTraffic, TenantTraffic, TrafficSnapshot

RATES_OVER_S: Final = EVERY_S
"""Counts are compared with those of the newest snapshot that is at least so old; it is at most twice as old."""
MOST_ROWS: Final = 40
"""Decisions in one frame; the rest of what is kept is asked for with a filter."""
MOST_TENANTS: Final = 50
"""Tenants in one frame: those with the most attempts."""
_CORE_NAMES: Final = {"": NO_TENANT, "others": OTHER}
"""What the core and the observers call tenants without a name of their own."""
_USED_UP_SHARE: Final = 0.02
"""Of an account that is kept just empty a request or two are left."""
_PROBE_BYTES: Final = 1000
"""What a newcomer would be told is asked for a small chat request, the default of `/api/explain`."""


class _Instant(NamedTuple):
    """What one picture compares, and what turns core seconds into seconds since the epoch."""

    now: Snapshot
    before: Snapshot
    long_before: Snapshot
    traffic: TrafficSnapshot
    epoch: float


@dataclass
class PageModel:
    """Makes pictures from what the core knows and its observers have seen; every callable is quick and changes nothing.

    `wall` gives seconds since the epoch: the core's own time means nothing to people. `host` tells this gate from others.
    `cluster` says what is wrong with the cluster, `failing` which engines fail requests; nothing where all is well.
    """

    snapshot: Callable[[], Snapshot]
    explain: Callable[[Arrived], Explanation]
    observers: Observers
    steps: DecisionHistory
    wall: Callable[[], float] = time.time
    host: str = field(default_factory=socket.gethostname)
    cluster: Callable[[], str] = str
    failing: Callable[[], str] = str

    def __post_init__(self) -> None:
        self._recent = Recent(self.observers.ring)

    def paint(self) -> Picture:
        """Return the picture of this instant."""
        history, instant = self.steps, self._instant()
        snapshot = instant.now
        lanes = self._lanes(instant)
        return Picture(
            at=instant.epoch + snapshot.now,
            host=self.host,
            banner=self._banner(instant, lanes),
            rates=rates_between(instant.before, snapshot),
            lanes=lanes,
            pools=tuple(_pool(pool, instant.epoch) for pool in snapshot.pools),
            cleared=_alarm(*history.cleared, instant.epoch) if history.cleared else None,
            engines=_engines(snapshot.engines, instant.traffic.engines),
            sessions=_sessions(snapshot),
            little=snapshot.little,
            returns=_returns(snapshot),
            tenants=_tenants(instant.traffic.tenants, snapshot),
            models=instant.traffic.models,
            good_output_tokens=snapshot.good_output_tokens,
            wasted_output_tokens=snapshot.wasted_output_tokens,
            decisions=self._rows(snapshot, MOST_ROWS, DecisionFilter(), instant.epoch),
            history=_on_wall(history.newest, instant.epoch) if history.newest else None,
        )

    def verdict(self) -> Banner:
        """Return the sentence of this instant alone."""
        instant = self._instant()
        return self._banner(instant, self._lanes(instant))

    def history(self) -> tuple[HistoryPoint, ...]:
        """Return the last ten minutes, oldest first, in seconds since the epoch."""
        epoch = self.wall() - self.snapshot().now
        return tuple(_on_wall(point, epoch) for point in self.steps.points)

    def recall(self) -> Iterator[None]:
        """Read what was decided before the first look, a little at a time.

        Gone through before `decisions`, with other work in between, it keeps that from taking long.
        """
        now = self.snapshot().now
        self.observers.settle()
        while self._recent.recall(now):
            yield

    def decisions(self, most: int, wanted: DecisionFilter) -> tuple[DecisionRow, ...]:
        """Return up to `most` of the kept decisions that are wanted, newest first, in seconds since the epoch."""
        snapshot = self.snapshot()
        self.observers.settle()
        return self._rows(snapshot, most, wanted, self.wall() - snapshot.now)

    def _rows(
        self, snapshot: Snapshot, most: int, wanted: DecisionFilter, epoch: float
    ) -> tuple[DecisionRow, ...]:
        lanes = [lane.name for lane in snapshot.lanes]
        return self._recent.rows(most, wanted, lanes, snapshot.now, epoch)

    def _instant(self) -> _Instant:
        history, snapshot = self.steps, self.snapshot()
        history.mark(snapshot)
        return _Instant(
            snapshot,
            history.before(snapshot.now, RATES_OVER_S),
            history.before(snapshot.now, 2 * RATES_OVER_S),
            self.observers.traffic(),
            self.wall() - snapshot.now,
        )

    def _lanes(self, instant: _Instant) -> tuple[picture.LanePicture, ...]:
        return tuple(self._lane(lane, instant) for lane in instant.now.lanes)

    def _lane(self, lane: LaneSnapshot, instant: _Instant) -> picture.LanePicture:
        probe = Arrived(0, lane=lane.name, prompt_bytes=_PROBE_BYTES, hands_over=True, bootstraps=True)
        told = self.explain(probe)
        trend, acceleration = _trend(lane.name, instant)
        return picture.LanePicture(
            name=lane.name,
            queued=lane.queued,
            queued_tokens=lane.queued_tokens,
            oldest_queued_s=lane.oldest_queued_s,
            expected_wait_s=_wait_s(told.decision, lane),
            deadline_s=told.deadline - told.first_seen,
            newcomer=_told(told.decision),
            running=lane.running,
            other_running=sum([other.running for other in instant.now.lanes]) - lane.running,
            stream_limit=_stream_limit(instant.now),
            headroom=lane.headroom,
            window_s=next(
                (each.lately.window_s for each in instant.traffic.lanes if each.name == lane.name), None
            ),
            rates=rates_between(instant.before, instant.now, lane.name),
            little=lane.little,
            trend_per_s=trend,
            acceleration_per_s2=acceleration,
            objective=_objective(lane.slo),
        )

    def _banner(self, instant: _Instant, lanes: tuple[picture.LanePicture, ...]) -> Banner:
        snapshot, refusals, epoch = instant.now, self.observers.refusals, instant.epoch
        happened = happened_between(instant.before, snapshot)
        alarms = [alarm for pool in snapshot.pools for alarm in pool.alarms]
        first = min(alarms, key=lambda alarm: alarm.since, default=None)
        up = [engine for engine in snapshot.engines if engine.up and not engine.is_shut]
        situation = Situation(
            now=epoch + snapshot.now,
            lanes=tuple(
                LaneWait(each.name, each.queued, each.expected_wait_s, each.deadline_s) for each in lanes
            ),
            engines_up=len(up),
            engines=len(snapshot.engines),
            engines_silent=sum([engine.silent_s > 0.0 for engine in up]),
            running=sum([engine.running for engine in up if engine.takes_requests]),
            limit=_stream_limit(snapshot),
            arrived=happened["arrived"],
            refused={reason: happened[reason] for reason in Reason if happened[reason]},
            refusing_since=epoch + refusals.refusing_since if refusals.is_refusing(snapshot.now) else None,
            hints_s=refusals.hints(snapshot.now),
            warning=first.words if first else "",
            warned_since=epoch + first.since if first else None,
            draining=snapshot.draining,
            cluster=self.cluster(),
            failing=self.failing(),
            failed=happened[Outcome.ENGINE_FAILED],
            paused="; ".join([words for each in up if (words := _account_words(each))]),
            memory_full=_is_memory_full(snapshot.lanes, up),
            shedding=refusals.is_shedding(snapshot.now),
        )
        return banner(situation)


def _account_words(engine: EngineSnapshot) -> str:
    """Say why a provider's account gets no work: it has refused, or what it grants is used up; else nothing."""
    account = engine.account
    if account is None or (account.paused_s <= 0.0 and account.left_share > _USED_UP_SHARE):
        return ""
    if account.paused_s > 0.0:
        return f"{engine.name} gets nothing for {seconds(account.paused_s)}, its provider has refused"
    return f"{engine.name} has used up what its account grants"


def _trend(lane: str, instant: _Instant) -> tuple[float, float]:
    """Return how fast a lane's attempts in the house (queued and running) grow, and how fast that grows.

    Differences of the last two steps of the history, per second and per second squared; 0 until there are two.
    """
    first, middle, last = instant.long_before, instant.before, instant.now
    early_s, late_s = middle.now - first.now, last.now - middle.now
    if late_s <= 0.0:
        return 0.0, 0.0
    late = (_in_house(last, lane) - _in_house(middle, lane)) / late_s
    if early_s <= 0.0:
        return late, 0.0
    early = (_in_house(middle, lane) - _in_house(first, lane)) / early_s
    return late, (late - early) / (0.5 * (early_s + late_s))


def _in_house(snapshot: Snapshot, lane: str) -> int:
    return sum([each.queued + each.running for each in snapshot.lanes if each.name == lane])


def _told(decision: Admit | Queue | Yield) -> str:
    if isinstance(decision, Admit):
        return f"runs at once, first token in {seconds(decision.expected_ttft_s)}"
    if isinstance(decision, Queue):
        return f"waits {seconds(decision.expected_wait_s)} at place {decision.place}"
    hint = f", hint {seconds(decision.retry_after_s)}" if decision.retry else ", not to come back"
    return f"refused because {REFUSED_BECAUSE[decision.reason]}{hint}"


def _wait_s(decision: Admit | Queue | Yield, lane: LaneSnapshot) -> float:
    if isinstance(decision, Admit):
        return 0.0
    return decision.expected_wait_s if isinstance(decision, Queue) else lane.expected_wait_s


def _objective(slo: SloReading) -> picture.ObjectivePicture:
    return picture.ObjectivePicture(
        requests=slo.short.requests,
        refused=slo.short.refused,
        good_share=slo.short.good_share,
        long_requests=slo.long.requests,
        long_good_share=slo.long.good_share,
        target=quantile(slo.target_share),
        ttft=_promise(slo.ttft_promise, slo.ttft),
        tpot=None if slo.tpot_promise is None else _promise(slo.tpot_promise, slo.tpot),
        is_burning=slo.is_burning,
        advice=slo.advice,
    )


def _promise(promise: Promise, measured: Quantiles | None) -> picture.PromisePicture:
    return picture.PromisePicture(
        quantile(promise.share), promise.time_s, None if measured is None else measured.promised
    )


def _pool(pool: PoolSnapshot, epoch: float) -> picture.PoolPicture:
    alarms = tuple(_alarm(alarm, alarm.since, epoch) for alarm in pool.alarms)
    return picture.PoolPicture(pool.engines, _signals(pool.warning), alarms)


def _signals(warning: WarningReading) -> picture.SignalsPicture:
    return picture.SignalsPicture(
        load=warning.load,
        calm_load=warning.calm_load,
        occupancy=warning.occupancy,
        trend=warning.trend,
        acceleration=warning.acceleration,
        time_to_full_s=warning.time_to_full_s if isfinite(warning.time_to_full_s) else None,
    )


def _alarm(alarm: Alarm, since: float, epoch: float) -> picture.AlarmPicture:
    return picture.AlarmPicture(alarm.signal.value, alarm.words, epoch + since)


def _engines(
    engines: tuple[EngineSnapshot, ...], traffic: tuple[EngineTraffic, ...]
) -> tuple[picture.EnginePicture, ...]:
    lately = {each.name: each.lately for each in traffic}
    pictures = []
    for engine in engines:
        own = lately.get(engine.name)
        variance = own.gap_variance if own is not None else None
        pictures.append(
            picture.EnginePicture(engine, own, None if variance is None else sqrt(max(0.0, variance)))
        )
    return tuple(pictures)


def _tenants(tenants: tuple[TenantTraffic, ...], snapshot: Snapshot) -> tuple[picture.TenantPicture, ...]:
    amplification = {
        _CORE_NAMES.get(each.tenant, each.tenant): _ratio(each.attempts, each.requests)
        for each in snapshot.tenants
    }
    tokens = sum([each.prompt_tokens + each.output_tokens for each in tenants])
    most = sorted(tenants, key=lambda each: -each.attempts)[:MOST_TENANTS]
    return tuple(
        picture.TenantPicture(
            each,
            (each.prompt_tokens + each.output_tokens) / tokens if tokens else 0.0,
            _ratio(each.good, each.judged),
            amplification.get(each.name),
        )
        for each in most
    )


def _returns(snapshot: Snapshot) -> picture.ReturnsPicture:
    lanes = snapshot.lanes
    kept = sum([lane.hints_kept for lane in lanes])
    return picture.ReturnsPicture(
        retries=snapshot.retries,
        hints_followed=kept + sum([lane.hints_broken for lane in lanes]),
        hints_kept=kept,
    )


def _sessions(snapshot: Snapshot) -> picture.SessionsPicture:
    is_told = any(engine.kv_limit for engine in snapshot.engines)
    predicted, found = snapshot.predicted_cached_tokens, snapshot.found_cached_tokens
    return picture.SessionsPicture(
        live=snapshot.live_sessions,
        memory_share=snapshot.working_set_share if is_told else None,
        found_share=found / predicted if predicted else None,
    )


def _on_wall(point: HistoryPoint, epoch: float) -> HistoryPoint:
    return replace(point, at=epoch + point.at)


def _stream_limit(snapshot: Snapshot) -> int:
    return sum([engine.limit for engine in snapshot.engines if engine.takes_requests])


def _is_memory_full(lanes: Sequence[LaneSnapshot], up: Sequence[EngineSnapshot]) -> bool:
    """Return whether an average request of those that wait fits into no engine's KV memory now."""
    queued = sum([lane.queued for lane in lanes])
    free = [
        inf if each.kv_limit is None else each.kv_limit - each.kv_tokens for each in up if each.takes_requests
    ]
    return queued > 0 and max(free, default=inf) * queued < sum([lane.queued_tokens for lane in lanes])


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 1.0


def open_feed(
    snapshot: Callable[[], Snapshot],
    explain: Callable[[Arrived], Explanation],
    observers: Observers,
    cluster: Callable[[], str] = str,
    failing: Callable[[], str] = str,
) -> LiveFeed[PageModel]:
    """Return the feed; from now on the observers' beats look after its history, so that it knows what came before.

    `cluster` says what is wrong with the cluster, `failing` which engines fail requests; nothing where all is well.
    """
    history = DecisionHistory(snapshot)
    observers.accounting.on_beat.append(history.look)
    return LiveFeed(PageModel(snapshot, explain, observers, history, cluster=cluster, failing=failing))
