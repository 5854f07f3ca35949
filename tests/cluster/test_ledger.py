"""The ledger by arithmetic: what a replica gets, when another may have it, and what the engine's gauge gives back."""

import pytest

from cluster.replicas import LEASE_S, LINGERS_S, RATE, RENEWAL_S, STREAMS, Cluster, Replica
from millgate.cluster.contract import FencedError, Granted, Holding, Line, Renewal, StoreUnavailableError
from millgate.cluster.ledger import MOST_REPLICAS, LeaseLedger
from millgate.cluster.member import LONGER


def _cluster(*wanted: float) -> tuple[Cluster, list[Replica]]:
    cluster = Cluster()
    replicas = [cluster.start() for _ in wanted]
    for replica, wish in zip(replicas, wanted, strict=True):
        replica.wanted = wish
    return cluster, replicas


def _rounds(cluster: Cluster, *replicas: Replica, count: int = 1) -> None:
    for _ in range(count):
        cluster.passes(RENEWAL_S)
        for replica in replicas:
            cluster.renew(replica)


def _streams(*replicas: Replica) -> list[float]:
    return [replica.shares[STREAMS] for replica in replicas]


def test_an_idle_share_is_with_the_replica_that_wants_it_after_two_renewals() -> None:
    cluster, (idle, busy) = _cluster(0.0, 0.0)
    _rounds(cluster, idle, busy, count=4)
    assert _streams(idle, busy) == [4, 4]

    busy.wanted = 20.0
    _rounds(cluster, busy, idle)
    assert _streams(idle, busy) == [1, 4]
    _rounds(cluster, busy, idle)
    assert _streams(idle, busy) == [1, 4]
    _rounds(cluster, busy, idle)
    assert _streams(idle, busy) == [1, 7]


def test_a_lowered_share_is_free_when_its_replica_says_that_it_took_it_over() -> None:
    cluster, (first, second) = _cluster(20.0, 20.0)
    cluster.renew(first)
    assert _streams(first) == [8]

    cluster.renew(second)
    assert _streams(second) == [0]
    lowering = first.compose(cluster.whole, None, cluster.now)
    cluster.deliver(lowering)
    cluster.renew(second)
    assert _streams(second) == [0]

    first.take(lowering)
    first.used = 6
    cluster.renew(first)
    cluster.renew(second)
    assert _streams(first, second) == [4, 2]


def test_a_vanished_share_stays_out_for_as_long_as_its_streams_may_last() -> None:
    cluster, (lost, left) = _cluster(20.0, 20.0)
    _rounds(cluster, lost, left, count=4)
    lost.used, lost.stopped = 4, True

    _rounds(cluster, left, count=int((LEASE_S + LINGERS_S) / RENEWAL_S) - 1)
    assert _streams(left) == [4]
    _rounds(cluster, left, count=2)
    assert _streams(left) == [8]


def test_a_killed_replicas_streams_are_free_when_the_gauge_shows_them_gone() -> None:
    cluster, (killed, left) = _cluster(20.0, 20.0)
    _rounds(cluster, killed, left, count=4)
    killed.used = left.used = 4
    cluster.kill(killed)

    _rounds(cluster, left, count=int(LEASE_S / RENEWAL_S))
    assert _streams(left) == [4]
    _rounds(cluster, left, count=4)
    assert _streams(left) == [8]


def test_a_killed_replicas_streams_are_free_two_renewals_after_its_lease() -> None:
    cluster, (killed, left) = _cluster(20.0, 20.0)
    _rounds(cluster, killed, left, count=4)
    killed.used = left.used = 4
    cluster.kill(killed)
    _rounds(cluster, left, count=int(LEASE_S / RENEWAL_S))

    _rounds(cluster, left, count=2)

    assert _streams(left) == [8]


def test_a_killed_replicas_streams_are_soon_free_although_the_others_have_just_taken_more() -> None:
    cluster, (killed, left) = _cluster(20.0, 20.0)
    _rounds(cluster, killed, left, count=4)
    killed.used = 4
    cluster.kill(killed)
    _rounds(cluster, left, count=int(LEASE_S / RENEWAL_S))
    left.used = 4

    _rounds(cluster, left, count=4)

    assert _streams(left) == [8]


def test_readings_from_before_all_that_was_admitted_must_be_in_the_gauge_free_nothing() -> None:
    cluster, (stopped, left) = _cluster(20.0, 20.0)
    _rounds(cluster, stopped, left, count=4)
    stopped.used, stopped.stopped, left.used = 4, True, 4
    _rounds(cluster, left, count=int(LEASE_S / RENEWAL_S))

    for _ in range(2):
        cluster.passes(0.22)
        lagging = left.compose(cluster.whole, (4.0, 0.0), cluster.now)
        cluster.deliver(lagging)
        left.take(lagging)

    _rounds(cluster, left, count=4)
    assert _streams(left) == [4]


def test_a_stopped_replicas_streams_stay_out_while_the_gauge_shows_them() -> None:
    cluster, (stopped, left) = _cluster(20.0, 20.0)
    _rounds(cluster, stopped, left, count=4)
    stopped.used, stopped.stopped, left.used = 3, True, 4

    _rounds(cluster, left, count=int(LEASE_S / RENEWAL_S) + 6)

    assert _streams(left) == [5]


def test_streams_that_last_longer_than_expected_stay_out_while_a_gauge_shows_them_but_not_for_ever() -> None:
    cluster, (stopped, left) = _cluster(20.0, 20.0)
    _rounds(cluster, stopped, left, count=4)
    stopped.used, stopped.stopped, left.used = 3, True, 4
    seen = []
    for _ in range(int((LEASE_S + (LONGER + 1.0) * LINGERS_S) / RENEWAL_S)):
        cluster.passes(RENEWAL_S)
        sent = left.compose(cluster.whole, (7.0, 0.0), cluster.now)
        cluster.deliver(sent)
        left.take(sent)
        seen.append(left.shares[STREAMS])

    after = [share for place, share in enumerate(seen) if place * RENEWAL_S > LEASE_S + LINGERS_S + 1.0]
    longer = int((LONGER - 1.0) * LINGERS_S / 2.0 / RENEWAL_S)
    assert after[:longer] == [5.0] * longer
    assert after[-1] == 8.0


def test_one_reading_of_a_gauge_that_lags_frees_nothing() -> None:
    cluster, (stopped, left) = _cluster(20.0, 20.0)
    _rounds(cluster, stopped, left, count=4)
    stopped.used, stopped.stopped, left.used = 4, True, 4
    _rounds(cluster, left, count=int(LEASE_S / RENEWAL_S) + 1)

    lagging = left.compose(cluster.whole, (4.0, 0.0), cluster.now)
    cluster.deliver(lagging)
    left.take(lagging)

    _rounds(cluster, left, count=4)
    assert _streams(left) == [4]


def test_a_rate_is_free_at_the_end_of_its_lease() -> None:
    cluster, (lost, left) = _cluster(20.0, 20.0)
    _rounds(cluster, lost, left, count=4)
    assert left.shares[RATE] == pytest.approx(50.0)

    _rounds(cluster, left, count=int(LEASE_S / RENEWAL_S) + 1)

    assert left.shares[RATE] == pytest.approx(100.0)


def test_a_replica_that_was_given_up_is_fenced_and_what_it_uses_counts_above_its_share() -> None:
    cluster, (stopped, left) = _cluster(20.0, 20.0)
    _rounds(cluster, stopped, left, count=4)
    _rounds(cluster, left, count=int((LEASE_S + LINGERS_S) / RENEWAL_S) + 1)
    left.used, stopped.used = 5, 3

    sent = stopped.compose(cluster.whole, None, cluster.now)
    cluster.deliver(sent)
    assert isinstance(sent.answer, FencedError)
    stopped.take(sent)
    cluster.renew(stopped)
    _rounds(cluster, left, stopped, count=3)

    assert stopped.epoch > left.epoch
    assert _streams(left, stopped) == [4, 3]


def test_a_replica_that_joins_again_keeps_what_it_may_be_using_until_it_confirms_an_answer() -> None:
    cluster, (first, second) = _cluster(20.0, 20.0)
    _rounds(cluster, first, second, count=4)
    first.epoch = first.applied = 0
    first.shares = {}

    joining = first.compose(cluster.whole, None, cluster.now)
    cluster.deliver(joining)
    first.wanted = 0.0
    cluster.renew(second)
    assert _streams(second) == [4]
    first.take(joining)
    _rounds(cluster, first, second, count=3)

    assert _streams(first, second) == [1, 7]


def test_a_whole_that_shrinks_takes_no_stream_away_and_gives_none() -> None:
    cluster, (first, second) = _cluster(20.0, 20.0)
    _rounds(cluster, first, second, count=4)
    first.used, second.used = 4, 0
    cluster.whole[STREAMS] = 4.0

    _rounds(cluster, second, first, count=4)
    assert _streams(first, second) == [2, 0]
    first.used = 3
    _rounds(cluster, first, second)
    assert _streams(first, second) == [2, 1]


def test_a_replica_that_leaves_gives_back_at_once_what_it_does_not_use() -> None:
    cluster, (leaving, left) = _cluster(20.0, 20.0)
    _rounds(cluster, leaving, left, count=4)
    leaving.used = 1
    cluster.renew(leaving)
    cluster.ledger.leave(leaving.name, leaving.epoch - 1)
    _rounds(cluster, left)
    assert _streams(left) == [4]

    cluster.ledger.leave(leaving.name, leaving.epoch)
    _rounds(cluster, left)

    assert _streams(left) == [7]


def test_a_store_that_lost_its_state_grants_for_one_lease_what_is_held() -> None:
    cluster, (first, second) = _cluster(20.0, 0.0)
    _rounds(cluster, first, second, count=4)
    assert _streams(first, second) == [7, 1]
    cluster.flush()
    newcomer = cluster.start()
    newcomer.wanted = 20.0

    _rounds(cluster, newcomer, first)
    assert _streams(newcomer, first) == [0, 4]
    _rounds(cluster, newcomer, first, count=int(LEASE_S / RENEWAL_S) - 2)
    assert _streams(newcomer, first) == [0, 4]
    _rounds(cluster, first, newcomer, count=4)
    assert _streams(first, newcomer) == [4, 4]


def test_a_step_of_the_clock_ends_no_lease() -> None:
    cluster, (first, second) = _cluster(20.0, 20.0)
    _rounds(cluster, first, second, count=4)

    for jump_s in (3600.0, -7200.0):
        cluster.clock_offset += jump_s
        _rounds(cluster, first)
        assert first.shares[RATE] == pytest.approx(50.0)
    _rounds(cluster, first, count=int(LEASE_S / RENEWAL_S) + 1)
    assert first.shares[RATE] == pytest.approx(100.0)


def test_the_lines_of_the_others_come_summed_by_pool() -> None:
    cluster, (first, second, third) = _cluster(1.0, 1.0, 1.0)
    for replica in (first, second):
        sent = replica.compose(cluster.whole, None, cluster.now)
        lines = (Line("large", 3, 1.5), Line("small", 1, 0.5))
        cluster.ledger.renew(sent.renewal._replace(lines=lines), cluster.now)

    granted = cluster.ledger.renew(third.compose(cluster.whole, None, cluster.now).renewal, cluster.now)

    assert granted.replicas == 3
    assert granted.lines == (Line("large", 6, 3.0), Line("small", 2, 1.0))


def test_replicas_beyond_the_bound_are_refused() -> None:
    cluster, _ = _cluster()
    for _ in range(MOST_REPLICAS):
        cluster.renew(cluster.start())

    with pytest.raises(StoreUnavailableError, match="256 replicas"):
        cluster.renew(cluster.start())


def test_an_engine_that_is_renamed_at_half_its_cap_stays_within_it_through_all_three_rollouts() -> None:
    """docs/how-to/cluster.md, "To rename an engine": two names are two engines to the ledger, of half the cap each."""
    ledger, now, serial = LeaseLedger(may_have_lost=False), 0.0, 0
    running: list[tuple[str, Holding]] = []
    answers: dict[str, Granted] = {}
    peaks: list[float] = []

    def pass_time(seconds: float) -> None:
        nonlocal now
        for _ in range(int(seconds / RENEWAL_S)):
            now += RENEWAL_S
            for name, holding in running:
                known = answers.get(name)
                epoch, applied = (known.epoch, known.number) if known is not None else (0, 0)
                answers[name] = ledger.renew(Renewal(name, epoch, applied, LEASE_S, (holding,)), now)
            peaks.append(sum(answers[name].shares[0].amount for name, _ in running))

    for key, whole in (
        ("streams:old", 8.0),
        ("streams:old", 4.0),
        ("streams:new", 4.0),
        ("streams:new", 8.0),
    ):
        for _ in range(3):
            if len(running) == 3:
                name, _ = running.pop(0)
                ledger.leave(name, answers[name].epoch)
            serial += 1
            running.append((f"replica-{serial}", Holding(key, whole, 0.0, 20.0, 1.0, LINGERS_S)))
            pass_time(2 * LEASE_S)
    assert max(peaks) == 8.0
    assert peaks[-1] == 8.0
