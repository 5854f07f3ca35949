"""How long a whole answer is waited for: as long as the longest that may come can take, while its engine lives."""

import pytest

from core.world import governor
from millgate.core.decisions import Admit, Ended, Yield
from millgate.core.events import Arrived, ClientGone, EngineSeen, Finished, Released
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, LaneSettings, ServicePrior
from millgate.core.words import DeadlineFrom, Reason

LANE = LaneSettings("interactive", ttft_slo_s=10.0, deadline_s=10.0)
PACE_S = 29.0 / 2032
"""A small model on a CPU: 2,032 tokens in 29 s."""


def ask(gate: Governor, number: int, at: float, max_tokens: int | None = None) -> Admit:
    """Ask for a whole answer of an idle engine."""
    asked = Arrived(number, prompt_bytes=400, max_tokens=max_tokens, stream=False)
    (admit,) = gate.handle(asked, at)
    assert isinstance(admit, Admit)
    return admit


@pytest.mark.parametrize("before_tokens", [0, 10, 2000])
@pytest.mark.parametrize("pace_s", [PACE_S, 0.2])
@pytest.mark.parametrize("kv_tokens", [None, 8_192])
def test_no_whole_answer_without_max_tokens_is_given_up_while_its_engine_keeps_its_pace(
    before_tokens: int, pace_s: float, kv_tokens: int | None
) -> None:
    """Of 1 to 2,000 tokens; whatever was learned of lengths from a hundred others bounds none of them."""
    gate = governor(LANE, engines=(EngineSettings("engine", 4, kv_tokens),))
    now = 0.0
    lengths = [before_tokens] * (100 if before_tokens else 0) + [1, 10, 100, 500, 1000, 2000]
    for number, tokens in enumerate(lengths):
        admit = ask(gate, number, now)
        ends_at = now + 0.1 + tokens * pace_s
        assert ends_at < admit.first_event_by
        gate.handle(Finished(number, 100, tokens), ends_at)
        gate.handle(Released(number), ends_at)
        now = ends_at + 1.0


def test_an_answer_is_given_all_that_its_client_has_asked_for() -> None:
    gate = governor(LANE, engines=(EngineSettings("engine", 4),))
    for number in range(50):
        ask(gate, number, number)
        gate.handle(Finished(number, 100, 10), number + 0.1 + 10 * PACE_S)
        gate.handle(Released(number), number + 0.1 + 10 * PACE_S)
    admit = ask(gate, 99, 60.0, max_tokens=20_000)
    assert admit.first_event_by > 60.0 + 20_000 * PACE_S


def test_without_a_bound_of_its_client_the_settings_or_the_memory_bound_it() -> None:
    short, long, small = (
        ask(governor(LANE, engines=(settings,)), 1, 0.0).first_event_by
        for settings in (
            EngineSettings("engine", 4, longest_answer=100),
            EngineSettings("engine", 4, longest_answer=10_000),
            EngineSettings("engine", 4, kv_tokens=1_000, longest_answer=10_000),
        )
    )
    assert short < small < long


def test_an_idle_engine_that_reads_faster_than_believed_is_asked_again() -> None:
    """Nothing shows its first tokens, so what it was believed to need for reading would be believed for ever."""
    lane = LaneSettings("interactive", ttft_slo_s=2.0, deadline_s=2.0)
    gate = governor(lane, engines=(EngineSettings("engine", 4),))
    believed = ServicePrior()
    assert believed.ttft_base_s + 24_000 * believed.ttft_per_token_s > lane.deadline_s
    for number in range(20):
        now = 10.0 * number
        asked = Arrived(number, prompt_bytes=96_000, max_tokens=10, stream=False)
        (admit,) = gate.handle(asked, now)
        assert isinstance(admit, Admit)
        expected_s = admit.expected_ttft_s
        gate.handle(Finished(number, 24_000, 10), now + 0.8)
        gate.handle(Released(number), now + 0.8)
    assert expected_s == pytest.approx(0.8 - 9 * believed.tpot_base_s, rel=0.1)


@pytest.mark.parametrize("output_tokens", [1, 5])
def test_an_evaluation_that_has_prompts_scored_makes_no_chat_on_the_same_engine_late(
    output_tokens: int,
) -> None:
    """Reading 2,000 tokens takes longer than believed; all of that was the pace of the one token: six seconds each."""
    gate = governor(LANE, engines=(EngineSettings("engine", 8),))
    reading_s, now, number = 0.33, 0.0, 0
    for _wave in range(25):
        for _each in range(8):
            number += 1
            asked = Arrived(number, prompt_bytes=8_000, max_tokens=output_tokens, stream=False)
            assert isinstance(gate.handle(asked, now)[0], Admit)
        for each in range(number - 7, number + 1):
            now += reading_s
            gate.handle(Finished(each, 2_000, output_tokens), now)
            gate.handle(Released(each), now)
        now += 1.0

    engine = gate.snapshot(now).engines[0]
    assert engine.expected_tpot_s == pytest.approx(ServicePrior().tpot_base_s, rel=0.2)
    chats = [Arrived(1_000 + each, prompt_bytes=160, max_tokens=60, stream=True) for each in range(24)]
    decisions = [gate.handle(chat, now)[0] for chat in chats]
    assert not [each for each in decisions if isinstance(each, Yield)]


def test_a_rollout_that_is_far_longer_than_usual_takes_the_memory_that_it_takes() -> None:
    """Answers of 2,000 tokens among those of 100 held 200 tokens each for the gate, and filled the engine's memory twice over."""
    prior = ServicePrior(0.1, 0.0, 0.02, 0.0)
    gate = governor(LANE, engines=(EngineSettings("engine", 64, 20_000, prior=prior),))
    for number in range(60):
        ask(gate, number, 3.0 * number, 4_000)
        gate.handle(Finished(number, 100, 100), 3.0 * number + 2.1)
        gate.handle(Released(number), 3.0 * number + 2.1)
    now = 200.0
    for number in range(100, 110):
        ask(gate, number, now, 4_000)
    before = gate.snapshot(now).engines[0].kv_tokens
    for second in range(1, 41):
        gate.handle(EngineSeen("engine", now + second, 10, 0, 0.5), now + second)
    engine = gate.snapshot(now + 40.0).engines[0]
    (ended, *_) = gate.handle(ClientGone(100), now + 40.0)

    assert before < 5_000
    assert engine.kv_tokens == pytest.approx(10 * (100 + 40.0 / 0.02), rel=0.1)
    assert isinstance(ended, Ended)
    assert ended.output_tokens == pytest.approx(40.0 / 0.02, rel=0.1)


def _answered(gate: Governor, bounds: list[int], pace_s: float = 0.02) -> float:
    """Have an answer written to each of these bounds, one after the other; return the time."""
    now = 0.0
    for number, tokens in enumerate(bounds):
        ask(gate, number, now, tokens)
        now += 0.1 + tokens * pace_s
        gate.handle(Finished(number, 100, tokens), now)
        gate.handle(Released(number), now)
        now += 1.0
    return now


@pytest.mark.parametrize("classified", [9, 40, 300])
def test_a_large_max_tokens_is_no_long_answer_after_answers_of_a_few_words(classified: int) -> None:
    """Each was as long as its bound of 1 to 10 tokens, so 4,096 were expected of a chat: refused for good before an idle engine."""
    gate = governor(LANE, engines=(EngineSettings("engine", 4),))
    now = _answered(gate, [(1, 5, 10)[each % 3] for each in range(classified)])
    chat = Arrived(1_000, prompt_bytes=400, max_tokens=4_096, stream=False, time_allowed_s=30.0)
    assert isinstance(gate.handle(chat, now)[0], Admit)


def test_an_answer_whose_least_length_its_client_names_is_refused_where_its_time_is_too_short() -> None:
    gate = governor(LANE, engines=(EngineSettings("engine", 4),))
    now = _answered(gate, [10] * 40)
    chat = Arrived(
        1_000, prompt_bytes=400, max_tokens=4_096, min_tokens=4_096, stream=False, time_allowed_s=30.0
    )
    assert isinstance(gate.handle(chat, now)[0], Yield)


@pytest.mark.parametrize("deadline_from", list(DeadlineFrom))
def test_a_client_whose_time_is_too_short_for_such_an_answer_is_not_told_to_come_back(
    deadline_from: DeadlineFrom,
) -> None:
    """An idle engine takes 20 s for it: `come back in 0.1 s` was of no use to a client that waits for 10 s."""
    lane = LaneSettings("batch", ttft_slo_s=60.0, deadline_s=60.0, deadline_from=deadline_from)
    gate = governor(lane, engines=(EngineSettings("engine", 4),))
    now = _answered(gate, [1_000] * 40)
    asked = Arrived(1_000, prompt_bytes=400, max_tokens=1_000, stream=False, time_allowed_s=10.0)
    (refused,) = gate.handle(asked, now)
    assert isinstance(refused, Yield)
    assert (refused.reason, refused.retry) == (Reason.TOO_LATE, False)
