"""Two legs at once, as SGLang has it: which requests are made such, what they take of either engine, and how both legs end."""

from dataclasses import replace
from typing import Any

import pytest

from core.governor.test_two_legs import PROMPT, arrival, engine, meters, names
from millgate.core.decisions import Admit, Decision, Ended, Queue, Yield
from millgate.core.events import (
    Arrived,
    ClientGone,
    EngineDown,
    EngineUp,
    Failed,
    Finished,
    FirstToken,
    HandoffFailed,
    Prefilled,
    Released,
    Tick,
)
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, Labels, LaneSettings, Settings
from millgate.core.words import (
    Counted,
    FailureKind,
    IgnoresHangups,
    KvTransfer,
    Outcome,
    Reason,
    Role,
    Sent,
)
from millgate.wiring.governor import build_governor

SGLANG = KvTransfer.SGLANG
LAG_S = 0.3


def sglang(name: str, role: Role, streams: int = 8) -> EngineSettings:
    return engine(name, role, streams, SGLANG, ignores_hangups=IgnoresHangups.NO)


def paired(*more: EngineSettings, streams: int = 8, observe: bool = False) -> Governor:
    lane = LaneSettings("interactive", ttft_slo_s=10.0)
    engines = (sglang("reads", Role.PREFILL, streams), sglang("writes", Role.DECODE), *more)
    return build_governor(Settings((lane,), engines, observe=observe), 0.0)


def asks(number: int, prompt_tokens: int = PROMPT) -> Arrived:
    return arrival(number, prompt_tokens, hands_over=False)._replace(bootstraps=True)


def admitted(gate: Governor, number: int, now: float, asked: Arrived | None = None) -> Admit:
    (decision,) = gate.handle(asked or asks(number), now)
    assert isinstance(decision, Admit)
    return decision


def is_idle(gate: Governor, now: float) -> bool:
    return all(
        (each.running, each.departing, each.kv_tokens, each.prefill_tokens) == (0, 0, 0, 0)
        for each in gate.snapshot(now).engines
    )


def only(decisions: tuple[Decision, ...], kind: type) -> Decision:
    (found,) = [each for each in decisions if isinstance(each, kind)]
    return found


@pytest.mark.parametrize("prompt_tokens", [20, PROMPT])
def test_an_idle_engine_that_answers_has_every_prompt_read_by_another(prompt_tokens: int) -> None:
    assert names(admitted(paired(), 1, 0.0, asks(1, prompt_tokens))) == ["writes", "reads"]


def test_several_answers_take_as_many_streams_on_both_engines() -> None:
    gate = paired()
    admit = admitted(gate, 1, 0.0, asks(1)._replace(answers=3))
    assert [leg.streams for leg in admit.legs] == [3, 3]
    gate.handle(Prefilled(1, PROMPT, 0), 0.5)
    assert meters(gate, "reads", 0.5) == (0, 0, 0)


def test_one_that_waits_for_the_engine_that_reads_is_passed_by_no_smaller_one() -> None:
    """Each that came after it, and fitted, went first; each event asked every one that waited."""
    gate = paired(streams=3)
    for number in (1, 2):
        admitted(gate, number, 0.0)
    (waits,) = gate.handle(asks(3)._replace(answers=3), 0.1)
    assert isinstance(waits, Queue)
    assert isinstance(gate.handle(asks(4), 0.2)[0], Queue)

    assert not gate.handle(Prefilled(1, PROMPT, 0), 0.5)
    assert only(gate.handle(Prefilled(2, PROMPT, 0), 0.6), Admit).attempt == 3


def test_what_its_door_cannot_send_to_both_is_refused_and_never_sent_to_one() -> None:
    (decision,) = paired().handle(arrival(1), 0.0)
    assert isinstance(decision, Yield)
    assert decision.reason is Reason.NO_ENGINE


def test_it_goes_to_an_engine_that_does_everything_where_there_is_one() -> None:
    gate = paired(engine("alone", Role.UNIFIED))
    assert names(admitted(gate, 1, 0.0, arrival(1, hands_over=False))) == ["alone"]


def test_engines_of_two_protocols_never_meet() -> None:
    gate = paired(engine("nixl reads", Role.PREFILL), engine("nixl writes", Role.DECODE))
    for number in range(1, 8):
        asked = asks(number)._replace(hands_over=True)
        legs = names(admitted(gate, number, 0.0, asked))
        assert legs in (["writes", "reads"], ["nixl writes", "nixl reads"], ["nixl writes"])


def test_without_an_engine_that_reads_there_is_none_that_answers() -> None:
    gate = paired()
    gate.handle(EngineDown("reads"), 0.0)
    (decision,) = gate.handle(asks(1), 0.0)
    assert isinstance(decision, Yield)
    assert decision.reason is Reason.NO_ENGINE
    gate.handle(EngineUp("reads"), 1.0)
    assert names(admitted(gate, 2, 1.0)) == ["writes", "reads"]


def test_where_none_reads_in_the_rack_that_is_required_none_answers() -> None:
    near, far = Labels(rack="a", required="rack"), Labels(rack="b")
    engines = [
        replace(sglang("reads", Role.PREFILL), labels=near),
        replace(sglang("reads far", Role.PREFILL), labels=far),
        replace(sglang("writes", Role.DECODE), labels=near),
        replace(sglang("writes far", Role.DECODE), labels=far),
    ]
    gate = build_governor(Settings((LaneSettings("interactive", ttft_slo_s=10.0),), tuple(engines)), 0.0)
    found = [tuple(names(admitted(gate, number, 0.0, asks(number)))) for number in (1, 2)]
    assert set(found) == {("writes", "reads"), ("writes far", "reads far")}
    gate.handle(EngineDown("reads far"), 1.0)
    assert gate.snapshot(1.0).is_served
    gate.handle(EngineDown("writes"), 1.0)
    assert not gate.snapshot(1.0).is_served
    (decision,) = gate.handle(asks(3), 1.0)
    assert isinstance(decision, Yield)
    assert decision.reason is Reason.NO_ENGINE


def pair_of(reads: int, writes: int, *more: EngineSettings) -> Settings:
    """Return the settings of two engines with so many KV tokens each, and one stream at a time."""
    engines = (
        replace(sglang("reads", Role.PREFILL, 1), kv_tokens=reads),
        replace(sglang("writes", Role.DECODE), kv_tokens=writes),
        *more,
    )
    return Settings((LaneSettings("interactive", ttft_slo_s=10.0),), engines)


@pytest.mark.parametrize(("reads", "writes"), [(PROMPT, 9 * PROMPT), (9 * PROMPT, PROMPT)])
def test_what_either_leg_can_never_hold_is_refused_for_good_and_at_once(reads: int, writes: int) -> None:
    gate = build_governor(pair_of(reads, writes), 0.0)
    (refused,) = gate.handle(asks(1), 0.0)
    assert isinstance(refused, Yield)
    assert (refused.reason, refused.retry) == (Reason.TOO_LARGE, False)
    assert (refused.value, refused.bound) == (PROMPT, PROMPT)
    assert names(admitted(gate, 2, 0.0, asks(2, PROMPT - 1))) == ["writes", "reads"]


def test_more_answers_than_the_engine_that_reads_ever_takes_are_refused_and_counted() -> None:
    gate = build_governor(pair_of(9 * PROMPT, 9 * PROMPT), 0.0)
    (refused,) = gate.handle(asks(1)._replace(answers=2), 0.0)
    assert isinstance(refused, Yield)
    assert (refused.reason, refused.value, refused.bound) == (Reason.TOO_LARGE, 2, 1)
    assert refused.counted is Counted.STREAMS


def test_one_engine_that_reads_and_holds_it_is_enough_where_it_may_hand_it_over() -> None:
    large = replace(sglang("large", Role.PREFILL), kv_tokens=9 * PROMPT)
    gate = build_governor(pair_of(PROMPT, 9 * PROMPT, large), 0.0)
    assert names(admitted(gate, 1, 0.0)) == ["writes", "large"]
    nixl = engine("nixl reads", Role.PREFILL), engine("nixl writes", Role.DECODE)
    gate = build_governor(pair_of(PROMPT, 9 * PROMPT, *nixl), 0.0)
    gate.handle(EngineDown("nixl writes"), 0.0)
    (refused,) = gate.handle(asks(2), 0.0)
    assert isinstance(refused, Yield)
    assert (refused.reason, refused.bound) == (Reason.TOO_LARGE, PROMPT)


def test_memory_that_is_learned_later_refuses_what_waits_for_it() -> None:
    gate = build_governor(pair_of(9 * PROMPT, 9 * PROMPT), 0.0)
    admitted(gate, 1, 0.0)
    (queued,) = gate.handle(asks(2), 0.0)
    assert isinstance(queued, Queue)
    refused = only(gate.reconfigure(pair_of(PROMPT, 9 * PROMPT), 0.1), Yield)
    assert isinstance(refused, Yield)
    assert (refused.attempt, refused.reason) == (2, Reason.TOO_LARGE)
    (refused,) = gate.handle(asks(3), 0.1)
    assert isinstance(refused, Yield)
    assert refused.reason is Reason.TOO_LARGE


def test_by_the_other_protocol_the_engine_that_answers_reads_what_no_other_holds() -> None:
    small = replace(engine("reads", Role.PREFILL), kv_tokens=PROMPT)
    lane = LaneSettings("interactive", ttft_slo_s=10.0)
    gate = build_governor(Settings((lane,), (small, engine("writes", Role.DECODE))), 0.0)
    admitted(gate, 1, 0.0, arrival(1, 40))
    gate.handle(FirstToken(1), 0.1)
    assert names(admitted(gate, 2, 1.0, arrival(2))) == ["writes"]


def test_an_adapter_of_engines_that_answer_nothing_alone_goes_to_both() -> None:
    law: dict[str, Any] = {"adapters": ("law",), "adapter_slots": 1}
    engines = (replace(sglang("reads", Role.PREFILL), **law), replace(sglang("writes", Role.DECODE), **law))
    gate = build_governor(Settings((LaneSettings("interactive", ttft_slo_s=10.0),), engines), 0.0)
    assert names(admitted(gate, 1, 0.0, asks(1)._replace(model="law"))) == ["writes", "reads"]


def test_observing_sends_it_to_both_too() -> None:
    gate = paired(streams=1, observe=True)
    admitted(gate, 1, 0.0)
    beyond = admitted(gate, 2, 0.0)
    assert names(beyond) == ["writes", "reads"]


def test_the_reading_engine_is_free_when_it_has_answered_its_memory_too() -> None:
    gate = paired()
    admit = admitted(gate, 1, 0.0)
    assert meters(gate, "reads", 0.0) == (1, admit.legs[1].kv_tokens, admit.legs[1].prompt_tokens)
    gate.handle(Prefilled(1, PROMPT, 0), 0.5)
    assert meters(gate, "reads", 0.5) == (0, 0, 0)
    assert gate.snapshot(0.5).legs[:4] == (1, 1, 0, 0)
    assert meters(gate, "writes", 0.5)[0] == 1
    gate.handle(FirstToken(1), 0.6)
    gate.handle(Finished(1, PROMPT, 20, 0), 1.0)
    gate.handle(Released(1), 1.0)
    assert is_idle(gate, 1.0)
    assert gate.snapshot(1.0).legs[:4] == (1, 1, 0, 0)


@pytest.mark.parametrize("event", [FirstToken(1), Finished(1, PROMPT, 20, 0)])
def test_an_answer_shows_that_the_prompt_is_read(event: FirstToken | Finished) -> None:
    gate = paired()
    admitted(gate, 1, 0.0)
    gate.handle(event, 0.5)
    assert meters(gate, "reads", 0.5) == (0, 0, 0)
    gate.handle(Prefilled(1, PROMPT, 0), 0.6)
    assert gate.snapshot(0.6).legs[:4] == (1, 1, 0, 0)


def test_a_failure_of_the_engine_that_reads_ends_the_attempt() -> None:
    gate = paired()
    admitted(gate, 1, 0.0)
    gate.handle(HandoffFailed(1, FailureKind.BROKEN), 0.2)
    ended = only(gate.handle(Failed(1, FailureKind.BROKEN, Sent.REQUEST), 0.2), Ended)
    assert isinstance(ended, Ended)
    assert (ended.outcome, ended.engine) == (Outcome.ENGINE_FAILED, "reads")
    gate.handle(Released(1), 0.2)
    gate.handle(Tick(), 0.2 + LAG_S)
    assert is_idle(gate, 0.6)
    assert gate.snapshot(0.6).legs[:4] == (1, 0, 1, 0)


def test_a_failure_of_the_engine_that_answers_ends_both_legs() -> None:
    gate = paired()
    admitted(gate, 1, 0.0)
    gate.handle(Failed(1, FailureKind.BROKEN, Sent.REQUEST), 0.2)
    gate.handle(Released(1), 0.2)
    gate.handle(Tick(), 0.2 + LAG_S)
    assert is_idle(gate, 0.6)


def test_an_engine_that_answers_and_was_not_reached_is_replaced() -> None:
    gate = paired(sglang("also writes", Role.DECODE), streams=1)
    first = admitted(gate, 1, 0.0)
    again = only(gate.handle(Failed(1, FailureKind.CONNECT, Sent.NONE), 0.1), Admit)
    assert isinstance(again, Admit)
    assert {first.legs[0].engine, again.legs[0].engine} == {"writes", "also writes"}
    assert again.legs[1].engine == "reads", "it has not begun, and has room at once"
    assert meters(gate, first.legs[0].engine, 0.1) == (0, 0, 0)


def test_an_engine_that_reads_and_was_not_reached_is_replaced() -> None:
    gate = paired(sglang("also reads", Role.PREFILL))
    first = admitted(gate, 1, 0.0)
    gate.handle(HandoffFailed(1, FailureKind.CONNECT), 0.1)
    again = only(gate.handle(Failed(1, FailureKind.CONNECT, Sent.NONE), 0.1), Admit)
    assert isinstance(again, Admit)
    assert {first.legs[1].engine, again.legs[1].engine} == {"reads", "also reads"}
    assert again.legs[0].engine == "writes"
    gate.handle(Prefilled(1, PROMPT, 0), 0.5)
    gate.handle(Tick(), 1.0)
    assert meters(gate, "reads", 1.0) == meters(gate, "also reads", 1.0) == (0, 0, 0)


def test_where_no_other_reads_the_attempt_has_failed() -> None:
    gate = paired()
    admitted(gate, 1, 0.0)
    gate.handle(HandoffFailed(1, FailureKind.CONNECT), 0.1)
    ended = only(gate.handle(Failed(1, FailureKind.CONNECT, Sent.NONE), 0.1), Ended)
    assert isinstance(ended, Ended)
    assert ended.outcome is Outcome.ENGINE_FAILED


def test_a_client_that_leaves_early_frees_both_engines_when_they_have_let_go() -> None:
    gate = paired()
    admitted(gate, 1, 0.0)
    gate.handle(ClientGone(1), 0.1)
    assert meters(gate, "reads", 0.1)[0] == 1
    assert meters(gate, "writes", 0.1)[0] == 1
    gate.handle(Tick(), 0.11 + LAG_S)
    assert is_idle(gate, 0.5)


def test_what_waits_for_the_engine_that_reads_goes_when_that_is_free() -> None:
    gate = paired(streams=1)
    admitted(gate, 1, 0.0)
    (queued,) = gate.handle(asks(2), 0.0)
    assert isinstance(queued, Queue)
    admit = only(gate.handle(Prefilled(1, PROMPT, 0), 0.5), Admit)
    assert isinstance(admit, Admit)
    assert admit.attempt == 2


def test_what_waits_goes_when_a_hang_up_has_freed_the_engine_that_reads() -> None:
    gate = paired(streams=1)
    admitted(gate, 1, 0.0)
    gate.handle(asks(2), 0.0)
    gate.handle(Failed(1, FailureKind.BROKEN, Sent.REQUEST), 0.2)
    gate.handle(Released(1), 0.2)
    due = gate.next_wake()
    assert due is not None
    assert due <= 0.21 + LAG_S
    admit = only(gate.handle(Tick(), due), Admit)
    assert isinstance(admit, Admit)
    assert admit.attempt == 2


@pytest.mark.parametrize("order", ["arrival", "short_first"])
def test_a_request_that_waits_for_the_engine_that_reads_is_told_so(order: str) -> None:
    """The engine that answers has one token of each prompt to read, so that by its meters none would ever wait."""
    lane = LaneSettings("interactive", ttft_slo_s=60.0, order=order)
    reads, writes = (
        replace(sglang(name, role), prefill_tokens=2 * PROMPT)
        for name, role in (("reads", Role.PREFILL), ("writes", Role.DECODE))
    )
    gate = build_governor(Settings((lane,), (reads, writes)), 0.0)
    waits = []
    for number in range(1, 7):
        (decision,) = gate.handle(asks(number), 0.0)
        waits += [decision.expected_wait_s] if isinstance(decision, Queue) else []
    gate_reads = PROMPT * reads.prior.ttft_per_token_s
    assert len(waits) == 4
    assert [wait / gate_reads for wait in waits] == pytest.approx([1.0, 2.0, 3.0, 4.0], abs=0.5)
