"""A request of two legs: when it is made one, what it takes of either engine, and how each leg ends."""

from typing import Any

import pytest

from millgate.core.decisions import Admit, Cancel, Ended
from millgate.core.events import (
    Arrived,
    ClientGone,
    Draining,
    EngineDown,
    Failed,
    Finished,
    FirstToken,
    HandoffFailed,
    Prefilled,
    Released,
    Tick,
)
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, LaneSettings, ServicePrior, Settings
from millgate.core.snapshot import EngineSnapshot
from millgate.core.words import FailureKind, KvTransfer, Outcome, Role, Sent
from millgate.wiring.governor import build_governor

PROMPT = 4_000
# A prompt of 4,000 tokens is read in 0.4 s; handed over it takes 46 ms.
PRIOR = ServicePrior(0.01, 0.0001, 0.02, 0.0001, certain=True)
LEASE_S = 30.0


def engine(
    name: str, role: Role, streams: int = 8, transfer: KvTransfer = KvTransfer.NIXL, **more: Any
) -> EngineSettings:
    return EngineSettings(
        name, streams, 100_000, prior=PRIOR, role=role, kv_lease_s=LEASE_S, kv_transfer=transfer, **more
    )


def two_engines(*more: EngineSettings) -> Governor:
    lane = LaneSettings("interactive", ttft_slo_s=10.0)
    engines = (engine("reads", Role.PREFILL), engine("writes", Role.DECODE), *more)
    return build_governor(Settings((lane,), engines), 0.0)


def arrival(number: int, prompt_tokens: int = PROMPT, *, hands_over: bool = True) -> Arrived:
    return Arrived(
        number,
        prompt_bytes=4 * prompt_tokens,
        body_bytes=4 * prompt_tokens,
        max_tokens=100,
        hands_over=hands_over,
    )


def admitted(gate: Governor, number: int, now: float, prompt_tokens: int = PROMPT) -> Admit:
    (decision,) = gate.handle(arrival(number, prompt_tokens), now)
    assert isinstance(decision, Admit)
    return decision


def occupied(now: float = 0.0) -> Governor:
    """Return a gate whose decoding engine writes one answer, which a prompt read there would hold up."""
    gate = two_engines()
    admitted(gate, 1, now, prompt_tokens=40)
    gate.handle(FirstToken(1), now + 0.02)
    return gate


def seen(gate: Governor, name: str, now: float) -> EngineSnapshot:
    return next(each for each in gate.snapshot(now).engines if each.name == name)


def meters(gate: Governor, name: str, now: float) -> tuple[int, int, int]:
    found = seen(gate, name, now)
    return found.running, found.kv_tokens, found.prefill_tokens


def names(decision: Admit) -> list[str]:
    return [leg.engine for leg in decision.legs]


def test_an_idle_engine_reads_the_prompt_itself() -> None:
    assert names(admitted(two_engines(), 1, 0.0)) == ["writes"]


def test_where_others_would_wait_for_the_prompt_another_engine_reads_it() -> None:
    assert names(admitted(occupied(), 2, 1.0)) == ["writes", "reads"]


def test_legs_are_counted_by_the_role_of_their_engine() -> None:
    gate = occupied()
    admitted(gate, 2, 1.0)

    counted = dict(gate.snapshot(1.0).legs_by_role)
    assert counted == {Role.UNIFIED: 0, Role.PREFILL: 1, Role.DECODE: 2}


@pytest.mark.parametrize("prompt_tokens", [40, 127])
def test_a_prompt_below_one_block_is_never_handed_over(prompt_tokens: int) -> None:
    assert names(admitted(occupied(), 2, 1.0, prompt_tokens=prompt_tokens)) == ["writes"]


def test_what_its_door_cannot_hand_over_is_read_where_it_is_answered() -> None:
    gate = occupied()
    (decision,) = gate.handle(arrival(2, hands_over=False), 1.0)
    assert isinstance(decision, Admit)
    assert names(decision) == ["writes"]


def test_a_line_before_the_reading_engine_sends_prompts_to_the_other() -> None:
    gate = occupied()
    legs = [len(admitted(gate, number, 1.0).legs) for number in range(2, 8)]
    assert legs[0] == 2
    assert 1 in legs


@pytest.mark.parametrize(
    ("meter", "prompt_tokens", "legs"),
    [(16_384, 17_000, ["writes"]), (16_384, 8_000, ["writes"]), (65_536, 17_000, ["writes", "reads"])],
)
def test_a_prompt_longer_than_the_meter_is_handed_over_while_its_reader_reads_nothing_else(
    meter: int, prompt_tokens: int, legs: list[str]
) -> None:
    reader = engine("reads", Role.PREFILL, prefill_tokens=meter)
    lane = LaneSettings("interactive", ttft_slo_s=10.0)
    gate = build_governor(Settings((lane,), (reader, engine("writes", Role.DECODE))), 0.0)
    for number in range(5):
        admitted(gate, number, 0.0, prompt_tokens=40)
        gate.handle(FirstToken(number), 0.02)
    assert names(admitted(gate, 5, 1.0, prompt_tokens=17_000)) == ["writes", "reads"]
    assert names(admitted(gate, 6, 1.1, prompt_tokens=prompt_tokens)) == legs


def test_both_meters_are_reserved_at_the_admission() -> None:
    gate = occupied()
    before = meters(gate, "writes", 1.0)
    admit = admitted(gate, 2, 1.0)
    answers, reads = admit.legs
    prompt_tokens = reads.kv_tokens
    assert answers.prompt_tokens == 1
    assert answers.kv_tokens > prompt_tokens
    assert meters(gate, "reads", 1.0) == (1, prompt_tokens, prompt_tokens)
    assert meters(gate, "writes", 1.0) == (2, before[1] + answers.kv_tokens, before[2] + 1)


def test_the_first_leg_ends_with_its_answer_and_its_memory_with_the_first_token() -> None:
    gate = occupied()
    admit = admitted(gate, 2, 1.0)
    gate.handle(Prefilled(2, PROMPT, 0), 1.5)
    assert meters(gate, "reads", 1.5) == (0, admit.legs[1].kv_tokens, 0)
    gate.handle(FirstToken(2), 1.6)
    assert meters(gate, "reads", 1.6) == (0, 0, 0)
    legs = gate.snapshot(1.6).legs
    assert (legs.begun, legs.fetched, legs.lost, legs.expired) == (1, 1, 0, 0)
    assert legs.transfer_s == pytest.approx(0.1)


def test_a_network_that_is_far_slower_than_believed_is_known_after_a_few_transfers() -> None:
    gate, apart, now = occupied(), 0, 1.0
    for number in range(2, 12):
        legs = admitted(gate, number, now).legs
        apart += len(legs) == 2
        if len(legs) == 2:
            gate.handle(Prefilled(number, PROMPT, 0), now + 0.4)
            now += 2.4
        gate.handle(FirstToken(number), now)
        gate.handle(Finished(number, PROMPT, 100), now)
        gate.handle(Released(number), now)
        now += 0.1
    assert 1 <= apart <= 3


def test_a_whole_answer_ends_both_legs() -> None:
    gate = occupied()
    gate.handle(arrival(2)._replace(stream=False), 1.0)
    gate.handle(Prefilled(2, PROMPT, 0), 1.5)
    gate.handle(Finished(2, PROMPT, 100, 0), 4.0)
    gate.handle(Released(2), 4.0)
    gate.handle(Finished(1, 40, 100), 4.0)
    gate.handle(Released(1), 4.0)
    assert meters(gate, "reads", 4.0) == meters(gate, "writes", 4.0) == (0, 0, 0)
    # It does not show when its prompt was fetched, and teaches nothing of that.
    legs = gate.snapshot(4.0).legs
    assert legs.fetched == 1
    assert legs.transfer_s < 0.1


def test_what_is_never_fetched_is_taken_until_the_lease_ends() -> None:
    gate = occupied()
    admit = admitted(gate, 2, 1.0)
    gate.handle(Prefilled(2, PROMPT, 0), 2.0)
    gate.handle(ClientGone(2), 3.0)
    for wake in (5.0, 2.0 + LEASE_S - 0.01):
        gate.handle(Tick(), wake)
        assert meters(gate, "reads", wake) == (0, admit.legs[1].kv_tokens, 0)
    assert gate.next_wake() == pytest.approx(2.0 + LEASE_S)
    gate.handle(Tick(), 2.0 + LEASE_S)
    assert meters(gate, "reads", 2.0 + LEASE_S) == (0, 0, 0)
    assert gate.snapshot(40.0).legs.expired == 1


def test_a_client_that_leaves_while_the_prompt_is_read_frees_the_other_engine_at_once() -> None:
    gate = occupied()
    before = meters(gate, "writes", 1.0)
    admitted(gate, 2, 1.0)
    (ended,) = gate.handle(ClientGone(2), 1.2)
    assert isinstance(ended, Ended)
    assert ended.outcome is Outcome.CLIENT_GONE
    gate.handle(Tick(), 1.201)
    assert meters(gate, "writes", 1.201) == before
    assert meters(gate, "reads", 1.201)[0] == 1
    lag_s = seen(gate, "reads", 1.2).abort_lag_s
    gate.handle(Tick(), 1.21 + lag_s)
    assert meters(gate, "reads", 1.21 + lag_s) == (0, 0, 0)


def test_a_first_leg_that_fails_lets_the_second_engine_read() -> None:
    gate = occupied()
    admit = admitted(gate, 2, 1.0)
    assert gate.handle(HandoffFailed(2, FailureKind.BROKEN), 1.2) == ()
    running, _kv, unread = meters(gate, "writes", 1.2)
    assert (running, unread) == (2, admit.legs[1].kv_tokens)
    gate.handle(FirstToken(2), 1.7)
    assert meters(gate, "writes", 1.7)[2] == 0
    gate.handle(Tick(), 2.0)
    assert meters(gate, "reads", 2.0) == (0, 0, 0)
    assert gate.snapshot(2.0).legs.lost == 1


def test_a_handoff_that_is_refused_stays_taken_to_the_end_of_the_lease() -> None:
    gate = occupied()
    admit = admitted(gate, 2, 1.0)
    gate.handle(Prefilled(2, PROMPT, 0), 1.5)
    gate.handle(HandoffFailed(2, FailureKind.STATUS), 1.6)
    gate.handle(FirstToken(2), 2.1)
    assert meters(gate, "reads", 2.1) == (0, admit.legs[1].kv_tokens, 0)
    gate.handle(Tick(), 1.5 + LEASE_S)
    assert meters(gate, "reads", 1.5 + LEASE_S) == (0, 0, 0)


def test_a_second_leg_that_was_never_sent_is_tried_once_more_on_another_engine() -> None:
    gate = two_engines(engine("also writes", Role.DECODE))
    for number, name in ((1, "writes"), (2, "also writes")):
        assert names(admitted(gate, number, 0.0, prompt_tokens=40)) == [name]
        gate.handle(FirstToken(number), 0.1)
    first = admitted(gate, 3, 1.0)
    assert len(first.legs) == 2
    gate.handle(Prefilled(3, PROMPT, 0), 1.5)
    decisions = gate.handle(Failed(3, FailureKind.CONNECT, Sent.NONE), 1.6)
    (again,) = [each for each in decisions if isinstance(each, Admit)]
    assert again.legs[0].engine != first.legs[0].engine
    gate.handle(Prefilled(3, PROMPT, PROMPT - 16), 1.7)
    gate.handle(FirstToken(3), 1.8)
    gate.handle(Finished(3, PROMPT, 10), 2.0)
    gate.handle(Released(3), 2.0)
    gate.handle(Tick(), 40.0)
    assert meters(gate, "reads", 40.0) == (0, 0, 0)


def test_a_request_that_the_reading_engine_declines_frees_both() -> None:
    gate = occupied()
    before = meters(gate, "writes", 1.0)
    admitted(gate, 2, 1.0)
    (ended,) = gate.handle(Failed(2, FailureKind.STATUS, Sent.REQUEST, blames_request=True), 1.2)
    assert isinstance(ended, Ended)
    assert ended.outcome is Outcome.BAD_REQUEST
    gate.handle(Released(2), 1.2)
    gate.handle(Tick(), 2.0)
    assert meters(gate, "writes", 2.0) == before
    assert meters(gate, "reads", 2.0) == (0, 0, 0)


def test_a_reading_engine_that_is_down_reads_nothing() -> None:
    gate = occupied()
    gate.handle(EngineDown("reads"), 0.5)
    assert names(admitted(gate, 2, 1.0)) == ["writes"]


def test_a_reading_engine_answers_nothing_itself() -> None:
    gate = build_governor(
        Settings(
            (LaneSettings("interactive", ttft_slo_s=10.0),),
            (engine("reads", Role.PREFILL), engine("writes", Role.DECODE, streams=1)),
        ),
        0.0,
    )
    admitted(gate, 1, 0.0)
    (waits,) = gate.handle(arrival(2), 0.1)
    assert not isinstance(waits, Admit)
    assert gate.capacity() == (1, 1)


def test_late_words_about_a_first_leg_change_nothing() -> None:
    gate = occupied()
    gate.handle(Prefilled(1, 40, 0), 0.5)
    gate.handle(HandoffFailed(1, FailureKind.BROKEN), 0.5)
    gate.handle(Prefilled(99, 40, 0), 0.5)
    assert gate.snapshot(0.5).legs == (0, 0, 0, 0, 0, 0.0)
    assert meters(gate, "reads", 0.5) == (0, 0, 0)


def test_what_is_handed_over_teaches_nothing_of_how_fast_the_second_engine_reads() -> None:
    gate = occupied()
    before = seen(gate, "writes", 1.0).expected_ttft_s
    for number in range(2, 40):
        at = float(number)
        if len(admitted(gate, number, at).legs) == 2:
            gate.handle(Prefilled(number, PROMPT, 0), at + 0.4)
        gate.handle(FirstToken(number), at + 0.43)
        gate.handle(Finished(number, PROMPT, 10), at + 0.7)
        gate.handle(Released(number), at + 0.7)
    assert gate.snapshot(50.0).legs.fetched == 38
    assert seen(gate, "writes", 50.0).expected_ttft_s <= before * 1.01


def test_the_end_of_a_drain_ends_both_legs() -> None:
    gate = occupied()
    admitted(gate, 2, 1.0)
    gate.handle(Draining(grace_s=1.0), 1.1)
    cancelled = [each for each in gate.handle(Tick(), 2.2) if isinstance(each, Cancel)]
    assert {each.attempt for each in cancelled} == {1, 2}
    for number in (1, 2):
        gate.handle(Released(number), 2.2)
    gate.handle(Tick(), 3.2)
    assert meters(gate, "reads", 3.2) == meters(gate, "writes", 3.2) == (0, 0, 0)


@pytest.mark.parametrize("leaves", [False, True], ids=["its prompt is read", "its client leaves"])
def test_an_engine_that_a_reload_takes_away_while_it_reads_is_gone_when_it_has_read(leaves: bool) -> None:
    gate = occupied()
    assert names(admitted(gate, 2, 1.0)) == ["writes", "reads"]
    lane = LaneSettings("interactive", ttft_slo_s=10.0)
    gate.reconfigure(Settings((lane,), (engine("writes", Role.UNIFIED),)), 1.1)
    assert [each.name for each in gate.snapshot(1.1).engines] == ["reads", "writes"]

    if leaves:
        gate.handle(ClientGone(2), 1.2)
    else:
        gate.handle(Prefilled(2, PROMPT, 0), 1.2)
        gate.handle(FirstToken(2), 1.3)
    gate.handle(Finished(2, PROMPT, 10), 1.5)
    gate.handle(Released(2), 1.5)
    gate.handle(Tick(), 3.0)
    assert [each.name for each in gate.snapshot(3.0).engines] == ["writes"]
    assert meters(gate, "writes", 3.0)[0] == 1


def test_a_whole_answer_whose_hand_over_failed_gives_its_prompt_back_once_it_is_believed_to_be_read() -> None:
    """The meter of the engine that writes was full until the answer was whole."""
    lane = LaneSettings("interactive", ttft_slo_s=10.0)
    writes = engine("writes", Role.DECODE, prefill_tokens=5_000)
    gate = build_governor(Settings((lane,), (engine("reads", Role.PREFILL), writes)), 0.0)
    admitted(gate, 1, 0.0, prompt_tokens=40)
    gate.handle(FirstToken(1), 0.02)
    (decision,) = gate.handle(arrival(2)._replace(stream=False), 0.1)
    assert isinstance(decision, Admit)
    assert len(decision.legs) == 2
    gate.handle(HandoffFailed(2, FailureKind.BROKEN), 0.2)
    assert gate.snapshot(0.2).engines[1].prefill_tokens == PROMPT

    while (now := gate.next_wake()) is not None and now < 1.0:
        gate.handle(Tick(), max(now, 0.2))
    assert gate.snapshot(1.0).engines[1].prefill_tokens == 0
