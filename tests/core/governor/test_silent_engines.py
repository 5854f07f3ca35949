"""An engine that reads nothing while the time of a prompt runs out gets one prompt at a time, until a first token comes."""

from typing import Any

import pytest

from core.governor.asking import ask, gate_of
from core.world import governor
from millgate.core.decisions import Admit, Queue
from millgate.core.events import Failed, Finished, FirstToken, Released
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, LaneSettings
from millgate.core.words import FailureKind, Sent

_LANE = LaneSettings("lane", deadline_s=10.0)


def _gate(**engine: Any) -> Governor:
    return gate_of(_LANE, engine=EngineSettings("engine", 64, **engine))


def _time_out(gate: Governor, attempt: int, now: float, sent: Sent = Sent.REQUEST) -> list[Any]:
    ended = gate.handle(Failed(attempt, FailureKind.TIMEOUT, sent), now)
    return [*ended, *gate.handle(Released(attempt), now)]


def test_users_of_an_engine_that_hangs_wait_at_the_gate_but_for_one() -> None:
    gate = _gate()
    for attempt in (1, 2):
        ask(gate, attempt)
    _time_out(gate, 1, 10.1)
    behind = ask(gate, 3, 10.2)
    probe = _time_out(gate, 2, 10.3)[-1]
    waits = ask(gate, 4, 10.4)

    assert isinstance(behind, Queue)
    assert isinstance(probe, Admit)
    assert probe.attempt == 3
    assert isinstance(waits, Queue)


@pytest.mark.parametrize("prefill_tokens", [None, 16_384])
def test_its_first_token_lets_all_of_them_in(prefill_tokens: int | None) -> None:
    gate = _gate(prefill_tokens=prefill_tokens)
    ask(gate, 1)
    _time_out(gate, 1, 10.1)
    for attempt in (2, 3, 4):
        ask(gate, attempt, 12.0)
    silent_s = gate.snapshot(12.0).engines[0].silent_s
    let_in = gate.handle(FirstToken(2), 13.0)

    assert silent_s == pytest.approx(10.1)
    assert gate.snapshot(13.0).engines[0].silent_s == 0.0
    assert [each.attempt for each in let_in if isinstance(each, Admit)] == [3, 4]


def test_a_whole_answer_whose_first_token_was_not_seen_lets_them_in_too() -> None:
    gate = _gate()
    ask(gate, 1)
    _time_out(gate, 1, 10.1)
    ask(gate, 2, 11.0)
    ask(gate, 3, 11.0)
    gate.handle(Finished(2, 100, 10), 12.0)
    let_in = gate.handle(Released(2), 12.0)

    assert [type(each) for each in let_in] == [Admit]
    assert isinstance(ask(gate, 4, 12.0), Admit)


def test_the_one_that_is_tried_has_as_long_as_the_last_one_waited_beside_its_deadline() -> None:
    """A prompt that takes longer than its deadline is read at last, and its first token teaches how long such prompts take."""
    gate = _gate()
    given_s, now = [], 0.0
    for attempt in range(1, 8):
        tried = ask(gate, attempt, now)
        given_s.append(tried.first_event_by - now)
        now = tried.first_event_by
        _time_out(gate, attempt, now)

    assert given_s == pytest.approx([10.06, 20.06, 30.06, 40.06, 50.06, 60.06, 70.0])


def test_a_prompt_that_times_out_while_others_are_read_changes_nothing() -> None:
    """Its client may have been impatient, or another prompt long."""
    gate = _gate()
    for attempt in (1, 2):
        ask(gate, attempt)
    gate.handle(FirstToken(2), 5.0)
    _time_out(gate, 1, 10.1)

    assert [type(ask(gate, attempt, 10.2)) for attempt in (3, 4)] == [Admit, Admit]


@pytest.mark.parametrize("fields", [{"stream": False}, {"seen_late": True}])
def test_answers_that_do_not_show_their_beginning_say_nothing_of_reading(fields: dict[str, bool]) -> None:
    gate = _gate()
    ask(gate, 1, **fields)
    _time_out(gate, 1, 200.0)

    assert [type(ask(gate, attempt, 201.0)) for attempt in (2, 3)] == [Admit, Admit]


def test_a_connection_that_never_opened_says_nothing_of_reading() -> None:
    gate = _gate()
    ask(gate, 1)
    _time_out(gate, 1, 10.1, Sent.NONE)

    assert [type(ask(gate, attempt, 11.0)) for attempt in (2, 3)] == [Admit, Admit]


def test_other_engines_take_what_a_silent_one_does_not() -> None:
    gate = governor(_LANE, engines=tuple(EngineSettings(name, 64) for name in ("silent", "well")))
    silent = ask(gate, 1).legs[0].engine
    _time_out(gate, 1, 10.1)
    engines = [ask(gate, attempt, 10.2).legs[0].engine for attempt in range(2, 12)]

    assert engines.count(silent) == 1


@pytest.mark.parametrize("kept", [{"retry_count": 1}, {"retry_count": 2}])
def test_a_retry_is_not_what_an_engine_that_hangs_is_tried_with_while_another_one_speaks(
    kept: dict[str, int],
) -> None:
    """Three tries of one user waited for the same hung engine, up to 28 s each, beside three idle ones."""
    gate = governor(_LANE, engines=tuple(EngineSettings(name, 64) for name in ("silent", "well")))
    silent = ask(gate, 1).legs[0].engine
    _time_out(gate, 1, 10.1)
    again = ask(gate, 2, 10.2, **kept)
    new = ask(gate, 3, 10.2)

    assert (again.legs[0].engine == silent, new.legs[0].engine == silent) == (False, True)


def test_where_all_engines_hang_a_retry_is_tried_as_well() -> None:
    gate = _gate()
    ask(gate, 1)
    _time_out(gate, 1, 10.1)

    assert isinstance(ask(gate, 2, 10.2, retry_count=1), Admit)


def test_a_retry_that_only_the_engine_that_hangs_can_hold_is_tried_there() -> None:
    small, large = EngineSettings("small", 64, kv_tokens=1_000), EngineSettings("large", 64)
    gate = governor(_LANE, engines=(small, large))
    ask(gate, 1, prompt_bytes=20_000)
    _time_out(gate, 1, 10.1)

    assert ask(gate, 2, 10.2, prompt_bytes=20_000, retry_count=1).legs[0].engine == "large"
