"""Prompts of a lane that another is protected from are paced: who waits, who does not, and what is told."""

from dataclasses import replace

import pytest

from core.governor.asking import ask, gate_of
from millgate.core.decisions import Admit, Queue, Yield
from millgate.core.events import ClientGone, EngineProgress, Finished, FirstToken, Released, Tick
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, LaneSettings, LimitSettings, ServicePrior, Settings
from millgate.core.words import Counted, LaneTakes, Reason
from millgate.wiring.governor import build_governor

_CHAT = LaneSettings("chat", ttft_slo_s=1.0, deadline_s=1.0, tpot_slo_s=0.05, share=3.0)
_LONG = LaneSettings("long", ttft_slo_s=60.0, deadline_s=60.0)
# 4,000 tokens, read in 0.4 s; a step of 23.875 ms leaves half of the engine's time to them: one in 0.8 s.
_PROMPT = 16_000
_PRIOR = ServicePrior(0.0, 0.0001, 0.023875, 0.0, certain=True)
_EVERY_S = 0.8
_FIXED = LimitSettings()
_ENGINE = EngineSettings("engine", 16, prior=_PRIOR)


def _gate(*, limit: LimitSettings = _FIXED, long: LaneSettings = _LONG) -> Governor:
    return gate_of(_CHAT, long, engine=EngineSettings("engine", 16, prior=_PRIOR, limit=limit))


def _long(gate: Governor, attempt: int, now: float) -> Admit | Queue | Yield:
    decision: Admit | Queue | Yield = ask(gate, attempt, now, lane="long", prompt_bytes=_PROMPT)
    return decision


def test_a_second_long_prompt_waits_though_streams_are_free_and_a_chat_does_not() -> None:
    gate = _gate()
    assert isinstance(_long(gate, 1, 0.0), Admit)
    held = _long(gate, 2, 0.0)
    assert isinstance(held, Queue)
    assert held.expected_wait_s == pytest.approx(_EVERY_S)
    assert isinstance(ask(gate, 3, 0.1, lane="chat"), Admit), "its lane is the one that is protected"

    assert gate.next_wake() == pytest.approx(_EVERY_S)
    assert gate.handle(Tick(), 0.7) == ()
    (let_in,) = gate.handle(Tick(), gate.next_wake() or 0.0)
    assert isinstance(let_in, Admit)
    assert let_in.attempt == 2


def test_a_line_of_long_prompts_is_told_and_served_at_the_pace() -> None:
    gate = _gate()
    told = [_long(gate, number, 0.0) for number in range(6)]
    waits = [each.expected_wait_s if isinstance(each, Queue) else 0.0 for each in told]
    assert waits == pytest.approx([_EVERY_S * n for n in range(6)])
    admitted = {}
    while (wake := gate.next_wake()) is not None and wake < 10.0:
        for decision in gate.handle(Tick(), wake):
            if isinstance(decision, Admit):
                admitted[decision.attempt] = wake
    assert list(admitted.values()) == pytest.approx(waits[1:])


def test_the_next_of_the_line_is_let_in_on_time_when_the_first_has_left_it() -> None:
    gate = _gate()
    for attempt in range(3):
        _long(gate, attempt, 0.0)
    gate.handle(ClientGone(1), 0.2)
    (let_in,) = gate.handle(Tick(), gate.next_wake() or 0.0)
    assert isinstance(let_in, Admit)
    assert let_in.attempt == 2


def test_a_paced_lane_that_another_paced_lane_overtakes_is_looked_at_again() -> None:
    """Two hundred batch jobs waited for good before idle engines: when their time came a long prompt had just moved it."""
    gate = gate_of(_CHAT, _LONG, LaneSettings("bulk", ttft_slo_s=600.0, deadline_s=600.0), engine=_ENGINE)
    _long(gate, 0, 0.0)
    waiting = {1: "long"} | dict.fromkeys(range(2, 10), "bulk")
    for attempt, lane in waiting.items():
        assert isinstance(ask(gate, attempt, 0.01, lane=lane, prompt_bytes=1_600), Queue)
    admitted = []
    while (wake := gate.next_wake()) is not None and wake < 60.0:
        admitted += [each.attempt for each in gate.handle(Tick(), wake) if isinstance(each, Admit)]
    assert sorted(admitted) == list(waiting)


# 20,000 tokens are read in 2 s and keep first tokens waiting for a second more than is promised: one in 40 s.
_BLOCKING = 80_000


def _chats(gate: Governor, attempt: int, now: float) -> None:
    """Serve a short chat."""
    assert isinstance(ask(gate, attempt, now, lane="chat", prompt_bytes=400), Admit)
    _serve(gate, attempt, now)


def _serve(gate: Governor, attempt: int, now: float) -> None:
    gate.handle(FirstToken(attempt), now)
    gate.handle(Finished(attempt, 100, 2), now)
    gate.handle(Released(attempt), now)


def test_short_jobs_do_not_wait_for_the_distance_that_long_prompts_keep() -> None:
    """Beside chat and one prompt of 100,000 tokens in five minutes, two hundred batch jobs waited for five minutes."""
    gate = gate_of(_CHAT, _LONG, LaneSettings("bulk", ttft_slo_s=600.0, deadline_s=600.0), engine=_ENGINE)
    _chats(gate, 100, 0.0)
    assert isinstance(ask(gate, 0, 0.0, lane="long", prompt_bytes=_BLOCKING), Admit)
    job, long = (
        ask(gate, 1, 0.0, lane="bulk", prompt_bytes=1_600),
        ask(gate, 2, 0.0, lane="long", prompt_bytes=_BLOCKING),
    )
    assert isinstance(job, Queue)
    assert isinstance(long, Queue)
    assert (job.expected_wait_s, long.expected_wait_s) == pytest.approx((4.0, 40.0))
    _serve(gate, 0, 2.0)
    admitted: dict[int, float] = {}
    chats = 101
    for tenth in range(21, 405):
        now = tenth / 10
        if tenth % 20 == 5:
            _chats(gate, chats, now)
            chats += 1
        admitted |= {each.attempt: now for each in gate.handle(Tick(), now) if isinstance(each, Admit)}
    assert list(admitted) == [1, 2]
    assert admitted[1] <= 4.0
    assert admitted[2] == pytest.approx(40.0, abs=0.2)


def test_when_the_protected_lane_has_gone_home_long_prompts_are_read_one_after_the_other() -> None:
    """All night an engine read one long prompt in five minutes, for the sake of an empty chat lane."""
    gate = _gate(long=LaneSettings("long", ttft_slo_s=600.0, deadline_s=600.0))
    for second in range(20):
        _chats(gate, 100 + second, float(second))
    running, served = {0}, []
    for attempt in range(5):
        ask(gate, attempt, 20.0, lane="long", prompt_bytes=_BLOCKING)
    for tenth in range(201, 600):
        now = tenth / 10
        running |= {each.attempt for each in gate.handle(Tick(), now) if isinstance(each, Admit)}
        for attempt in [each for each in running if tenth % 20 == 0]:
            running.discard(attempt)
            served.append(now)
            _serve(gate, attempt, now)
    assert served[0] == 22.0
    assert 29.0 <= served[1] <= 34.0, "quiet for ten seconds"
    assert served[-1] - served[1] <= 4 * 2.5
    assert isinstance(ask(gate, 200, 60.0, lane="chat"), Admit)
    held = [ask(gate, attempt, 60.0, lane="long", prompt_bytes=_BLOCKING) for attempt in (10, 11)]
    assert isinstance(held[1], Queue)
    assert held[1].expected_wait_s > 5.0, "the first of the morning is protected again"


def test_a_line_of_long_prompts_keeps_no_chat_waiting() -> None:
    gate = _gate()
    for attempt in range(8):
        _long(gate, attempt, 0.0)
    assert all(isinstance(ask(gate, number, 0.5, lane="chat"), Admit) for number in range(10, 16))


def test_what_cannot_be_read_by_its_deadline_is_refused_with_the_time_at_which_it_can() -> None:
    gate = _gate(long=LaneSettings("long", ttft_slo_s=2.5, deadline_s=2.5))
    decisions = [_long(gate, number, 0.0) for number in range(5)]
    assert [type(each) for each in decisions] == [Admit, Queue, Queue, Yield, Yield]
    refused = decisions[-1]
    assert isinstance(refused, Yield)
    assert refused.reason is Reason.TOO_LATE
    assert refused.retry_after_s > 2.0 * _EVERY_S


def test_a_slow_protected_lane_slows_prompts_and_not_its_own_limit() -> None:
    """Tokens take twice what is promised while prompts are read for half of the time."""
    limit = LimitSettings("slo_gradient", tpot_slo_s=0.05, start=16, minimum=2)
    gate = _gate(limit=limit)
    for second in range(6):
        now, first = float(second), 10 * second
        ask(gate, first, now, lane="chat")
        ask(gate, first + 1, now, lane="chat")
        assert isinstance(_long(gate, first + 2, now), Admit)
        for attempt in range(first, first + 3):
            gate.handle(FirstToken(attempt), now + 0.4)
        for attempt in range(first, first + 3):
            gate.handle(Finished(attempt, 4_000 if attempt == first + 2 else 100, 6), now + 0.9)
            gate.handle(Released(attempt), now + 0.9)
        gate.handle(EngineProgress("engine", ()), now + 0.95)
    (engine,) = gate.snapshot(6.0).engines
    assert engine.limit == 16
    assert engine.prefill_share is not None
    assert engine.prefill_share < 0.4


def test_a_chat_behind_a_prompt_that_exceeds_the_prompt_meter_is_told_at_once_how_long_that_is_read() -> None:
    """The meter counted 16,384 of 100,000 tokens: chats were queued for a second and a half, waited for five, and were refused."""
    engine = EngineSettings("engine", 16, prefill_tokens=16_384, prior=_PRIOR)
    gate = gate_of(LaneSettings("chat", ttft_slo_s=5.0, deadline_s=5.0), _LONG, engine=engine)
    admitted = ask(gate, 0, 0.0, lane="long", prompt_bytes=400_000)
    assert isinstance(admitted, Admit)
    assert admitted.legs[0].prompt_tokens == 100_000
    refused = ask(gate, 1, 1.0, lane="chat")
    assert isinstance(refused, Yield)
    assert refused.reason is Reason.TOO_LATE
    assert refused.retry_after_s > 3.0
    assert isinstance(ask(gate, 2, 7.0, lane="chat"), Queue)


def test_chat_with_one_model_does_not_space_the_long_prompts_of_another() -> None:
    engines = tuple([EngineSettings(name, 16, prior=_PRIOR, models=(name,)) for name in ("small", "big")])
    gate = gate_of(_CHAT, _LONG, engine=engines[0])
    gate.reconfigure(Settings((_CHAT, _LONG), engines), 0.0)
    for second in range(30):
        chat = ask(gate, 100 + second, float(second), lane="chat", prompt_bytes=400, model="small")
        assert isinstance(chat, Admit)
        _serve(gate, 100 + second, float(second))
        if second in {0, 15, 20, 25}:
            long = ask(gate, second, float(second), lane="long", prompt_bytes=_BLOCKING, model="big")
            assert isinstance(long, Admit), second
            _serve(gate, second, second + 0.5)


def test_tokens_of_the_night_do_not_lower_the_limit_of_the_day() -> None:
    """The slow tokens of batch jobs beside long prompts lowered the limit to four where 32 had room; no user was promised faster ones."""
    limit = LimitSettings("slo_gradient", tpot_slo_s=0.05, start=16, minimum=2)
    gate = _gate(limit=limit)
    _chats(gate, 1_000, 0.0)
    for second in range(15, 40):
        now, first = float(second), 10 * second
        for attempt in range(first, first + 8):
            ask(gate, attempt, now, lane="long", prompt_bytes=400)
            gate.handle(FirstToken(attempt), now + 0.1)
        for attempt in range(first, first + 8):
            gate.handle(Finished(attempt, 100, 7), now + 0.9)
            gate.handle(Released(attempt), now + 0.9)
        gate.handle(EngineProgress("engine", ()), now + 0.95)
    (engine,) = gate.snapshot(40.0).engines
    assert engine.limit == 16


def test_a_cap_of_prompt_tokens_holds_without_any_promise_and_only_in_its_lane() -> None:
    capped = LaneSettings("long", ttft_slo_s=60.0, deadline_s=60.0, prefill_per_s=2_000.0)
    gate = gate_of(LaneSettings("chat"), capped, engine=EngineSettings("engine", 16, prior=_PRIOR))
    assert isinstance(_long(gate, 1, 0.0), Admit)
    held = _long(gate, 2, 0.0)
    assert isinstance(held, Queue)
    assert held.expected_wait_s == pytest.approx(2.0)
    assert isinstance(ask(gate, 3, 0.0, lane="chat", prompt_bytes=_PROMPT), Admit)
    (let_in,) = gate.handle(Tick(), gate.next_wake() or 0.0)
    assert isinstance(let_in, Admit)


def test_new_settings_pace_what_waits_from_then_on() -> None:
    engine = EngineSettings("engine", 16, prior=_PRIOR)
    gate = gate_of(LaneSettings("chat"), _LONG, engine=engine)
    assert all(isinstance(_long(gate, number, 0.0), Admit) for number in range(3))
    gate.reconfigure(Settings((_CHAT, _LONG), (engine,)), 1.0)
    assert isinstance(_long(gate, 3, 1.0), Admit)
    assert isinstance(_long(gate, 4, 1.0), Queue)
    assert any(
        isinstance(each, Admit)
        for each in gate.reconfigure(Settings((LaneSettings("chat"), _LONG), (engine,)), 1.1)
    )


def test_a_prompt_waits_no_longer_than_the_pace_of_the_engine_that_is_free_while_another_is_full() -> None:
    """It was looked at when the full one might have been given it, and then only when that one was done."""
    lane = LaneSettings("long", ttft_slo_s=60.0, deadline_s=60.0, prefill_per_s=4_000.0)
    engines = tuple(EngineSettings(name, 1, prior=_PRIOR) for name in ("a", "b"))
    gate = build_governor(Settings((lane,), engines), 0.0)
    assert isinstance(_long(gate, 1, 0.0), Admit)
    assert isinstance(_long(gate, 2, 0.1), Admit)
    gate.handle(Finished(2, 4_000, 10, released=True), 0.6)
    assert isinstance(_long(gate, 3, 0.7), Queue)

    admitted: list[float] = []
    while not admitted and (wake := gate.next_wake()) is not None and wake < 10.0:
        admitted += [wake for each in gate.handle(Tick(), max(wake, 0.7)) if isinstance(each, Admit)]
    assert admitted == [pytest.approx(1.1)]


def test_what_a_lane_has_read_while_no_other_waited_is_not_held_against_it() -> None:
    """A hundred documents, one after the other; then a chat waits behind one, and the next document is refused by no debt of those."""
    chat = LaneSettings("chat", ttft_slo_s=10.0, deadline_s=10.0, share=8.0)
    documents = LaneSettings("documents", deadline_s=60.0, takes=LaneTakes.LONG_PROMPTS, over_s=1.0)
    engine = EngineSettings("engine", 16, prefill_tokens=16_384, prior=_PRIOR)
    gate = gate_of(chat, documents, engine=engine)
    for number in range(100):
        now = 2.0 * number
        assert isinstance(ask(gate, number, now, lane="documents", prompt_bytes=4 * _PROMPT), Admit)
        for event in (FirstToken(number), Finished(number, None, 10), Released(number)):
            gate.handle(event, now + 1.6)
    ask(gate, 100, 200.0, lane="documents", prompt_bytes=4 * _PROMPT)
    assert isinstance(ask(gate, 101, 200.1, lane="chat", prompt_bytes=_PROMPT), Queue)

    held = ask(gate, 102, 200.2, lane="documents", prompt_bytes=4 * _PROMPT)
    assert isinstance(held, Queue)
    assert held.expected_wait_s == pytest.approx(1.6 * 9.0 - 0.2, rel=0.1), (
        "its part of the reading is a ninth"
    )


_PEOPLE = LaneSettings("people", share=8.0)
_DOCUMENTS = LaneSettings(
    "documents", ttft_slo_s=60.0, deadline_s=60.0, takes=LaneTakes.LONG_PROMPTS, over_s=5.0
)
# 200,000 tokens are read for 20 s, twice as long as people wait.
_GIANT, _SHORTER_GIANT, _DOCUMENT = 800_000, 480_000, 240_000


def _gate_of_people(engines: int, *, tpot_slo_s: float | None = None) -> Governor:
    people = replace(_PEOPLE, tpot_slo_s=tpot_slo_s)
    each = [EngineSettings(f"engine-{n}", 16, prefill_tokens=16_384, prior=_PRIOR) for n in range(engines)]
    return build_governor(Settings((people, _DOCUMENTS), tuple(each)), 0.0)


def _ends(gate: Governor, attempt: int, now: float) -> None:
    for event in (FirstToken(attempt), Finished(attempt, None, 2), Released(attempt)):
        gate.handle(event, now)


def _document(gate: Governor, attempt: int, now: float, prompt_bytes: int = _GIANT) -> Admit | Queue | Yield:
    decision: Admit | Queue | Yield = ask(gate, attempt, now, lane="documents", prompt_bytes=prompt_bytes)
    return decision


def _person(gate: Governor, attempt: int, now: float) -> Admit | Queue | Yield:
    decision: Admit | Queue | Yield = ask(gate, attempt, now, lane="people", prompt_bytes=400)
    return decision


def test_a_giant_for_which_people_were_turned_away_is_not_followed_by_the_next_at_once() -> None:
    """With two giants a minute six in ten people were refused: each was read as soon as the people who had waited were gone."""
    gate = _gate_of_people(1)
    assert isinstance(_document(gate, 0, 0.0), Admit)
    assert isinstance(_person(gate, 1, 1.0), Yield)
    _ends(gate, 0, 20.0)

    told = _document(gate, 2, 21.0)
    assert isinstance(told, Yield)
    assert told.value == pytest.approx(20.0 * 9.0 - 21.0, rel=0.15), (
        "a ninth of the reading is its lane's part"
    )
    assert told.counted is Counted.PACE
    assert isinstance(_document(gate, 3, 21.0, _DOCUMENT), Admit), "six seconds turn no person away"
    assert isinstance(_person(gate, 4, 22.0), Queue)


def test_giants_follow_each_other_where_nobody_is_turned_away() -> None:
    gate = _gate_of_people(1)
    for number in range(5):
        assert isinstance(_document(gate, number, 30.0 * number), Admit)
        _ends(gate, number, 30.0 * number + 20.0)
        assert isinstance(_person(gate, 100 + number, 30.0 * number + 21.0), Admit)
        _ends(gate, 100 + number, 30.0 * number + 22.0)


@pytest.mark.parametrize("tpot_slo_s", [None, 0.05])
def test_giants_follow_each_other_where_another_engine_serves_the_people(tpot_slo_s: float | None) -> None:
    """Each engine read one in five minutes, though people went to the others: four engines read a sixth of what they could."""
    gate = _gate_of_people(2, tpot_slo_s=tpot_slo_s)
    for number in range(5):
        now = 60.0 * number
        assert isinstance(_document(gate, number, now), Admit)
        assert isinstance(_person(gate, 100 + number, now + 1.0), Admit)
        _ends(gate, 100 + number, now + 2.0)
        _ends(gate, number, now + 20.0)


def test_a_giant_that_waits_for_its_time_keeps_no_person_from_an_engine() -> None:
    """Forty people were queued before idle engines, behind a giant that waited for the one that was busy."""
    gate = _gate_of_people(2)
    one, other = _document(gate, 0, 0.0), _document(gate, 1, 0.0, _SHORTER_GIANT)
    assert isinstance(one, Admit)
    assert isinstance(other, Admit)
    assert isinstance(_person(gate, 2, 1.0), Yield)
    for number in (0, 1):
        _ends(gate, number, 20.0)
    third = _document(gate, 3, 45.0)
    assert isinstance(third, Admit)
    assert third.legs[0].engine == other.legs[0].engine, "fewer are late for the shorter giant"
    assert isinstance(_document(gate, 4, 46.0), Queue | Yield)

    person = _person(gate, 5, 50.0)
    assert isinstance(person, Admit)
    assert person.legs[0].engine == one.legs[0].engine


def _drains_per_s(*, giant_waits: bool) -> float:
    gate = _gate_of_people(1)
    assert isinstance(_document(gate, 0, 0.0), Admit)
    assert isinstance(_person(gate, 1, 1.0), Yield)
    _ends(gate, 0, 20.0)
    for number in range(2, 12):
        now = 145.0 + number
        assert isinstance(_person(gate, number, now), Admit)
        if giant_waits and number == 2:
            assert isinstance(_document(gate, 100, now), Queue)
        _ends(gate, number, now + 0.9)
    return gate.snapshot(160.0).engines[0].drain_per_s


def test_an_engine_that_a_giant_waits_for_is_not_taken_for_full() -> None:
    """Its few streams were taken for all that it can run, and people were told to come back later than they could."""
    assert _drains_per_s(giant_waits=True) == _drains_per_s(giant_waits=False)


def test_on_a_slow_engine_long_prompts_leave_the_soonest_lane_its_time() -> None:
    """Sixteen thousand tokens, as many as a meter takes, were read for over a minute, and each chat was refused as too late."""
    chat = LaneSettings("chat", ttft_slo_s=10.0, deadline_s=10.0)
    cpu = EngineSettings(
        "cpu", 16, prefill_tokens=16_384, prior=ServicePrior(0.0, 0.004, 0.05, 0.0, certain=True)
    )
    gate = gate_of(chat, _LONG, engine=cpu)
    assert isinstance(ask(gate, 1, 0.0, lane="long", prompt_bytes=6_000), Admit), (
        "6 s, and nothing is before it"
    )
    assert isinstance(ask(gate, 2, 0.1, lane="long", prompt_bytes=6_000), Queue), (
        "what is unread takes over a fifth of 10 s"
    )
    assert isinstance(ask(gate, 3, 0.2, lane="chat", prompt_bytes=800), Admit)
    (admit,) = gate.handle(FirstToken(1), 6.0)
    assert (type(admit), admit.attempt) == (Admit, 2)
    assert isinstance(ask(gate, 4, 7.0, lane="chat", prompt_bytes=800), Admit)


def test_embeddings_on_a_slow_engine_are_read_together() -> None:
    """An engine of embeddings has no chats that they could make late."""
    cpu = EngineSettings(
        "cpu", 8, prefill_tokens=16_384, prior=ServicePrior(0.0, 0.004, 0.05, 0.0, certain=True)
    )
    chat = LaneSettings("chat", ttft_slo_s=10.0, deadline_s=10.0)
    batch = LaneSettings("long", ttft_slo_s=60.0, deadline_s=60.0, order="short_first")
    gate = gate_of(chat, batch, engine=cpu)
    read = [ask(gate, number, 0.0, lane="long", prompt_bytes=1_200, max_tokens=0) for number in range(8)]
    assert all(isinstance(each, Admit) for each in read), "of 9.6 s, less than a fifth of a minute"
