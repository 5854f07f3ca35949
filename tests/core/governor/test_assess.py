"""The steps of admission, one by one: size, lane, retry, date, bounds, wait, permit."""

from itertools import count
from typing import Any

import pytest

from core.world import governor, steady_prior
from millgate.core.decisions import Admit, Decision, Queue, Yield
from millgate.core.events import Arrived, ClientGone, EngineDown, Finished, FirstToken, Released, Tick
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, LaneSettings, ServicePrior
from millgate.core.words import DeadlineFrom, Reason


def _gate(
    lane: LaneSettings | None = None,
    kv_tokens: int | None = None,
    prefill_tokens: int | None = None,
    cap: int = 1,
) -> Governor:
    """Return a gate of one stream and answers of 2 s, in a patient lane (or as told)."""
    settings = EngineSettings("engine", cap, kv_tokens, prefill_tokens, prior=steady_prior(2.0))
    return governor(lane or LaneSettings("lane", deadline_s=60.0), engines=(settings,))


def _ask(gate: Governor, attempt: int, now: float = 0.0, **fields: Any) -> Decision:
    arrival = Arrived(attempt, prompt_bytes=400, max_tokens=100, fingerprint=lambda: 7)
    return gate.handle(arrival._replace(**fields), now)[0]


def _finish(gate: Governor, attempt: int, now: float, output_tokens: int = 100) -> None:
    gate.handle(Finished(attempt, 100, output_tokens), now)
    gate.handle(Released(attempt), now)


def test_a_free_gate_admits_with_a_reservation_in_every_meter() -> None:
    gate = _gate(kv_tokens=1_000, prefill_tokens=500)
    admit = _ask(gate, 1)

    assert isinstance(admit, Admit)
    assert admit.legs == (("engine", 1, 200, 100),)
    assert admit.expected_ttft_s == pytest.approx(0.1)
    # Streaming: the first event is due when the deadline and one more prefill are over.
    assert admit.first_event_by == pytest.approx(60.1)


def test_several_answers_reserve_several_times() -> None:
    admit = _ask(_gate(cap=3, kv_tokens=10_000), 1, answers=3)
    assert isinstance(admit, Admit)
    assert admit.legs[0].kv_tokens == 100 + 3 * 100


def test_a_whole_answer_is_given_the_time_of_its_bound_or_the_clients_if_that_is_less() -> None:
    """The pace is only believed: twenty times what all of `max_tokens` would take."""
    plain = _ask(_gate(), 1, stream=False)
    hurried = _ask(_gate(), 1, stream=False, time_allowed_s=30.0)

    assert isinstance(plain, Admit)
    assert isinstance(hurried, Admit)
    assert plain.first_event_by == pytest.approx(60.1 + 20 * (0.1 + 100 * 0.019))
    assert hurried.first_event_by == pytest.approx(30.0)


def test_learned_usage_replaces_the_estimates() -> None:
    gate = _gate(kv_tokens=10_000)
    for attempt in range(30):
        _ask(gate, attempt, float(attempt), max_tokens=4_000)
        gate.handle(Finished(attempt, 50, 10), attempt + 0.5)
        gate.handle(Released(attempt), attempt + 0.5)
    explained = gate.explain(Arrived(99, prompt_bytes=400, max_tokens=4_000), 31.0)

    assert explained.prompt_tokens == pytest.approx(50, abs=10)
    assert explained.output_tokens == 10
    assert explained.kv_tokens == pytest.approx(60, abs=10)


def test_an_answer_without_usage_teaches_nothing_about_lengths() -> None:
    gate = _gate()
    _ask(gate, 1)
    gate.handle(FirstToken(1), 0.1)
    (ended,) = gate.handle(Finished(1), 2.0)

    assert gate.snapshot(2.0).mean_output_tokens == ()
    assert getattr(ended, "output_tokens", None) == 100


def test_an_unknown_lane_is_the_first_one() -> None:
    gate = governor(LaneSettings("first"), LaneSettings("second"), engines=(EngineSettings("engine", 1),))
    assert gate.explain(Arrived(1, lane="second"), 0.0).lane == "second"
    assert gate.explain(Arrived(1, lane="gone"), 0.0).lane == "first"


def test_a_recognised_retry_keeps_its_age_and_with_it_its_deadline() -> None:
    """By `deadline_from`: the request's age counts, or each attempt starts anew."""
    explained = {}
    for origin in DeadlineFrom:
        lane = LaneSettings("lane", deadline_s=20.0, deadline_from=origin, max_queue=0)
        gate = _gate(lane)
        _ask(gate, 1)
        assert isinstance(_ask(gate, 2), Yield)
        again = Arrived(3, prompt_bytes=400, max_tokens=100, fingerprint=lambda: 7)
        explained[origin] = gate.explain(again, 1.8)

    assert all(each.recognised and each.first_seen == 0.0 for each in explained.values())
    assert explained[DeadlineFrom.FIRST_ATTEMPT].deadline == 20.0
    assert explained[DeadlineFrom.ATTEMPT].deadline == pytest.approx(21.8)


def test_a_label_alone_improves_nothing() -> None:
    gate = _gate()
    explained = gate.explain(Arrived(1, retry_count=3, fingerprint=lambda: 1), 5.0)
    assert (explained.recognised, explained.first_seen) == (False, 5.0)


def test_first_seen_from_the_door_counts_but_never_lies_in_the_future() -> None:
    gate = _gate()
    assert gate.explain(Arrived(1, first_seen=2.0), 5.0).first_seen == 2.0
    assert gate.explain(Arrived(1, first_seen=9.0), 5.0).first_seen == 5.0


def test_a_fingerprint_is_not_computed_for_a_stranger_who_is_admitted() -> None:
    called = count()
    _ask(_gate(), 1, fingerprint=lambda: next(called))
    assert next(called) == 0


def test_a_clients_own_time_only_shortens_its_deadline() -> None:
    gate = _gate()
    assert gate.explain(Arrived(1, time_allowed_s=5.0), 1.0).deadline == 6.0
    assert gate.explain(Arrived(1, time_allowed_s=500.0), 1.0).deadline == 61.0


def test_who_left_before_the_first_token_after_a_while_is_recognised_when_it_asks_again() -> None:
    gate = _gate(LaneSettings("lane", deadline_s=10.0))
    _ask(gate, 1)
    _ask(gate, 2)
    gate.handle(ClientGone(2), 0.9)
    assert not gate.explain(Arrived(9, fingerprint=lambda: 7), 0.95).recognised
    _ask(gate, 3, 1.0)
    gate.handle(ClientGone(3), 2.5)
    explained = gate.explain(Arrived(9, retry_count=0, fingerprint=lambda: 7), 2.6)

    assert (explained.recognised, explained.first_seen) == (True, 1.0)


def test_who_saw_a_token_is_not_remembered_when_it_leaves() -> None:
    gate = _gate(LaneSettings("lane", deadline_s=10.0))
    _ask(gate, 1)
    gate.handle(FirstToken(1), 0.1)
    gate.handle(ClientGone(1), 5.0)
    assert gate.snapshot(5.0).retries.records == 0


def test_a_prompt_that_can_never_fit_is_too_large_and_told_not_to_come_back() -> None:
    answer = _ask(_gate(kv_tokens=100), 1)
    assert isinstance(answer, Yield)
    assert (answer.reason, answer.retry, answer.value, answer.bound) == (Reason.TOO_LARGE, False, 100, 100)


def test_without_an_engine_come_back_in_five_to_ten_seconds() -> None:
    gate = _gate()
    gate.handle(EngineDown("engine"), 0.0)
    answers = [_ask(gate, attempt) for attempt in range(5)]
    hints = [answer.retry_after_s for answer in answers if isinstance(answer, Yield)]

    assert len(set(hints)) == 5
    assert all(5.0 <= hint < 10.0 for hint in hints)
    assert isinstance(answers[0], Yield)
    assert answers[0].reason is Reason.NO_ENGINE


@pytest.mark.parametrize(
    ("lane", "fields", "bound"),
    [
        (LaneSettings("lane", deadline_s=60.0, max_queue=2), {}, 2),
        (LaneSettings("lane", deadline_s=60.0, max_queue_tokens=450), {}, 450),
        (LaneSettings("lane", deadline_s=60.0, max_queue_bytes=25), {"body_bytes": 10}, 25),
    ],
)
def test_the_queue_is_bounded_by_count_tokens_and_bytes(
    lane: LaneSettings, fields: dict[str, Any], bound: int
) -> None:
    gate = _gate(lane)
    answers = [_ask(gate, attempt, **fields) for attempt in range(4)]

    assert [type(answer) for answer in answers] == [Admit, Queue, Queue, Yield]
    assert isinstance(answers[3], Yield)
    assert (answers[3].reason, answers[3].bound) == (Reason.QUEUE_FULL, bound)


def test_the_queue_is_bounded_by_the_predicted_wait() -> None:
    """Answers of 2 s, one at a time, deadline 9 s: with some margin for spread not more than three can wait."""
    gate = _gate(LaneSettings("lane", deadline_s=9.0))
    answers = [_ask(gate, attempt) for attempt in range(6)]
    waits = [answer.expected_wait_s for answer in answers if isinstance(answer, Queue)]

    assert waits == pytest.approx([2.0, 4.0, 6.0][: len(waits)], abs=0.1)
    assert 2 <= len(waits) <= 3
    assert {answer.reason for answer in answers if isinstance(answer, Yield)} == {Reason.TOO_LATE}


def test_predicted_time_to_first_token_counts_against_the_deadline() -> None:
    engine = EngineSettings("engine", 1, prior=steady_prior(12.0, ttft_s=10.0))
    gate = governor(LaneSettings("lane", deadline_s=9.0), engines=(engine,))
    _ask(gate, 1)
    gate.handle(FirstToken(1), 10.0)
    _finish(gate, 1, 12.0)
    answer = _ask(gate, 2, 12.0)
    assert isinstance(answer, Yield)
    assert answer.reason is Reason.TOO_LATE
    assert answer.value == pytest.approx(10.0, rel=0.01)
    assert not answer.retry, "it would take as long whenever it came"


def test_an_idle_engine_is_tried_with_a_prompt_longer_than_any_it_has_read() -> None:
    """Or a wrong prior would refuse it for ever, and nothing would ever be learned."""
    engine = EngineSettings("engine", 2, prior=steady_prior(12.0, ttft_s=10.0))
    gate = governor(LaneSettings("lane", deadline_s=9.0), engines=(engine,))
    assert isinstance(_ask(gate, 1), Admit)
    beside = _ask(gate, 2)
    assert isinstance(beside, Yield), "while another runs there is somebody to lose"
    gate.handle(FirstToken(1), 0.1)
    _finish(gate, 1, 1.0)

    assert isinstance(_ask(gate, 3, 1.0), Admit)


def test_the_time_for_a_whole_answer_leaves_less_for_its_first_token() -> None:
    gate = _gate()
    for number in range(100, 110):
        _ask(gate, number, now=2.0 * number)
        gate.handle(FirstToken(number), 2.0 * number + 0.1)
        _finish(gate, number, 2.0 * number + 2.0)
    now = 300.0
    _ask(gate, 1, now)
    patient = _ask(gate, 2, now, stream=False, time_allowed_s=6.0)
    hurried = _ask(gate, 3, now, stream=False, time_allowed_s=6.0)

    assert isinstance(patient, Queue), "2 s of waiting and 2 s of work"
    assert isinstance(hurried, Yield), "4 s of waiting and 2 s of work leave nothing for chance"


def test_max_wait_bounds_the_predicted_wait_and_the_smaller_one_counts() -> None:
    gate = _gate(LaneSettings("lane", deadline_s=60.0, max_wait_s=5.0))
    _ask(gate, 1)
    assert isinstance(_ask(gate, 2), Queue)
    assert isinstance(_ask(gate, 3, max_wait_s=1.0), Yield)
    refused = _ask(gate, 4)
    assert isinstance(refused, Yield)
    assert refused.reason is Reason.SATURATED
    assert refused.bound == pytest.approx(5.0)


@pytest.mark.parametrize("how", ["max_queue", "max_wait_s"])
def test_zero_holds_nobody_but_a_due_return_for_a_second(how: str) -> None:
    lane = (
        LaneSettings("lane", deadline_s=60.0, max_queue=0)
        if how == "max_queue"
        else LaneSettings("lane", deadline_s=60.0, max_wait_s=0.0)
    )
    gate = _gate(lane)
    _ask(gate, 1)
    refused = _ask(gate, 2)
    assert isinstance(refused, Yield)
    assert (refused.reason, refused.value, refused.bound) == (Reason.SATURATED, 1, 1)
    assert isinstance(_ask(gate, 3, 0.5), Yield)
    back = refused.retry_after_s
    queued = _ask(gate, 4, back)

    assert isinstance(queued, Queue)
    wake = gate.next_wake()
    assert wake == pytest.approx(back + 1.0)


def _full_queue(**bounds: Any) -> tuple[Governor, float]:
    """Return a gate whose queue a newcomer fills while somebody is away, and when that one is told to be back."""
    gate = _gate(LaneSettings("lane", deadline_s=60.0, max_queue=1, **bounds))
    _ask(gate, 1)
    _ask(gate, 2, fingerprint=lambda: 1)
    refused = _ask(gate, 3)
    assert isinstance(refused, Yield)
    _finish(gate, 1, 2.0)
    assert isinstance(_ask(gate, 4, 2.0, fingerprint=lambda: 2), Queue)
    return gate, refused.retry_after_s


@pytest.mark.parametrize("order", ["arrival", "short_first"])
def test_who_is_due_takes_the_place_of_the_newcomer_that_fills_the_queue(order: str) -> None:
    gate, back = _full_queue(order=order)
    arrival = Arrived(5, prompt_bytes=400, max_tokens=100, fingerprint=lambda: 7)
    decisions = gate.handle(arrival, back)
    displaced = [(each.attempt, each.reason) for each in decisions if isinstance(each, Yield)]

    assert isinstance(decisions[0], Queue)
    assert displaced == [(4, Reason.DISPLACED)]
    assert gate.snapshot(back).lanes[0].queued == 1


@pytest.mark.parametrize("order", ["arrival", "short_first"])
def test_where_all_were_promised_who_is_due_stands_beyond_the_count_and_no_newcomer_comes_in(
    order: str,
) -> None:
    gate = _gate(LaneSettings("lane", deadline_s=60.0, max_queue=1, order=order))
    _ask(gate, 1)
    _ask(gate, 2, fingerprint=lambda: 2)
    first, second = _ask(gate, 3, fingerprint=lambda: 3), _ask(gate, 4, fingerprint=lambda: 4)
    assert isinstance(first, Yield)
    assert isinstance(second, Yield)
    # Two seconds are between their hints: one is back as late, the other as early as counts as back when told.
    late, early = first.retry_after_s + 0.98, second.retry_after_s - 0.98
    _finish(gate, 1, late - 0.1)
    arrival = Arrived(5, prompt_bytes=400, max_tokens=100, fingerprint=lambda: 3)
    again = [
        gate.handle(arrival, late),
        gate.handle(arrival._replace(attempt=6, fingerprint=lambda: 4), max(late, early)),
    ]
    newcomer = _ask(gate, 7, max(late, early), fingerprint=lambda: 7)

    assert [[type(each) for each in decisions] for decisions in again] == [[Queue], [Queue]]
    assert isinstance(newcomer, Yield)
    assert (newcomer.reason, newcomer.value, newcomer.bound) == (Reason.QUEUE_FULL, 2, 1)


def test_who_is_due_in_a_full_queue_waits_as_long_as_its_promise_counts_as_kept() -> None:
    """As with `max_queue: 0`: a second, or a fifth of what it was told."""
    gate, back = _full_queue()
    _ask(gate, 5, back)
    told_again = gate.handle(Tick(), back + 1.0)

    assert isinstance(told_again[0], Yield)
    assert (told_again[0].attempt, told_again[0].reason) == (5, Reason.SATURATED)


@pytest.mark.parametrize("bounds", [{"max_queue_tokens": 300}, {"max_queue_bytes": 15}], ids=str)
def test_who_is_due_is_queued_as_far_as_memory_goes(bounds: dict[str, Any]) -> None:
    gate = _gate(LaneSettings("lane", deadline_s=60.0, max_queue=1, **bounds))
    _ask(gate, 1)
    _ask(gate, 2, fingerprint=lambda: 1, body_bytes=10)
    refused = _ask(gate, 3, body_bytes=10)
    assert isinstance(refused, Yield)
    again = _ask(gate, 4, refused.retry_after_s, body_bytes=10)

    assert isinstance(again, Yield)
    assert (again.reason, again.bound) == (Reason.QUEUE_FULL, next(iter(bounds.values())))
    assert again.retry_after_s < refused.retry_after_s, "it stands where it stood"


def test_who_is_back_too_soon_finds_no_room_in_a_full_queue_unless_it_comes_for_the_last_time() -> None:
    gate, back = _full_queue()
    too_soon = _ask(gate, 5, back - 1.1, retry_count=1)

    assert isinstance(too_soon, Yield)
    assert too_soon.reason is Reason.QUEUE_FULL
    gate, back = _full_queue()
    assert isinstance(_ask(gate, 5, back - 1.1, retry_count=2), Queue)


@pytest.mark.parametrize("order", ["arrival", "short_first"])
def test_what_was_promised_is_not_broken_for_a_forecast(order: str) -> None:
    """A newcomer with as little time left is refused: from a second place behind 2 s it would be too late."""
    lane = LaneSettings("lane", deadline_s=60.0, order=order, max_queue=0)
    gate = _gate(lane)
    _ask(gate, 1)
    refused = _ask(gate, 2)
    assert isinstance(refused, Yield)
    back = refused.retry_after_s
    _finish(gate, 1, back - 0.1)
    _ask(gate, 3, back - 0.1, fingerprint=lambda: 1)
    queued = _ask(gate, 4, back, time_allowed_s=1.5)
    assert isinstance(queued, Queue)
    assert queued.expected_wait_s > 1.5

    assert gate.next_wake() == pytest.approx(back + 1.0)
    hopeless = _gate(lane)
    _ask(hopeless, 1)
    _ask(hopeless, 2)
    late = _ask(hopeless, 3, back, time_allowed_s=0.05)
    assert isinstance(late, Yield)
    assert late.reason is Reason.TOO_LATE, "its prompt alone takes longer"


def test_who_is_due_is_queued_for_a_fifth_of_its_hint_where_waits_are_short() -> None:
    lane = LaneSettings("lane", deadline_s=600.0, max_wait_s=0.5)
    gate = governor(lane, engines=(EngineSettings("engine", 1, prior=steady_prior(20.0)),))
    _ask(gate, 1)
    refused = _ask(gate, 2)
    assert isinstance(refused, Yield)
    back = refused.retry_after_s
    queued = _ask(gate, 3, back)

    assert isinstance(queued, Queue)
    # Recognition begins 0.1 s after the refusal.
    assert gate.next_wake() == pytest.approx(back + 0.2 * (back - 0.1))


def test_a_newcomer_does_not_pass_by_those_who_wait_even_when_it_would_fit() -> None:
    """In another lane it does so while that lane has less than its share: who waits for a big place still gets it."""
    lanes = (LaneSettings("first", deadline_s=60.0), LaneSettings("second", deadline_s=60.0))
    engine = EngineSettings("engine", 4, kv_tokens=1_000, prior=steady_prior(2.0))
    gate = governor(*lanes, engines=(engine,))
    _ask(gate, 1, max_tokens=500)
    big = _ask(gate, 2, max_tokens=800)
    small = [_ask(gate, 3), _ask(gate, 4, lane="second"), _ask(gate, 5, lane="second")]

    assert big == Queue(2, 1, pytest.approx(2.0, rel=9))  # type: ignore[arg-type]
    assert [type(each) for each in small] == [Queue, Admit, Queue]
    admitted = []
    for attempt in (4, 1, 5):
        gate.handle(Finished(attempt, 100, 500), 1.0)
        admitted += [each.attempt for each in gate.handle(Released(attempt), 1.0) if isinstance(each, Admit)]
    assert admitted[:2] == [5, 2]


def test_of_two_engines_with_room_the_sooner_answer_wins_and_one_that_is_too_small_is_not_asked() -> None:
    engines = (
        EngineSettings("slow", 1, prior=steady_prior(3.0, ttft_s=0.5)),
        EngineSettings("small", 1, kv_tokens=50, prior=steady_prior(1.0, ttft_s=0.01)),
        EngineSettings("fast", 1, prior=steady_prior(2.0, ttft_s=0.1)),
    )
    gate = governor(LaneSettings("lane", deadline_s=60.0), engines=engines)
    answers = [_ask(gate, attempt) for attempt in range(3)]

    assert [each.legs[0].engine for each in answers if isinstance(each, Admit)] == ["fast", "slow"]
    assert isinstance(answers[2], Queue)


def test_an_engine_serves_the_models_that_it_names() -> None:
    engines = (EngineSettings("a", 1, models=("small",)), EngineSettings("b", 1, models=("big",)))
    gate = governor(LaneSettings("lane"), engines=engines)
    admit = _ask(gate, 1, model="big")
    refused = _ask(gate, 2, model="other")

    assert isinstance(admit, Admit)
    assert admit.legs[0].engine == "b"
    assert isinstance(refused, Yield)
    assert refused.reason is Reason.NO_ENGINE


def test_where_only_unread_prompts_are_in_the_way_the_wait_is_the_time_to_read_them() -> None:
    """Nine streams are free: a burst waits for prefills of half a second, not for answers of thirty."""
    engine = EngineSettings("engine", 10, prefill_tokens=100, prior=steady_prior(30.0, ttft_s=0.5))
    gate = governor(LaneSettings("lane", deadline_s=3.0), engines=(engine,))
    _ask(gate, 1)
    queued = _ask(gate, 2)
    turned_away = _ask(gate, 3, max_wait_s=0.0)

    assert queued == Queue(2, 1, 0.5)
    assert isinstance(turned_away, Yield)
    assert turned_away.retry_after_s <= 1.0


def _reading_gate(deadline_s: float, prefill_tokens: int | None, order: str = "short_first") -> Governor:
    """Return a gate of ten streams before an engine that reads 100 tokens, `_ask`'s prompt, in 0.5 s."""
    prior = ServicePrior(0.0, 0.005, 0.01, 0.0)
    engine = EngineSettings("engine", 10, prefill_tokens=prefill_tokens, prior=prior)
    return governor(LaneSettings("lane", deadline_s=deadline_s, order=order), engines=(engine,))


@pytest.mark.parametrize(("deadline_s", "read_at_once"), [(4.0, 1), (5.0, 2), (10.0, 4), (60.0, 8)])
def test_no_more_prompts_wait_in_an_engine_than_it_reads_in_a_fifth_of_the_deadline(
    deadline_s: float, read_at_once: int
) -> None:
    gate = _reading_gate(deadline_s, 800)
    answers = [_ask(gate, attempt) for attempt in range(read_at_once + 1)]

    assert [type(each) for each in answers[:-1]] == [Admit] * read_at_once
    assert not isinstance(answers[-1], Admit)


def test_without_a_prefill_meter_prompts_wait_in_the_engine_up_to_the_deadline() -> None:
    gate = _reading_gate(5.0, None)
    assert [type(_ask(gate, attempt)) for attempt in range(10)] == [Admit] * 10


def test_where_the_gate_orders_as_the_engine_does_the_meter_alone_bounds_what_waits_in_it() -> None:
    gate = _reading_gate(5.0, 800, order="arrival")
    assert [type(_ask(gate, attempt)) for attempt in range(8)] == [Admit] * 8


def test_a_queued_prompt_goes_when_the_one_before_it_is_read() -> None:
    gate = _reading_gate(4.0, 800)
    _ask(gate, 1)
    queued = _ask(gate, 2)

    assert isinstance(queued, Queue)
    assert [type(each) for each in gate.handle(FirstToken(1), 0.5)] == [Admit]
