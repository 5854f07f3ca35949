"""`python -m lab cluster`, `lab.replicas` and `lab.replica_quotas`: faults, the windows of a quota, replicas in virtual time."""

import pytest
from lab.cluster.faults import FAULTS, planned
from lab.cluster.quotas import BURST_S, RATE_PER_S, largest_share
from lab.interpreted import is_compiled
from lab.replica_quotas import play as play_quota
from lab.replicas import CAP, REPLICAS, Setup, play

from millgate.cluster.leases import FailurePolicy, LeaseSettings

INTERPRETED = pytest.mark.skipif(is_compiled(), reason="a compiled class has no interpreted ones below it")


def test_a_plan_of_faults_is_its_seeds_and_has_every_kind_before_any_comes_again() -> None:
    plan = planned(600.0, 20.0, 1)

    assert plan == planned(600.0, 20.0, 1)
    assert plan != planned(600.0, 20.0, 2)
    kinds = {name for _, name, _ in plan}
    assert len({name for _, name, _ in plan[: len(kinds)]}) == len(kinds)
    assert kinds <= set(FAULTS)
    assert plan[0][0] >= 20.0 - 4.0
    assert plan[-1][0] <= 600.0 - 20.0 + 4.0


def test_what_leaves_evenly_by_the_rate_is_beyond_no_window() -> None:
    tokens = 50
    taken = [(number * tokens / RATE_PER_S, tokens) for number in range(1000)]

    assert largest_share(taken) <= 2 * tokens / (RATE_PER_S * BURST_S)


def test_what_leaves_at_once_counts_whole_and_ebbs_by_the_rate() -> None:
    burst = round(RATE_PER_S * BURST_S)

    assert largest_share([(10.0, burst)]) == 1.0
    assert largest_share([(10.0, burst), (10.0 + BURST_S / 2, burst)]) == 1.5


@INTERPRETED
def test_replicas_over_a_lossy_store_that_are_killed_never_pass_the_cap() -> None:
    setup = Setup(load=1.3, lost=0.1, kill_every_s=10.0, horizon_s=60.0)

    for seed in (11, 12):
        run = play(setup, seed)
        assert run.peak == CAP
        assert run.finished > 0.75 * play(Setup(1, load=1.3, horizon_s=60.0), seed).finished


@INTERPRETED
def test_clients_that_return_to_any_replica_keep_their_place_and_find_their_hints_true() -> None:
    one = Setup(1, max_queue=0, deadline_s=60.0, load=1.3, horizon_s=100.0)

    for seed in (21, 22):
        alone, shared = play(one, seed), play(one._replace(replicas=4, hot_share=0.0), seed)
        assert shared.ordered > 0.92 * alone.ordered
        assert shared.kept > 0.9 * alone.kept
        assert shared.finished > 0.95 * alone.finished


@INTERPRETED
@pytest.mark.parametrize(("seed", "hot_share"), [(23, 0.0), (24, 0.7)])
def test_clients_of_a_capped_tenant_that_return_to_any_replica_find_their_hints_true(
    seed: int, hot_share: float
) -> None:
    one = Setup(1, max_queue=0, deadline_s=60.0, load=1.3, horizon_s=100.0, capped=CAP)

    alone, shared = play(one, seed), play(one._replace(replicas=4, hot_share=hot_share), seed)
    assert shared.peak == CAP
    assert shared.kept > 0.8, "where each replica had a line of its own a tenth was kept"
    assert shared.finished > 0.9 * alone.finished


@INTERPRETED
@pytest.mark.parametrize(("seed", "hot_share"), [(31, 0.7), (32, 0.95)])
def test_a_quota_is_used_up_and_never_passed_wherever_clients_come_and_return(
    seed: int, hot_share: float
) -> None:
    run = play_quota(Setup(4, hot_share=hot_share, horizon_s=90.0), seed)

    assert run.used > 0.95
    assert run.most <= 1.0
    assert run.kept > 0.7


@INTERPRETED
def test_a_quota_is_not_passed_where_replicas_are_killed_and_renewals_lost() -> None:
    run = play_quota(Setup(4, lost=0.1, kill_every_s=10.0, horizon_s=60.0), 33)

    assert run.most <= 1.0
    assert run.used > 0.5


_AWAY = Setup(hot_share=0.0, horizon_s=600.0, away=(120.0, 180.0))
_CLOSED = _AWAY._replace(lease=LeaseSettings(policy=FailurePolicy.CLOSED))


@INTERPRETED
def test_ten_minutes_with_a_replica_away_for_one_stay_below_the_cap_and_all_are_back_in_use_after() -> None:
    run = play(_CLOSED, 41)

    assert run.peak == CAP
    assert run.finished > 0.9 * play(Setup(1, horizon_s=600.0), 41).finished


@INTERPRETED
def test_by_policy_share_a_replica_that_is_away_passes_the_cap_by_an_even_share_at_most() -> None:
    run = play(_AWAY._replace(load=1.3, horizon_s=240.0), 42)

    assert CAP <= run.peak <= CAP + CAP / REPLICAS


@INTERPRETED
def test_five_minutes_with_a_replica_away_for_one_take_no_more_than_the_quota_in_any_window() -> None:
    run = play_quota(_CLOSED._replace(horizon_s=300.0), 43, users=40)

    assert run.most <= 1.0
    assert run.used > 0.9
