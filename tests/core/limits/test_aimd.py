"""One more while all is well, a tenth less at any sign of overload."""

from core.limits.readings import SOUND
from millgate.core.limits.aimd import AimdLimit


def test_it_adds_one_a_window_while_half_of_it_is_in_use() -> None:
    limit = AimdLimit(100, 10, tpot_slo_s=0.03)
    limit.observe(SOUND._replace(max_inflight=5))
    assert limit.current() == 11
    limit.observe(SOUND._replace(max_inflight=5))
    assert limit.current() == 11


def test_it_takes_a_tenth_when_answers_are_too_slow() -> None:
    limit = AimdLimit(100, 50, tpot_slo_s=0.03)
    limit.observe(SOUND._replace(max_inflight=50, tpot_s=0.0301))
    assert limit.current() == 45


def test_without_an_slo_latency_is_no_sign() -> None:
    limit = AimdLimit(100, 50)
    limit.observe(SOUND._replace(tpot_s=99.0, waiting=1))
    assert limit.current() == 51


def test_it_stays_where_fifty_samples_are_missing() -> None:
    limit = AimdLimit(100, 50, tpot_slo_s=0.03)
    limit.observe(SOUND._replace(samples=49, tpot_s=99.0))
    assert limit.current() == 50


def test_it_adds_its_root_while_the_engine_says_that_nothing_waits() -> None:
    limit = AimdLimit(300, 100)
    limit.observe(SOUND._replace(max_inflight=100, waiting=0))
    assert limit.current() == 110


def test_a_queue_of_a_few_keeps_it_growing_by_one() -> None:
    limit = AimdLimit(300, 100)
    limit.observe(SOUND._replace(max_inflight=100, waiting=3))
    assert limit.current() == 101
