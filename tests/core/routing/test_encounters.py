"""What turns of sessions and long prompts wait for each other, engine by engine."""

import pytest

from millgate.core.routing.encounters import Encounters


def test_a_long_prompt_is_waited_for_by_the_turns_that_come_while_it_is_read() -> None:
    encounters = Encounters(100)
    for second in range(30):
        encounters.turn(1, 7, 1_000, float(second))

    seen_at_once = encounters.waits_s(1, 20.0, 0, 300.0) / encounters.waits_s(1, 10.0, 0, 300.0)
    assert seen_at_once == pytest.approx(4.0), "twice as long: twice as many wait twice as long"
    assert encounters.waits_s(2, 20.0, 0, 300.0) == 0.0


def test_a_session_waits_where_prompts_of_none_are_read() -> None:
    encounters = Encounters(100)
    encounters.reads(1, 6.0, 0.0)

    # In a minute there are 6 s in which a turn would wait for 3 s.
    assert encounters.waits_s(1, 0.0, 1, 0.0) == pytest.approx(6.0 / 60.0 * 3.0)
    assert encounters.waits_s(1, 0.0, 10, 0.0) == pytest.approx(10 * encounters.waits_s(1, 0.0, 1, 0.0))
    assert encounters.waits_s(1, 0.0, 0, 0.0) == 0.0


def test_what_was_seen_fades_and_an_engine_that_begins_anew_has_seen_nothing() -> None:
    encounters = Encounters(100)
    encounters.reads(1, 6.0, 0.0)
    later = [encounters.waits_s(1, 0.0, 1, now) for now in (0.0, 300.0, 3_000.0)]
    assert later[0] > 2 * later[1] > 200 * later[2] > 0.0

    encounters.forget(1)
    assert encounters.waits_s(1, 0.0, 1, 300.0) == 0.0


def test_a_prompt_that_began_a_session_after_all_counts_no_more() -> None:
    encounters = Encounters(100)
    encounters.reads(1, 6.0, 0.0)
    encounters.reads(1, 4.0, 100.0)
    alone = encounters.waits_s(1, 0.0, 1, 200.0)
    encounters.read_of_session(1, 6.0, 0.0, 200.0)
    assert 0.0 < encounters.waits_s(1, 0.0, 1, 200.0) < alone

    encounters.read_of_session(1, 4.0, 100.0, 200.0)
    encounters.read_of_session(2, 4.0, 100.0, 200.0)
    assert encounters.waits_s(1, 0.0, 1, 200.0) == pytest.approx(0.0, abs=1e-9)


def test_a_context_counts_where_its_session_had_its_last_turn_for_five_minutes() -> None:
    encounters = Encounters(100)
    encounters.turn(1, 7, 1_000, 0.0)
    encounters.turn(1, 8, 5_000, 0.0)
    encounters.turn(1, 7, 2_000, 200.0)
    assert encounters.context_tokens(1) == 7_000

    encounters.turn(2, 9, 100, 299.0)
    assert encounters.context_tokens(1) == 7_000
    encounters.turn(2, 9, 100, 300.0)
    assert encounters.context_tokens(1) == 2_000
    encounters.turn(2, 7, 3_000, 301.0)
    assert [encounters.context_tokens(number) for number in (1, 2)] == [0, 3_100]


def test_an_engine_that_begins_anew_holds_no_context() -> None:
    encounters = Encounters(100)
    encounters.turn(1, 7, 1_000, 0.0)
    encounters.forget(1)
    encounters.turn(1, 7, 2_000, 1.0)
    assert encounters.context_tokens(1) == 2_000


def test_of_more_sessions_than_are_known_the_last_ones_count() -> None:
    encounters = Encounters(3)
    for session in range(5):
        encounters.turn(1, session, 10**session, 0.0)
    assert encounters.context_tokens(1) == 11_100


def test_a_session_does_not_wait_for_what_began_it() -> None:
    encounters = Encounters(10)
    encounters.reads(1, 6.0, 0.0)
    encounters.reads(1, 4.0, 100.0)
    both_s = encounters.waits_s(1, 0.0, 1, 200.0)
    first_s, second_s = [
        encounters.waits_s(1, 0.0, 1, 200.0, own_s, at) for own_s, at in ((6.0, 0.0), (4.0, 100.0))
    ]

    assert min(first_s, second_s) > 0.0
    assert 2 * both_s - first_s - second_s == pytest.approx(both_s)
    assert encounters.waits_s(1, 0.0, 1, 200.0) == both_s, "what is asked changes nothing"
