"""Distributions: what is added comes back, by name, and names are bounded."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from millgate.core.decisions import Admit, Ended, Reshaped
from millgate.core.words import Outcome, Stage
from millgate.observe.histogram import Buckets, Spread
from millgate.observe.traffic import (
    FORGET_AFTER_S,
    MOST_ENGINES,
    MOST_LANES,
    MOST_MODELS,
    MOST_TENANTS,
    NO_TENANT,
    OTHER,
    Traffic,
)
from millgate.observe.traffic_records import ModelTraffic, TenantTraffic

TIMES = st.floats(0.001, 10.0)


def ended(lane: str = "interactive", engine: str = "gpu", **more: object) -> Ended:
    base = Ended(1, Outcome.GOOD, lane, engine, 0.5, 4.5, 1.5, 100, 31, None)
    return base._replace(**more)  # type: ignore[arg-type] # each test names fields of its own


def tenants(traffic: Traffic) -> dict[str, TenantTraffic]:
    return {each.name: each for each in traffic.read().tenants}


def test_a_sample_on_a_bound_lies_below_it() -> None:
    buckets = Buckets((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        buckets.add(value)

    assert buckets.read() == ((1.0, 2.0), (2, 2, 1), 7.5)


@given(st.lists(st.tuples(TIMES, st.integers(1, 50)), min_size=1, max_size=30))
def test_without_the_passing_of_time_the_spread_is_the_textbooks(samples: list[tuple[float, int]]) -> None:
    spread = Spread()
    for value, weight in samples:
        spread.add(7.0, value, weight)

    total = sum(weight for _, weight in samples)
    mean = sum(value * weight for value, weight in samples) / total
    variance = sum(weight * (value - mean) ** 2 for value, weight in samples) / total
    assert spread.mean == pytest.approx(mean)
    assert spread.variance == pytest.approx(variance, abs=1e-9)


def test_the_spread_forgets_within_minutes() -> None:
    spread = Spread()
    for _ in range(100):
        spread.add(0.0, 5.0, 1.0)
    spread.add(600.0, 0.02, 1.0)

    assert spread.mean == pytest.approx(0.02, abs=100 * 5 * math.exp(-10))


def test_the_spread_of_a_busy_minute_is_as_if_every_sample_had_aged_by_itself() -> None:
    spread = Spread()
    for index in range(60_000):
        spread.add(index / 1000.0, float(index % 7), 1.0)
    weights = [math.exp(index / 60_000) for index in range(60_000)]
    mean = sum(weight * (index % 7) for index, weight in enumerate(weights)) / sum(weights)

    assert spread.mean == pytest.approx(mean, rel=0.01)


def test_an_answer_is_measured_from_arrival_for_its_lane_and_from_admission_for_its_engine() -> None:
    traffic = Traffic()
    traffic.ended("", "m", ended(), 5.0)

    (lane,), (engine,) = traffic.read().lanes, traffic.read().engines
    assert (lane.wait.total, lane.ttft.total, lane.total.total) == (0.5, 1.5, 4.5)
    assert engine.ttft.total == 1.0
    assert engine.tpot.total == pytest.approx(0.1)
    assert engine.lately.tpot_mean_s == pytest.approx(0.1)
    assert engine.lately.ttft_mean_s == pytest.approx(1.0)


def test_an_answer_that_was_not_streamed_has_no_time_to_its_first_token() -> None:
    traffic = Traffic()
    traffic.ended("", "m", ended(ttft_s=None), 5.0)

    assert sum(traffic.read().lanes[0].ttft.counts) == 0
    assert sum(traffic.read().lanes[0].total.counts) == 1


def test_tokens_count_as_many_as_they_are_and_the_variance_sees_a_stutter() -> None:
    even, uneven = Traffic(), Traffic()
    for second in range(10):
        even.decoded("gpu", float(second), 1.0, 50)
        uneven.decoded("gpu", float(second), 1.0, 10 if second % 2 else 90)

    assert sum(even.read().engines[0].gap.counts) == sum(uneven.read().engines[0].gap.counts) == 500
    assert even.read().engines[0].lately.gap_variance == pytest.approx(0.0, abs=1e-12)
    assert (uneven.read().engines[0].lately.gap_variance or 0.0) > 1e-4


def test_streams_that_are_served_unevenly_have_a_variance_and_equal_ones_none() -> None:
    even, uneven = Traffic(), Traffic()
    for number in range(10):
        even.ended("", "m", ended(), float(number))
        uneven.ended("", "m", ended(output_tokens=11 if number % 2 else 301), float(number))

    assert even.read().engines[0].lately.tpot_variance == pytest.approx(0.0, abs=1e-12)
    assert (uneven.read().engines[0].lately.tpot_variance or 0.0) > 0.01
    assert even.read().lanes[0].lately.tpot_variance == pytest.approx(0.0, abs=1e-12)
    assert (uneven.read().lanes[0].lately.tpot_variance or 0.0) > 0.01
    assert even.read().lanes[0].lately.tpot_mean_s == pytest.approx(0.1)


def test_an_engine_that_never_speaks_of_its_cache_has_no_share() -> None:
    traffic = Traffic()
    traffic.ended("", "m", ended(), 1.0)

    (engine,) = traffic.read().engines
    assert (engine.prompt_tokens, engine.cached_tokens, engine.lately.prefix_hit_share) == (None, None, None)
    assert traffic.read().models == ()


def test_from_its_first_word_on_silence_about_the_cache_is_a_miss() -> None:
    traffic = Traffic()
    for cached in (None, 50, None, 100):
        traffic.ended("", "m", ended(cached_tokens=cached), 1.0)

    (engine,) = traffic.read().engines
    assert (engine.prompt_tokens, engine.cached_tokens) == (300, 150)
    assert engine.lately.prefix_hit_share == pytest.approx(0.5)
    assert traffic.read().models == (ModelTraffic("m", 300, 150, 0.5),)


def test_a_prompt_that_nobody_finished_says_nothing_of_the_cache() -> None:
    traffic = Traffic()
    traffic.ended("", "m", ended(cached_tokens=50), 1.0)
    traffic.ended("", "m", ended(outcome=Outcome.CLIENT_GONE, cause=Stage.DECODE), 1.0)

    assert traffic.read().engines[0].prompt_tokens == 100


def test_models_that_clients_invent_are_one_beyond_the_bound() -> None:
    traffic = Traffic()
    for number in range(2 * MOST_MODELS):
        traffic.ended("", f"model-{number}", ended(cached_tokens=10), 1.0)

    models = traffic.read().models
    assert len(models) == MOST_MODELS + 1
    assert (models[-1].name, models[-1].prompt_tokens) == (OTHER, 100 * MOST_MODELS)


def test_who_comes_back_is_measured_by_its_return_and_by_its_admission() -> None:
    traffic = Traffic()
    traffic.admitted("lane", Admit(1, (), 0.5, 0.1, 99.0, due_at=10.2), 10.0)

    (lane,) = traffic.read().lanes
    assert lane.hint_return.total == pytest.approx(0.7), "back at 9.5"
    assert lane.hint_error.total == pytest.approx(0.2)
    assert sum(lane.window.counts) == 0


def test_what_was_reshaped_is_counted_by_what_was_done_to_it() -> None:
    traffic = Traffic()
    for reshaped in (None, Reshaped("batch"), Reshaped(None, 64), Reshaped("batch", 64)):
        traffic.admitted("lane", Admit(1, (), 0.5, 0.1, 99.0, reshaped=reshaped), 10.0)

    (lane,) = traffic.read().lanes
    assert (lane.demoted, lane.clipped) == (2, 2)


def test_the_time_in_a_window_is_that_of_those_who_were_in_one() -> None:
    traffic = Traffic()
    for window_s in (0.0, 0.02, 0.04):
        traffic.admitted("lane", Admit(1, (), 0.5, 0.1, 99.0, window_s=window_s), 10.0)

    (lane,) = traffic.read().lanes
    assert sum(lane.window.counts) == 2
    assert lane.window.total == pytest.approx(0.06)
    assert lane.lately.window_s == pytest.approx(0.03)


def test_lanes_and_engines_beyond_the_bound_are_one() -> None:
    traffic = Traffic()
    for number in range(3 * MOST_ENGINES):
        traffic.ended("", "m", ended(f"lane-{number}", f"engine-{number}"), 5.0)

    read = traffic.read()
    assert (len(read.lanes), len(read.engines)) == (MOST_LANES + 1, MOST_ENGINES + 1)
    assert (read.lanes[-1].name, read.engines[-1].name) == (OTHER, OTHER)
    assert sum(sum(lane.total.counts) for lane in read.lanes) == 3 * MOST_ENGINES


def test_tenants_beyond_the_bound_are_one_and_nothing_is_lost() -> None:
    traffic = Traffic(["pinned"])
    for number in range(2 * MOST_TENANTS):
        traffic.arrived(f"t{number}", 1.0)
        traffic.refused(f"t{number}", "lane", None)
    traffic.arrived("pinned", 1.0)

    found = tenants(traffic)
    assert len(found) == MOST_TENANTS + 1
    assert found["pinned"].attempts == 1
    assert found[OTHER].attempts == found[OTHER].yields == MOST_TENANTS + 1


def test_a_tenant_long_idle_gives_its_label_back_but_a_configured_one_does_not() -> None:
    traffic = Traffic(["pinned"])
    for number in range(MOST_TENANTS - 1):
        traffic.arrived(f"t{number}", float(number))
    traffic.arrived("late", FORGET_AFTER_S - 1.0)
    traffic.arrived("late", FORGET_AFTER_S)

    found = tenants(traffic)
    assert ("t0" in found, "t1" in found, "pinned" in found) == (False, True, True)
    assert (found["late"].attempts, found[OTHER].attempts) == (1, 1)


def test_nobody_and_a_tenant_that_calls_itself_other_are_told_apart_from_the_rest() -> None:
    traffic = Traffic()
    traffic.arrived("", 0.0)
    traffic.arrived(OTHER, 0.0)
    traffic.refused(OTHER, "lane", 3.0)

    found = tenants(traffic)
    assert (found[NO_TENANT].attempts, found[OTHER].attempts, found[OTHER].yields) == (1, 1, 1)
    assert traffic.read().lanes[0].hint.total == 3.0


def test_what_a_client_left_counts_its_tokens_and_is_not_good() -> None:
    traffic = Traffic()
    traffic.arrived("acme", 0.0)
    traffic.ended("acme", "m", ended(outcome=Outcome.CLIENT_GONE, cause=Stage.DECODE), 5.0)

    acme = tenants(traffic)["acme"]
    assert [acme.ttft_p95_s, acme.ttft_p99_s] == pytest.approx([1.5, 1.5], rel=0.05)
    assert replace(acme, ttft_p95_s=None, ttft_p99_s=None) == TenantTraffic(
        "acme", 1, 0, 0, 0, 100, 31, None, None
    )


def test_a_tenants_answers_are_judged_and_its_slowest_streams_are_known() -> None:
    traffic = Traffic()
    traffic.arrived("acme", 0.0)
    for number in range(100):
        outcome = (Outcome.GOOD, Outcome.GOOD, Outcome.LATE, Outcome.ENGINE_FAILED)[number % 4]
        traffic.ended("acme", "m", ended(outcome=outcome, ttft_s=10.0 if number >= 97 else 1.0), 5.0)

    acme = tenants(traffic)["acme"]
    assert (acme.judged, acme.good) == (100, 50)
    assert acme.ttft_p95_s == pytest.approx(1.0, rel=0.05)
    assert acme.ttft_p99_s == pytest.approx(10.0, rel=0.05)


def test_tenants_that_a_reload_brings_have_a_label_however_many_others_came_first() -> None:
    traffic = Traffic(["acme"])
    for number in range(MOST_TENANTS):
        traffic.arrived(f"key-{number}", float(number))
    traffic.tenants_are(["globex", "initech"])
    for name in ("globex", "initech", "key-1"):
        traffic.arrived(name, 200.0)

    assert [tenants(traffic)[name].attempts for name in ("globex", "initech")] == [1, 1]
    assert len(traffic.read().tenants) <= MOST_TENANTS + 1


def test_engines_that_are_gone_leave_their_labels_to_those_that_come() -> None:
    traffic = Traffic()
    for number in range(MOST_ENGINES):
        traffic.decoded(f"old-{number}", 0.0, 1.0, 50)
    traffic.places_are([], ["old-0", "new"])
    traffic.decoded("new", 1.0, 1.0, 50)
    assert [engine.name for engine in traffic.read().engines] == ["old-0", "new"]


def test_lanes_that_a_reload_took_away_leave_their_labels_to_those_that_it_brought() -> None:
    """Three default lanes and then three of one's own are more than have a label: the last of one's own was `other` until a restart."""
    traffic = Traffic()
    for number in range(MOST_LANES):
        traffic.refused("", f"old-{number}", 1.0)
    traffic.places_are(["old-0", "new"], [])
    traffic.refused("", "new", 1.0)
    assert [lane.name for lane in traffic.read().lanes] == ["old-0", "new"]


def test_what_many_engines_share_does_not_fall_when_one_of_them_goes() -> None:
    """Twelve pods of which one is replaced: `other`, which the last of them share, began anew each time."""
    traffic = Traffic()
    names = [f"pod-{number}" for number in range(MOST_ENGINES + 2)]
    for name in names:
        traffic.decoded(name, 0.0, 1.0, 50)
    traffic.places_are([], [*names[1:], "fresh"])
    traffic.decoded("fresh", 1.0, 1.0, 50)
    shown = {engine.name: sum(engine.gap.counts) for engine in traffic.read().engines}
    assert shown == dict.fromkeys([*names[1:MOST_ENGINES], "fresh"], 50) | {OTHER: 100}
