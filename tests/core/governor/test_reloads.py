"""New settings while work runs and waits: what they ask for holds from then on, and what has come before loses nothing by them."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from core.governor.asking import ask
from core.world import steady_prior
from millgate.core.decisions import Admit, Queue, Yield
from millgate.core.events import ClientGone, Finished, Released, Tick
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, LaneSettings, Settings, TenantSettings
from millgate.core.words import Reason, Role
from millgate.wiring.governor import build_governor

CHAT, BATCH = LaneSettings("chat", deadline_s=60.0), LaneSettings("batch", deadline_s=60.0, headroom=4)
PRIOR = steady_prior(2.0)


def _settings(
    *lanes: LaneSettings, streams: Sequence[int] = (8,), caps: Sequence[TenantSettings] = ()
) -> Settings:
    engines = [EngineSettings(f"e{at}", most, prior=PRIOR) for at, most in enumerate(streams)]
    return Settings(lanes or (CHAT,), tuple(engines), tenants=tuple(caps))


def _ends(gate: Governor, attempt: int, now: float) -> list[int]:
    decisions = gate.handle(Finished(attempt, 100, 100, released=True), now)
    return [each.attempt for each in decisions if isinstance(each, Admit)]


def test_a_lane_that_is_gone_keeps_no_streams_from_the_others() -> None:
    gate = build_governor(_settings(CHAT, BATCH), 0.0)
    running = ask(gate, 1, lane="batch")
    gate.reconfigure(_settings(CHAT), 1.0)

    assert isinstance(running, Admit)
    assert [type(ask(gate, attempt, 2.0, lane="chat")) for attempt in range(2, 10)] == [Admit] * 7 + [Queue]
    assert _ends(gate, 1, 3.0) == [9], "what the lane still ran counts as its own until it ends"


def test_a_lane_that_is_gone_is_told_until_its_last_request_has_ended() -> None:
    """It stood on the page for ever as one that takes work, with the deadline of another lane."""
    gate = build_governor(_settings(CHAT, BATCH), 0.0)
    ask(gate, 1, lane="batch")
    gate.reconfigure(_settings(CHAT), 1.0)

    assert [(each.name, each.running) for each in gate.snapshot(2.0).lanes] == [("chat", 0), ("batch", 1)]
    _ends(gate, 1, 3.0)
    assert [each.name for each in gate.snapshot(3.0).lanes] == ["chat"]
    gate.reconfigure(_settings(CHAT, BATCH), 4.0)
    assert [(each.name, each.arrived) for each in gate.snapshot(4.0).lanes] == [("chat", 0), ("batch", 1)]


def test_an_engine_above_a_cap_that_was_lowered_takes_no_stream_of_another_one() -> None:
    """It stood idle until the other one had come down."""
    lanes = CHAT, LaneSettings("batch", deadline_s=60.0)
    gate = build_governor(_settings(*lanes, streams=(16, 16)), 0.0)
    engines = {number: ask(gate, number).legs[0].engine for number in range(1, 25)}
    gate.reconfigure(_settings(*lanes, streams=(2, 16)), 1.0)
    second = [number for number, engine in engines.items() if engine == "e1"]

    asked = [ask(gate, number, 1.0, lane="chat") for number in range(30, 36)]
    assert [type(each) for each in asked] == [Admit] * 4 + [Queue] * 2
    assert [_ends(gate, number, 2.0) for number in second[:3]] == [[34], [35], []]


@pytest.mark.parametrize("max_queue", [None, 0])
def test_below_a_cap_that_was_lowered_a_place_is_foreseen_once_as_many_have_ended_as_are_too_many(
    max_queue: int | None,
) -> None:
    """Clients were told the end of the first, and of ten such hints eight were broken."""
    lane = LaneSettings("lane", deadline_s=60.0, max_queue=max_queue)
    gate = build_governor(_settings(lane), 0.0)
    for number in range(8):
        assert isinstance(ask(gate, number, 0.25 * number), Admit)
    gate.reconfigure(_settings(lane, streams=(2,)), 1.8)

    told = ask(gate, 9, 1.8)
    wait_s = told.expected_wait_s if isinstance(told, Queue) else told.retry_after_s
    assert wait_s == pytest.approx(6 * 0.25 + 2.0 - 1.8, abs=0.25), "the end of the seventh"


def test_a_cap_of_a_tenant_counts_what_it_had_before_there_was_one() -> None:
    """Each answer that was never counted let one more in, so that a flood stayed as large as it was."""
    gate = build_governor(_settings(streams=(64,)), 0.0)
    for number in range(20):
        ask(gate, number, tenant="flood")
    gate.reconfigure(_settings(streams=(64,), caps=[TenantSettings("flood", max_inflight=4)]), 1.0)

    for number in range(20):
        refused = ask(gate, 100 + number, 2.0, tenant="flood")
        assert isinstance(refused, Yield) is (number < 17)
        _ends(gate, number, 2.0)
    assert gate.snapshot(3.0).engines[0].running == 3


def test_a_tenant_whose_cap_was_gone_for_a_while_has_all_of_it_when_it_is_back() -> None:
    capped = _settings(caps=[TenantSettings("ann", max_inflight=2)])
    gate = build_governor(capped, 0.0)
    for number in (1, 2):
        assert isinstance(ask(gate, number, tenant="ann"), Admit)
    gate.reconfigure(_settings(), 1.0)
    for number in (1, 2):
        _ends(gate, number, 2.0)
    gate.reconfigure(capped, 3.0)

    asked = [ask(gate, number, 4.0, tenant="ann") for number in (3, 4, 5)]
    assert [type(each) for each in asked] == [Admit, Admit, Yield]
    assert asked[2].reason is Reason.TENANT_LIMIT


def test_a_request_that_waits_for_a_batch_goes_with_the_window_that_the_reload_began_anew() -> None:
    """It was refused at its deadline before an idle engine."""
    forming = _settings(LaneSettings("lane", deadline_s=60.0, window_s=0.5))
    gate = build_governor(forming, 0.0)
    assert isinstance(ask(gate, 1), Queue)
    gate.reconfigure(forming, 0.3)

    went: list[float] = []
    while not went and (now := gate.next_wake()) is not None:
        went += [now for each in gate.handle(Tick(), now) if isinstance(each, Admit)]
    assert went == [pytest.approx(0.8)]


def test_an_engine_that_only_reads_from_now_on_ends_what_it_answers_and_the_rest_is_foreseen_without_it() -> (
    None
):
    """Its ends were taken off the list of the others' ends, and the page of metrics failed until all was over."""
    first = EngineSettings("first", 4, prior=PRIOR)
    gate = build_governor(Settings((CHAT,), (first,)), 0.0)
    for number in range(4):
        ask(gate, number)
    assert gate.snapshot(0.5).lanes[0].expected_wait_s > 0.0
    second = EngineSettings("second", 8, prior=PRIOR, role=Role.DECODE)
    gate.reconfigure(Settings((CHAT,), (replace(first, role=Role.PREFILL), second)), 0.5)
    asked = [ask(gate, number, 1.0, answers=2) for number in range(10, 15)]

    assert [type(each) for each in asked] == [Admit] * 4 + [Queue]
    waits_s = [gate.snapshot(2.0).lanes[0].expected_wait_s]
    for number in range(4):
        for event in (ClientGone(number), Released(number)):
            gate.handle(event, 2.0)
            waits_s.append(gate.snapshot(2.0).lanes[0].expected_wait_s)
    assert len(set(waits_s)) == 1
