"""A simulated engine: it does what its batch does, and misbehaves as told."""

import pytest

from millgate.core.words import FailureKind
from millgate.engine.batching import Batch
from millgate.engine.profile import find_profile, scaled
from millgate.engine.sequences import EngineSequence
from millgate.sim.engines.batched import BatchedStation
from millgate.sim.jobs import Job
from millgate.sim.loop import Loop
from sim.engines.heard import Heard

PROFILE = find_profile("llama3-8b_h100_tp1")


def engine(abort_lag_s: float = 0.0, *, ignores: bool = False) -> tuple[Loop, Heard, BatchedStation]:
    loop = Loop()
    heard = Heard(loop)
    station = BatchedStation(
        "engine",
        loop,
        heard,
        PROFILE.step_model(),
        PROFILE.limits(),
        abort_lag_s=abort_lag_s,
        ignores_hangups=ignores,
    )
    return loop, heard, station


def test_tokens_come_when_the_batch_makes_them() -> None:
    loop, heard, station = engine()
    batch = Batch(PROFILE.step_model(), PROFILE.limits())
    for number, at in enumerate((0.0, 0.01, 0.5), start=1):
        loop.at(at, lambda number: station.start(number, Job(0.0, 500, 40)), number)
        batch.add(EngineSequence(number, 500, 40), at)
    loop.run()
    ends = {event.sequence_id: event.at_s for event in batch.advance(100.0)}

    assert heard.ends == pytest.approx(ends)


def test_a_stall_delays_everything_by_its_length() -> None:
    (calm, heard_calm, one), (loop, heard, other) = engine(), engine()
    for station in (one, other):
        station.start(1, Job(0.0, 1000, 100))
    loop.at(0.2, other.stall, 10.0)
    calm.run()
    loop.run()

    assert heard.ends[1] == pytest.approx(heard_calm.ends[1] + 10.0)
    assert heard.firsts == heard_calm.firsts


def test_a_crash_fails_all_that_runs_and_refuses_until_the_restart() -> None:
    loop, heard, station = engine()
    station.start(1, Job(0.0, 1000, 100))
    loop.at(0.1, lambda _: station.crash(), None)
    loop.at(0.2, lambda _: station.start(2, Job(0.0, 10, 10)), None)
    loop.at(0.3, lambda _: station.restart(), None)
    loop.at(0.4, lambda _: station.start(3, Job(0.0, 10, 10)), None)
    loop.run()

    assert heard.failures == [(1, FailureKind.BROKEN), (2, FailureKind.CONNECT)]
    assert list(heard.ends) == [3]
    assert station.totals().prompt_tokens == 1010


def test_what_a_crash_has_lost_does_not_go_on_when_the_engine_gets_slower() -> None:
    """A drift that went on over a crash let the dead engine answer what ran elsewhere by then."""
    loop, heard, station = engine()
    station.start(1, Job(0.0, 1000, 100))
    loop.at(0.1, lambda _: station.crash(), None)
    loop.at(0.2, station.change_model, scaled(PROFILE, 0.5).step_model())
    loop.at(9.0, lambda _: station.restart(), None)
    loop.run()

    assert not heard.ends


def test_an_engine_that_got_slower_is_as_slow_after_a_restart() -> None:
    loop, heard, station = engine()
    station.change_model(scaled(PROFILE, 0.5).step_model())
    station.start(1, Job(0.0, 1000, 100))
    loop.run()
    alone_s, began_s = heard.ends[1], loop.now
    station.crash()
    station.restart()
    station.start(2, Job(0.0, 1000, 100))
    loop.run()

    assert heard.ends[2] - began_s == pytest.approx(alone_s)


def test_stalls_that_overlap_end_with_the_last_of_them() -> None:
    """The second one was forgotten."""
    (calm, heard_calm, one), (loop, heard, other) = engine(), engine()
    for station in (one, other):
        station.start(1, Job(0.0, 1000, 100))
    loop.at(0.2, other.stall, 10.0)
    loop.at(5.0, other.stall, 7.0)
    calm.run()
    loop.run()

    assert heard.ends[1] == pytest.approx(heard_calm.ends[1] + 11.8)


def test_an_engine_that_crashed_in_a_stall_stalls_again_for_the_time_of_the_second_one() -> None:
    loop, heard, station = engine()
    loop.at(1.0, station.stall, 20.0)
    loop.at(2.0, lambda _: station.crash(), None)
    loop.at(3.0, lambda _: station.restart(), None)
    loop.at(20.0, station.stall, 5.0)
    loop.at(20.0, lambda _: station.start(1, Job(0.0, 1000, 100)), None)
    loop.run()
    (calm, heard_calm, other) = engine()
    other.start(1, Job(0.0, 1000, 100))
    calm.run()

    assert heard.ends[1] == pytest.approx(25.0 + heard_calm.ends[1])


def test_an_abort_frees_the_engine_after_its_lag() -> None:
    loop, heard, station = engine(abort_lag_s=0.3)
    station.start(1, Job(0.0, 1000, 10_000))
    loop.run(1.0)
    station.hang_up(1)
    loop.run(1.25)
    assert station.read()[:2] == (1, 0)
    loop.run(1.4)

    assert station.read()[:2] == (0, 0)
    assert not heard.ends


def test_an_engine_that_ignores_hangups_works_to_the_end() -> None:
    loop, heard, station = engine(ignores=True)
    station.start(1, Job(0.0, 1000, 200))
    loop.run(0.5)
    station.hang_up(1)
    loop.run()

    assert list(heard.ends) == [1]
    assert station.totals().output_tokens == 200


def test_a_slower_model_takes_longer_from_then_on() -> None:
    (calm, heard_calm, one), (loop, heard, other) = engine(), engine()
    for station in (one, other):
        station.start(1, Job(0.0, 1000, 100))
    loop.at(0.1, other.change_model, scaled(PROFILE, 0.5).step_model())
    calm.run()
    loop.run()

    assert 1.5 * heard_calm.ends[1] < heard.ends[1] < 2.0 * heard_calm.ends[1]


def test_what_can_never_fit_fails_at_once() -> None:
    loop, heard, station = engine()
    station.start(1, Job(0.0, 10**7, 10))
    loop.run()

    assert heard.failures == [(1, FailureKind.STATUS)]
