"""Prompts of whole answers: no event says when an engine has read one."""

import pytest

from core.world import governor, steady_prior
from millgate.core.decisions import Admit, Decision, Queue
from millgate.core.events import Arrived, ClientGone, Finished, FirstToken, Released, Tick
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, LaneSettings, ServicePrior


def test_a_prompt_that_had_to_wait_for_its_turn_is_believed_to_be_read_once() -> None:
    """The time at which it would have given up the queue came while it ran, and it counted as read a second time."""
    lane = LaneSettings("lane", ttft_slo_s=8.0, deadline_s=8.0)
    gate = governor(lane, engines=(EngineSettings("engine", 1, prior=steady_prior(4.0)),))
    service = gate._knowledge.engines.by_name["engine"].service
    for attempt in (1, 2):
        gate.handle(Arrived(attempt, prompt_bytes=4_000, max_tokens=100, stream=False), 0.0)
    gate.handle(Tick(), 1.0)
    gate.handle(Finished(1, None, 100), 4.0)
    gate.handle(Released(1), 4.0)
    read = service.has_read(0)

    while (wake := gate.next_wake()) is not None and wake < 30.0:
        gate.handle(Tick(), wake)

    assert gate.snapshot(30.0).engines[0].running == 1
    assert service.has_read(0) - read == 1_000


def test_recordings_whose_answers_tell_no_tokens_teach_how_soon_they_are_heard() -> None:
    """A whisper server tells no usage: nothing was ever learned of it, and of four at once two were refused as too late."""
    engine = EngineSettings("engine", 16, prefill_tokens=16_384)
    gate = governor(LaneSettings("lane", ttft_slo_s=10.0, deadline_s=10.0), engines=(engine,))

    def hear(attempt: int, now: float) -> Decision:
        recording = Arrived(attempt, fixed_tokens=78_125, stream=False, fingerprint=lambda: attempt)
        return gate.handle(recording, now)[0]

    for attempt in range(1, 30):
        hear(attempt, float(attempt))
        gate.handle(Finished(attempt), attempt + 0.4)
        gate.handle(Released(attempt), attempt + 0.4)

    admitted, *waiting = [hear(attempt, 31.0) for attempt in range(31, 35)]
    assert isinstance(admitted, Admit)
    assert admitted.expected_ttft_s < 1.0
    assert [isinstance(each, Queue) and each.expected_wait_s < 3.0 for each in waiting] == [True] * 3


def ask_whole(gate: Governor, attempt: int, now: float, prompt_tokens: int = 4_000) -> Decision:
    asked = Arrived(attempt, fixed_tokens=prompt_tokens, stream=False, fingerprint=lambda: attempt)
    return gate.handle(asked, now)[0]


def test_an_engine_that_never_streams_is_known_by_how_long_its_answers_take() -> None:
    """The meter let prompts in at the speed believed before: all ran at once, none was over in time, and all users left."""
    lane, engine = LaneSettings("lane", ttft_slo_s=60.0, deadline_s=60.0), EngineSettings("engine", 64)
    gate = governor(lane, engines=(engine,))
    believed = engine.prior
    for attempt in range(1, 400):
        now, prompt_tokens, output_tokens = 60.0 * attempt, 1_000 * (attempt % 7 + 1), 20 * (attempt % 5 + 1)
        reading_s = believed.ttft_base_s + 3.0 * believed.ttft_per_token_s * prompt_tokens
        took_s = reading_s + 2.0 * believed.tpot_base_s * (output_tokens - 1)
        ask_whole(gate, attempt, now, prompt_tokens)
        gate.handle(Finished(attempt, prompt_tokens, output_tokens), now + took_s)
        gate.handle(Released(attempt), now + took_s)

    known = gate._knowledge.engines.by_name["engine"]
    assert known.reading.per_token_s == pytest.approx(3.0 * believed.ttft_per_token_s, rel=0.2)
    assert known.service.tpot_s(1) == pytest.approx(2.0 * believed.tpot_base_s, rel=0.2)


def test_users_who_leave_before_any_answer_is_whole_tell_that_the_engine_is_slow() -> None:
    gate = governor(
        LaneSettings("lane", ttft_slo_s=60.0, deadline_s=60.0), engines=(EngineSettings("engine", 64),)
    )
    service = gate._knowledge.engines.by_name["engine"].service
    believed_s = service.service_s(4_000, 100, 1)
    for attempt in range(1, 40):
        now = 60.0 * attempt
        ask_whole(gate, attempt, now)
        gate.handle(ClientGone(attempt), now + 5.0 * believed_s)
        gate.handle(Released(attempt), now + 5.0 * believed_s)

    assert service.service_s(4_000, 100, 1) > 2.0 * believed_s


@pytest.mark.parametrize("leaves", [True, False])
def test_an_engine_that_was_slow_with_long_prompts_is_asked_again(leaves: bool) -> None:
    """All of the time that it hung would be reading: each prompt would be refused as too late, and none could tell that it is well."""
    lane = LaneSettings("lane", ttft_slo_s=10.0, deadline_s=10.0)
    gate = governor(lane, engines=(EngineSettings("engine", 64, prefill_tokens=16_384),))
    for attempt in range(1, 200):
        now = 31.0 * (attempt // 8)
        if isinstance(ask_whole(gate, attempt, now, 12_000), Admit):
            gate.handle(ClientGone(attempt) if leaves else Finished(attempt, 12_000, 100), now + 30.0)
            gate.handle(Released(attempt), now + 30.5)

    for attempt in range(200, 204):
        now = 10.0 * attempt
        assert isinstance(ask_whole(gate, attempt, now, 12_000), Admit)
        gate.handle(Finished(attempt, 12_000, 100), now + 1.0)
        gate.handle(Released(attempt), now + 1.0)


def test_who_leaves_embeddings_late_says_nothing_of_how_fast_they_are_read() -> None:
    """Their answer would be the first token, and none came."""
    lane, engine = LaneSettings("lane", ttft_slo_s=60.0, deadline_s=60.0), EngineSettings("engine", 64)
    gate = governor(lane, engines=(engine,))
    service = gate._knowledge.engines.by_name["engine"].service
    believed_s = service.ttft_s(4_000)
    gate.handle(Arrived(1, fixed_tokens=4_000, max_tokens=0, stream=False), 0.0)

    gate.handle(ClientGone(1), 40.0)

    assert service.ttft_s(4_000) == believed_s
    assert not service.has_read(0)


@pytest.mark.parametrize("seen", [False, True])
def test_whole_answers_wait_for_no_reading_that_is_only_guessed(*, seen: bool) -> None:
    """A gate that let one in at a time never saw two read at once: its engine stood idle beside those who waited."""
    lane = LaneSettings("lane", ttft_slo_s=10.0, deadline_s=10.0, order="short_first")
    engine = EngineSettings("engine", 16, prefill_tokens=16_384, prior=ServicePrior(0.0, 4e-4, 0.01, 0.0))
    gate = governor(lane, engines=(engine,))
    for attempt in range(1, 11):
        now = 10.0 * attempt
        gate.handle(Arrived(attempt, fixed_tokens=4_000, max_tokens=40, stream=seen), now)
        if seen:
            gate.handle(FirstToken(attempt), now + 1.6)
        gate.handle(Finished(attempt, 4_000, 40), now + 2.0)
        gate.handle(Released(attempt), now + 2.0)
    decisions = [type(ask_whole(gate, attempt, 200.0)) for attempt in (50, 51, 52)]
    assert decisions == ([Admit, Queue, Queue] if seen else [Admit, Admit, Admit])
    gate.handle(Arrived(53, fixed_tokens=4_000, max_tokens=40), 200.0)
    assert gate.snapshot(200.0).engines[0].running == (1 if seen else 3), (
        "a stream waits for the readings of others"
    )


def _out(gate: Governor, first: int, count: int, now: float) -> range:
    """Give so many whole answers to the engine."""
    numbers = range(first, first + count)
    assert all(isinstance(ask_whole(gate, number, now, 100), Admit) for number in numbers)
    return numbers


def _limit(gate: Governor, now: float) -> int:
    return gate.snapshot(now).engines[0].limit


def test_where_all_leave_before_their_answer_is_whole_fewer_are_let_in_until_some_stay() -> None:
    """Sixteen at once took forty seconds on a CPU, and no client waits longer than thirty: none was ever answered."""
    gate = governor(
        LaneSettings("lane", ttft_slo_s=10.0, deadline_s=10.0), engines=(EngineSettings("e", 16),)
    )
    for number in _out(gate, 1, 16, 0.0):
        gate.handle(ClientGone(number), 30.0)
        gate.handle(Released(number), 30.0)
    halved = _limit(gate, 30.0)
    assert 4 <= halved < 16, "halved, by what was sent before once only"
    now = 40.0
    for first in range(100, 1_700, 20):
        for number in _out(gate, first, _limit(gate, now), now):
            gate.handle(Finished(number, 100, 40), now + 5.0)
            gate.handle(Released(number), now + 5.0)
        now += 10.0
    assert halved < _limit(gate, now) == 16, "as far as the hard cap, and no further"


def test_some_who_leave_their_whole_answers_change_no_limit() -> None:
    """An engine that takes as long for one alone would only be given fewer of those whom it answers."""
    gate = governor(
        LaneSettings("lane", ttft_slo_s=10.0, deadline_s=10.0), engines=(EngineSettings("e", 16),)
    )
    now = 0.0
    for first in range(1, 2_000, 20):
        for number in _out(gate, first, 16, now):
            gate.handle(ClientGone(number) if number % 2 else Finished(number, 100, 40), now + 30.0)
            gate.handle(Released(number), now + 30.0)
        now += 40.0
    assert _limit(gate, now) == 16
