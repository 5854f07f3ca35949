"""A permit has as many streams as an engine makes sequences of its request: `n`, lists of prompts, lists of texts."""

import pytest

from core.governor.asking import ask, gate_of
from core.world import steady_prior
from millgate.core.decisions import Admit, Queue, Yield
from millgate.core.events import Arrived, ClientGone, EngineSeen, Finished, Released
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, LaneSettings, LimitSettings, TenantSettings
from millgate.core.words import Counted, Reason


def _running(gate: Governor, now: float = 0.0) -> int:
    return gate.snapshot(now).engines[0].running


def test_inv_2_four_answers_of_one_request_fill_a_cap_of_four() -> None:
    gate = gate_of(streams=4)
    first = ask(gate, 1, answers=4)

    assert isinstance(first, Admit)
    assert first.legs[0].streams == 4
    assert isinstance(ask(gate, 2), Queue)
    assert _running(gate) == 4
    gate.handle(Finished(1, 100, 400), 2.0)
    gate.handle(Released(1), 2.0)
    assert _running(gate) == 1


def test_inv_2_a_request_waits_for_all_of_its_streams_and_is_not_passed_meanwhile() -> None:
    gate = gate_of(LaneSettings("lane", deadline_s=60.0, order="arrival"), streams=4)
    ask(gate, 1)
    ask(gate, 2)

    assert isinstance(ask(gate, 3, answers=3), Queue)
    assert isinstance(ask(gate, 4), Queue)
    gate.handle(Finished(1, 100, 100), 2.0)
    admitted = [each.attempt for each in gate.handle(Released(1), 2.0) if isinstance(each, Admit)]
    assert admitted == [3]
    assert _running(gate, 2.0) == 4


def test_more_sequences_than_the_cap_can_ever_hold_are_refused_for_good_and_told_so() -> None:
    refused = ask(gate_of(streams=4), 1, answers=12)

    assert isinstance(refused, Yield)
    assert (refused.reason, refused.retry) == (Reason.TOO_LARGE, False)
    assert (refused.counted, refused.value, refused.bound) == (Counted.STREAMS, 12, 4)


def test_a_list_that_is_only_read_and_longer_than_the_cap_runs_alone() -> None:
    gate = gate_of(streams=4)
    ask(gate, 1)

    assert isinstance(ask(gate, 2, answers=48, max_tokens=0), Queue)
    gate.handle(Finished(1, 100, 100), 2.0)
    admitted = [each for each in gate.handle(Released(1), 2.0) if isinstance(each, Admit)]
    assert [(each.attempt, each.legs[0].streams) for each in admitted] == [(2, 4)]
    assert isinstance(ask(gate, 3, 2.0), Queue)


def test_a_request_of_more_streams_than_a_lowered_limit_runs_alone() -> None:
    limit = LimitSettings("aimd", start=2)
    engine = EngineSettings("engine", 8, prior=steady_prior(2.0), limit=limit)
    gate = gate_of(engine=engine)

    assert isinstance(ask(gate, 1, answers=6), Admit)
    assert isinstance(ask(gate, 2), Queue)


def test_a_tenants_streams_are_counted_by_sequences() -> None:
    gate = gate_of(streams=8, tenants=(TenantSettings("team", max_inflight=4),))

    assert isinstance(ask(gate, 1, tenant="team", answers=3), Admit)
    refused = ask(gate, 2, tenant="team", answers=2)
    assert isinstance(refused, Yield)
    assert refused.reason is Reason.TENANT_LIMIT
    assert isinstance(ask(gate, 3, tenant="team"), Admit)


def test_the_permit_of_who_left_lives_until_the_gauge_has_lost_all_of_its_sequences() -> None:
    gate = gate_of(streams=4)
    ask(gate, 1, answers=3)
    ask(gate, 2)
    gate.handle(EngineSeen("engine", 1.0, 4, 0), 1.0)
    gate.handle(ClientGone(1), 1.0)

    gate.handle(EngineSeen("engine", 1.1, 3, 0), 1.1)
    assert _running(gate, 1.1) == 4
    gate.handle(EngineSeen("engine", 1.2, 1, 0), 1.2)
    assert _running(gate, 1.2) == 1


def test_parallel_answers_are_foreseen_to_end_together_not_one_after_the_other() -> None:
    gate = gate_of(streams=4)
    ask(gate, 1, answers=4)
    queued = ask(gate, 2)

    assert isinstance(queued, Queue)
    assert queued.expected_wait_s == pytest.approx(2.0)


def test_who_needs_several_streams_is_foreseen_to_wait_for_the_last_of_them() -> None:
    gate = gate_of(streams=4)
    for attempt in range(4):
        ask(gate, attempt, 0.4 * attempt)
    one, three = (
        gate.explain(Arrived(attempt, prompt_bytes=400, max_tokens=100, answers=answers), 1.6).expected_wait_s
        for attempt, answers in ((8, 1), (9, 3))
    )
    assert one == pytest.approx(0.4)
    assert three == pytest.approx(1.2)
