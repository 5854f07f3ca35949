"""Records of several workers put together: every field has a rule, counts add up, and means are weighted by what they are of."""

from dataclasses import is_dataclass, replace
from typing import Any, get_args, get_type_hints

import pytest

from millgate.core.snapshot import Alarm, AlarmSignal, Attainment, LittleReading, Promise, Quantiles
from millgate.observe import merging
from millgate.observe.door import ServiceSnapshot
from millgate.observe.histogram import Histogram
from millgate.observe.live.banner import Banner, Level
from millgate.observe.live.decision_history import HistoryPoint, Rates
from millgate.observe.live.picture import AlarmPicture, Picture, SessionsPicture, TenantPicture
from millgate.observe.live.recent import DecisionRow
from millgate.observe.meters import METERS, MetricKind
from millgate.observe.prometheus import EndedCounts, Records, family
from millgate.observe.traffic_records import ModelTraffic, TenantTraffic, TrafficSnapshot
from millgate.servers.line.contract import Readings
from observe.live.rooms import Room

WHOLE = {Promise, AlarmPicture, DecisionRow, Alarm, Banner, Histogram}
"""What is taken as it is, or has a rule of its own."""


def fields_within(kind: Any, seen: set[Any]) -> list[tuple[type, str]]:
    """Return every field of the records that this type leads to."""
    if kind in seen or kind in WHOLE:
        return []
    seen.add(kind)
    found = [each for part in get_args(kind) for each in fields_within(part, seen)]
    if isinstance(kind, type) and (is_dataclass(kind) or hasattr(kind, "_fields")):
        hints = get_type_hints(kind)
        for name in merging.names(kind):
            found.append((kind, name))
            found += fields_within(hints[name], seen)
    return found


@pytest.mark.parametrize("kind", [Records, Picture, HistoryPoint, Readings])
def test_every_field_has_a_rule(kind: type) -> None:
    lacking = [
        f"{owner.__name__}.{name}"
        for owner, name in fields_within(kind, set())
        if merging.rule_of(owner, name) is None
    ]
    assert lacking == []


def records() -> Records:
    room = Room()
    room.arrive(1)
    room.arrive(2)
    snapshot = room.core.snapshot(room.now)
    return Records(snapshot, 3, None, None, None)


def test_one_record_alone_stays_as_it_is() -> None:
    one = records()
    assert merging.merged([one]) == one


def test_the_same_twice_has_twice_the_counts_and_the_same_names() -> None:
    one = records()
    two = merging.merged([one, one])
    (lane, *_), (doubled, *_) = one.snapshot.lanes, two.snapshot.lanes
    assert [each.name for each in two.snapshot.lanes] == [each.name for each in one.snapshot.lanes]
    assert doubled.arrived == 2 * lane.arrived
    assert dict(doubled.outcomes) == {word: 2 * count for word, count in lane.outcomes}
    assert two.snapshot.engines[0].limit == 2 * one.snapshot.engines[0].limit
    assert two.snapshot.engines[0].kv_limit == one.snapshot.engines[0].kv_limit


def test_a_share_is_weighted_by_what_it_is_a_share_of() -> None:
    busy = Attainment(300.0, 90, 90, 0, 0.5, 1.0, 1.0, 10.0)
    calm = Attainment(300.0, 10, 10, 0, 1.0, 1.0, 1.0, 0.0)
    idle = Attainment(300.0, 0, 0, 0, 1.0, 1.0, 1.0, 0.0)
    both = merging.merged([busy, calm])
    assert both.requests == 100
    assert both.good_share == pytest.approx(0.55)
    assert both.burn == pytest.approx(9.0)
    assert merging.merged([idle, idle]).good_share == 1.0


def test_littles_law_holds_of_the_sum() -> None:
    one = LittleReading(10.0, 4.0, 2.0, 20, 2.0, 0.0)
    other = LittleReading(10.0, 3.0, 6.0, 60, 0.5, 0.0)
    both = merging.merged([one, other])
    assert both.mean_attempts == pytest.approx(both.entered_per_s * both.mean_stay_s)


def test_what_one_has_not_measured_does_not_count() -> None:
    measured = TenantTraffic("acme", 4, 0, 4, 4, 10, 10, 0.2, 0.3)
    other = replace(measured, ttft_p95_s=None, ttft_p99_s=None)
    both = merging.merged([other, measured])
    assert (both.attempts, both.ttft_p95_s) == (8, 0.2)
    assert merging.merged([other, other]).ttft_p95_s is None


def test_rows_are_matched_by_name_and_keep_their_order() -> None:
    def row(name: str, tokens: int, share: float) -> ModelTraffic:
        return ModelTraffic(name, tokens, 0, share)

    one = TrafficSnapshot((), (), (), (row("a", 30, 1.0), row("b", 1, 0.0)))
    other = TrafficSnapshot((), (), (), (row("c", 5, 0.0), row("a", 10, 0.0)))
    assert merging.merged([one, other]).models == (row("a", 40, 0.75), row("b", 1, 0.0), row("c", 5, 0.0))


def test_a_tenants_shares_are_of_what_all_processes_have_served() -> None:
    """Two tenants with a connection each had all tokens of "their" workers, 200 % together; an idle worker's 100 % counted as half."""

    def row(name: str, tokens: int, share: float, judged: int, good: int) -> TenantPicture:
        served = TenantTraffic(name, judged, 0, judged, good, tokens, 0, None, None)
        return TenantPicture(served, share, good / judged if judged else 1.0, None)

    painted = Room().page_model.paint()
    one = replace(painted, tenants=(row("a", 300, 1.0, 10, 2),))
    other = replace(painted, tenants=(row("b", 75, 0.75, 20, 20), row("a", 25, 0.25, 0, 0)))
    both = merging.merged([one, other]).tenants
    shown = [(each.served.name, each.tokens_share, each.good_share) for each in both]
    assert shown == [("b", 0.1875, 1.0), ("a", 0.8125, 0.2)]
    apart = merging.merged([one, replace(painted, tenants=(row("b", 100, 1.0, 1, 1),))]).tenants
    assert [(each.served.name, each.tokens_share) for each in apart] == [("a", 0.75), ("b", 0.25)]


def test_no_more_runs_than_may_where_a_share_has_shrunk_below_what_runs() -> None:
    """Under load each worker keeps three quarters of what it has out: an engine with room for 8 showed "8 of 6"."""
    room = Room(streams=3)
    for attempt in range(4):
        room.arrive(attempt)
    painted = room.page_model.paint()
    (engine,) = room.core.snapshot(room.now).engines
    shrunk, grown = replace(engine, limit=2), replace(engine, running=3, limit=5)
    assert (engine.running, merging.merged([shrunk, grown]).limit) == (3, 8)
    lane = replace(painted.lanes[1], running=1, other_running=3, stream_limit=2)
    assert merging.merged([lane, replace(lane, stream_limit=4)]).stream_limit == 8


def test_live_sessions_of_all_processes_take_their_memory_together() -> None:
    painted = Room().page_model.paint()
    one = replace(painted, sessions=SessionsPicture(50, 0.25, None))
    assert merging.merged([one, one]).sessions == SessionsPicture(100, 0.5, None)


def test_distributions_add_up_and_the_worst_banner_speaks() -> None:
    one, other = Histogram((0.1, 1.0), (1, 2, 3), 9.0), Histogram((0.1, 1.0), (4, 0, 1), 3.0)
    assert merging.merged([one, other]) == Histogram((0.1, 1.0), (5, 2, 4), 12.0)
    calm, full = Banner(Level.CALM, "Calm"), Banner(Level.OVERLOADED, "Overloaded since then")
    assert merging.merged([calm, full, calm]) == full
    assert merging.merged([Quantiles(1.0, 2.0, 3.0), Quantiles(2.0, 2.5, 1.0)]) == Quantiles(2.0, 2.5, 3.0)


def test_rates_by_reason_add_up() -> None:
    def rates(**yielded: float) -> Rates:
        return Rates(5.0, 2.0, 1.0, 1.0, 0.0, 0.0, 0.0, yielded)

    both = merging.merged([rates(saturated=1.0), rates(saturated=0.5, quota=2.0)])
    assert (both.arrived, both.yielded) == (4.0, {"saturated": 1.5, "quota": 2.0})


def test_of_one_alarm_at_several_workers_the_oldest_is_told() -> None:
    def alarm(signal: AlarmSignal, since: float) -> Alarm:
        return Alarm(signal, 1.0, 1.0, since, since, "words")

    raised = [
        [alarm(AlarmSignal.LOAD, 5.0), alarm(AlarmSignal.BACKLOG, 7.0)],
        [alarm(AlarmSignal.LOAD, 3.0)],
    ]
    rule = merging.rule_of(Records, "alarms")
    assert rule is not None
    assert [(each.signal, each.since) for each in rule(raised, [])] == [("load", 3.0), ("backlog", 7.0)]


def test_counts_of_a_process_that_has_ended_stay_in_the_sum_and_its_gauges_do_not() -> None:
    one, ended = records(), EndedCounts()
    ended.add(one)
    for meter in METERS:
        plain, summed = family(meter, one), next(iter(ended.onto(iter([family(meter, one)]))))
        factor = 1.0 if meter.kind is MetricKind.GAUGE else 2.0
        assert [sample.value for sample in summed.samples] == [
            factor * sample.value for sample in plain.samples
        ]


def test_labels_that_only_an_ended_process_had_are_still_shown() -> None:
    (meter,) = [each for each in METERS if each.name == "tenant_attempts"]
    one = records()._replace(
        traffic=TrafficSnapshot((), (), (TenantTraffic("gone", 4, 0, 0, 0, 0, 0, None, None),))
    )
    ended = EndedCounts()
    ended.add(one)
    (shown,) = ended.onto(iter([family(meter, one._replace(traffic=TrafficSnapshot((), (), ())))]))
    assert [(sample.labels, sample.value) for sample in shown.samples] == [({"tenant": "gone"}, 4.0)]


def test_a_worker_that_is_replaced_does_not_double_what_the_engine_counts_itself() -> None:
    """An operator replaces all workers (SIGUSR2): `rate(..._seen_preemptions_total)` showed a KV memory that is too short."""
    one = records()
    (first, *rest) = one.snapshot.engines
    told = replace(one.snapshot, engines=(replace(first, seen_preemptions=7), *rest))
    one, ended = one._replace(snapshot=told), EndedCounts()
    ended.add(one)
    (meter,) = [each for each in METERS if each.name == "engine_seen_preemptions"]
    (shown,) = ended.onto(iter([family(meter, one)]))
    assert [sample.value for sample in shown.samples] == [7.0]


def test_reloads_add_up_so_that_a_worker_that_ends_does_not_raise_them() -> None:
    """Two workers that have read the file three times each, and one that has died since and counts anew."""
    service = ServiceSnapshot(True, 3, 1, 0.0, 0.0, 0)
    young = replace(service, reloads=0, failed_reloads=0)
    (meter,) = [each for each in METERS if each.name == "config_reloads"]

    def shown(ended: EndedCounts, *running: ServiceSnapshot) -> float:
        merged = records()._replace(service=merging.merged(running))
        (each,) = ended.onto(iter([family(meter, merged)]))
        return each.samples[0].value

    before = shown(EndedCounts(), service, service)
    ended = EndedCounts()
    ended.add(records()._replace(service=service))
    assert before == shown(ended, service, young) == 6.0


def test_an_engine_that_has_left_leaves_the_counts_of_ended_workers_too() -> None:
    """Pods come with a new address each: what workers counted of old ones stayed on the page until the gate ended."""
    (meter,) = [each for each in METERS if each.name == "engine_adapter_loads"]
    one, ended = records(), EndedCounts()
    ended.add(one)
    name = one.snapshot.engines[0].name
    none = one._replace(snapshot=replace(one.snapshot, engines=()))
    (still,) = ended.of({name}).onto(iter([family(meter, none)]))
    (gone,) = ended.of({"other"}).onto(iter([family(meter, none)]))
    assert {sample.labels["engine"] for sample in still.samples} == {name}
    assert gone.samples == []
    assert next(ended.of({name}).onto(iter([family(meter, none)]))).samples == []  # forgotten for good
