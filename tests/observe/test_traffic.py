"""Distributions: what is added comes back, by name, and names are bounded."""

import math

import pytest
from hypothesis import given, strategies as st

from headgate.core.decisions import Ended
from headgate.core.words import Outcome, Stage
from headgate.observe.histogram import Buckets, Spread
from headgate.observe.traffic import (
    FORGET_AFTER_S,
    MOST_ENGINES,
    MOST_LANES,
    MOST_TENANTS,
    NOBODY,
    OTHER,
    TenantTraffic,
    Traffic,
)

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


def test_an_answer_is_measured_from_arrival_for_its_lane_and_from_admission_for_its_engine() -> None:
    traffic = Traffic()
    traffic.ended("", ended())

    (lane,), (engine,) = traffic.read().lanes, traffic.read().engines
    assert (lane.wait.total, lane.ttft.total, lane.total.total) == (0.5, 1.5, 4.5)
    assert engine.ttft.total == 1.0
    assert engine.tpot.total == pytest.approx(0.1)


def test_an_answer_that_was_not_streamed_has_no_time_to_its_first_token() -> None:
    traffic = Traffic()
    traffic.ended("", ended(ttft_s=None))

    assert sum(traffic.read().lanes[0].ttft.counts) == 0
    assert sum(traffic.read().lanes[0].total.counts) == 1


def test_tokens_count_as_many_as_they_are_and_the_variance_sees_a_stutter() -> None:
    even, uneven = Traffic(), Traffic()
    for second in range(10):
        even.decoded("gpu", float(second), 1.0, 50)
        uneven.decoded("gpu", float(second), 1.0, 10 if second % 2 else 90)

    assert sum(even.read().engines[0].gap.counts) == sum(uneven.read().engines[0].gap.counts) == 500
    assert even.read().engines[0].gap_variance == pytest.approx(0.0, abs=1e-12)
    assert (uneven.read().engines[0].gap_variance or 0.0) > 1e-4


def test_lanes_and_engines_beyond_the_bound_are_one() -> None:
    traffic = Traffic()
    for number in range(3 * MOST_ENGINES):
        traffic.ended("", ended(f"lane-{number}", f"engine-{number}"))

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
    assert (found[NOBODY].attempts, found[OTHER].attempts, found[OTHER].yields) == (1, 1, 1)
    assert traffic.read().lanes[0].hint.total == 3.0


def test_what_a_client_left_counts_its_tokens_and_is_not_good() -> None:
    traffic = Traffic()
    traffic.arrived("acme", 0.0)
    traffic.ended("acme", ended(outcome=Outcome.CLIENT_GONE, cause=Stage.DECODE))

    assert tenants(traffic)["acme"] == TenantTraffic("acme", 1, 0, 0, 100, 31)
