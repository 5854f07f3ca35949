"""Live sessions: whose they are, how long they stay so, and what they leave of an engine's memory."""

from random import Random

import pytest

from millgate.core.events import PrefixMarks
from millgate.core.routing.working_set import LIVE_SHARE, MOST_SESSIONS, STARVED_S, LiveSession, WorkingSets

KV = 100_000
MOST = LIVE_SHARE * KV
SLOW = 1.0
"""Seconds a token: no engine has time to read again what it has evicted."""


def _marks(name: int, turns: int) -> PrefixMarks:
    """Return the marks of a conversation of messages of 1,000 tokens."""
    return tuple((1_000 * name + turn, 1_000 * (turn + 1)) for turn in range(turns))


def _opened(
    sets: WorkingSets, name: int, turns: int, now: float = 0.0, tenant: str = "a", engine: int = 0
) -> LiveSession:
    session = sets.opens(sets.continued(name, ()), name, tenant, "lane", now)
    sets.placed(session, engine, 1_000 * turns, _marks(name, turns))
    return session


def test_a_name_or_the_whole_earlier_prompt_continues_a_session() -> None:
    sets = WorkingSets()
    session = _opened(sets, 7, 4)

    assert sets.continued(7, ()) is session
    assert sets.continued(None, _marks(7, 5)) is session
    assert sets.continued(8, _marks(7, 5)) is session, "a client that changes the name each turn"
    assert sets.continued(None, _marks(7, 3)) is None, "shorter than what was asked: another branch"
    assert sets.continued(None, _marks(7, 9)) is None, (
        "less than half of the prompt is no more than a common beginning"
    )
    assert sets.continued(9, _marks(8, 5)) is None


def test_a_turn_counts_whole_and_a_resting_context_as_often_as_sessions_return() -> None:
    sets = WorkingSets()
    session = _opened(sets, 1, 40)
    assert sets.tokens(0) == 40_000
    sets.turn_over(session, 10.0)
    assert sets.tokens(0) == 0, "none comes back, until some have"

    for now in range(20, 220, 20):
        sets.awaits(session, now)
        assert sets.tokens(0) == 40_000
        sets.turn_over(session, now + 10.0)
    returned = sum(0.99**later for later in range(1, 10))
    rests = 5.0 * 0.99**10 + sum(0.99**later for later in range(10))
    assert sets.tokens(0) == pytest.approx(40_000 * returned / rests)


def test_single_questions_keep_no_memory_where_sessions_come_back() -> None:
    sets = WorkingSets()
    session = _opened(sets, 1, 40)
    sets.turn_over(session, 10.0)
    for now in range(20, 1_020, 10):
        sets.awaits(session, now)
        sets.turn_over(session, now + 5.0)
    kept = sets.tokens(0)
    sets.turn_over(_opened(sets, 2, 100), 1_030.0)

    assert kept > 0.9 * 40_000
    assert sets.tokens(0) - kept < 0.2 * 100_000


def test_prompts_without_a_name_say_nothing_of_new_sessions_with_one() -> None:
    sets = WorkingSets()
    for name in range(1, 20):
        session = _opened(sets, name, 10, engine=1)
        sets.turn_over(session, 10.0)
        sets.awaits(session, 15.0)
    new = _opened(sets, 100, 40)
    sets.turn_over(new, 20.0)
    kept = sets.tokens(0)
    assert kept > 20_000

    for number in range(200, 300):
        single = sets.opens(None, None, "a", "lane", 20.0)
        sets.placed(single, 2, 10_000, _marks(number, 10))
        sets.turn_over(single, 21.0)
    assert sets.tokens(0) == kept
    assert sets.tokens(2) == 0


def test_single_questions_keep_nothing_long_before_their_leases_end() -> None:
    """Some return at once: of the others none is known to stay away yet."""
    sets = WorkingSets()
    for name in range(100):
        session = _opened(sets, name, 10, 0.1 * name)
        sets.turn_over(session, 0.1 * name + 0.05)
        if name % 10 == 0:
            sets.awaits(session, 0.1 * name + 0.06)
            sets.turn_over(session, 0.1 * name + 0.07)
    assert 0.05 * 1e6 < sets.tokens(0) < 0.1 * 1e6


def test_a_lease_is_four_of_its_own_pauses_within_bounds() -> None:
    sets = WorkingSets()
    session = _opened(sets, 1, 10)
    sets.turn_over(session, 0.0)
    assert session.until == 120.0, "the longest, until a pause was seen"

    for pause_s, lease_s in ((6.0, 24.0), (10.0, 32.0), (2.0, 24.0)):
        now = session.rests_since + pause_s
        sets.awaits(session, now)
        sets.turn_over(session, now)
        assert session.until - now == pytest.approx(lease_s)
    sets.expire(session.until - 0.1)
    assert sets.sessions == 1
    sets.expire(session.until)
    assert (sets.sessions, sets.tokens(0)) == (0, 0.0)


def test_a_session_that_is_over_is_remembered_and_goes_on_with_the_longest_lease() -> None:
    sets = WorkingSets()
    session = _opened(sets, 1, 10)
    sets.turn_over(session, 0.0)
    sets.awaits(session, 1.0)
    sets.turn_over(session, 1.0)
    sets.expire(11.0)
    assert session.is_over
    assert sets.continued(None, _marks(1, 11)) is session

    assert _opened(sets, 1, 12, 60.0) is session
    assert (session.is_over, sets.sessions, sets.tokens(0)) == (False, 1, 12_000)
    sets.turn_over(session, 61.0)
    assert session.until == 61.0 + 120.0, "the pause that it was known by was too short"


def test_a_session_that_is_queued_or_runs_never_ends() -> None:
    sets = WorkingSets()
    session = _opened(sets, 1, 10)
    sets.turn_over(session, 0.0)
    sets.awaits(session, 5.0)
    sets.expire(1e6)
    assert sets.continued(1, ()) is session


def test_an_engine_takes_what_live_contexts_leave() -> None:
    sets = WorkingSets()
    assert sets.takes(0, KV, "a", 90_000, SLOW, 0.0), "alone any"
    _opened(sets, 1, 40)
    assert sets.takes(0, KV, "a", int(MOST) - 40_000, SLOW, 1.0)
    assert not sets.takes(0, KV, "a", int(MOST) - 39_000, SLOW, 1.0)
    assert sets.takes(1, KV, "a", 90_000, SLOW, 1.0)
    assert sets.takes(0, None, "a", 90_000, SLOW, 1.0), "its memory is not known"


@pytest.mark.parametrize(("pause_s", "is_taken"), [(60.0, True), (5.0, False)])
def test_a_session_is_opened_beyond_that_where_an_engine_has_the_time_to_read_again_what_it_evicts(
    pause_s: float, is_taken: bool
) -> None:
    """Seven contexts fill it. At half a millisecond a token all of them take 0.6 of its time after pauses of a minute, and 7 after five seconds; an eighth is evicted."""
    sets = WorkingSets()
    for name in range(7):
        session = _opened(sets, name, 10)
        sets.turn_over(session, 0.0)
        sets.awaits(session, pause_s)
    assert sets.takes(0, KV, "a", 10_000, 0.0005, pause_s) is is_taken
    assert not sets.takes(0, KV, "a", 10_000, 0.05, pause_s), "a slower engine"
    assert sets.takes(0, KV, "a", 10_000, 0.00005, pause_s), "a faster one"


def test_once_single_questions_are_known_as_such_they_keep_none_of_their_kind_out() -> None:
    """They are never read again. Until two dozen have shown it they might be an agent's first turns, and those of agents that have come back are read again."""
    sets = WorkingSets()
    for name in range(24):
        assert not name or not sets.takes(0, KV, "a", 90_000, SLOW, 1.0)
        sets.turn_over(_opened(sets, name, 10), 1.0)
    _opened(sets, 24, 60)
    assert sets.takes(0, KV, "a", 60_000, SLOW, 1.0)

    agent = _opened(sets, 30, 20)
    sets.turn_over(agent, 1.0)
    sets.awaits(agent, 3.0)
    assert not sets.takes(0, KV, "a", 60_000, SLOW, 4.0), "they would evict what an agent needs"


def test_what_an_engine_reads_again_is_forgotten_with_the_sessions_that_it_read_it_for() -> None:
    sets = WorkingSets()
    for name in range(20):
        session = _opened(sets, name, 10)
        sets.turn_over(session, 0.0)
        sets.awaits(session, 3.0 + name)
        sets.turn_over(session, 30.0)
    sets.expire(1e6)
    _opened(sets, 99, 60, 1e6)
    assert not sets.takes(0, KV, "a", 60_000, SLOW, 1e6 + 1.0)
    assert sets.takes(0, KV, "a", 60_000, 0.5 / 6_000, 1e6 + 1.0), "of the last one's alone"


def test_a_new_session_starves_no_longer_than_the_bound() -> None:
    sets = WorkingSets()
    _opened(sets, 1, 60)
    assert not sets.takes(0, KV, "a", 60_000, SLOW, STARVED_S - 0.1)
    assert sets.next_room_s(STARVED_S - 20.0) == pytest.approx(20.0)
    assert sets.takes(0, KV, "a", 60_000, SLOW, STARVED_S)

    _opened(sets, 2, 60, STARVED_S)
    assert not sets.takes(0, KV, "a", 60_000, SLOW, STARVED_S + 1.0), "one at a time"


def test_a_tenant_with_a_thousand_sessions_leaves_another_its_part() -> None:
    sets = WorkingSets()
    for name in range(1_000):
        _opened(sets, name, 1, tenant="greedy")
    assert not sets.takes(0, KV, "greedy", 1_000, SLOW, 1.0)
    assert sets.takes(0, KV, "modest", 30_000, SLOW, 1.0)
    assert not sets.takes(0, KV, "modest", 36_000, SLOW, 1.0), "half of it"


def test_sessions_that_never_return_soon_keep_nothing() -> None:
    """As of a client that changes both name and prompt each time."""
    sets = WorkingSets()
    for name in range(200):
        sets.turn_over(_opened(sets, name, 60, 200.0 * name), 200.0 * name)
        sets.expire(200.0 * (name + 1))
    last = _opened(sets, 999, 60, 1e6)
    sets.turn_over(last, 1e6)
    assert sets.tokens(0) < 1_000
    assert sets.takes(0, KV, "a", 60_000, SLOW, 1e6 + 1.0)


def test_nothing_is_protected_where_less_than_half_of_what_is_believed_is_found() -> None:
    sets = WorkingSets()
    _opened(sets, 1, 60)
    for _ in range(10):
        sets.found(0.1)
    assert not sets.takes(0, KV, "a", 60_000, SLOW, 1.0)
    for _ in range(30):
        sets.found(0.1)
    assert sets.takes(0, KV, "a", 60_000, SLOW, 1.0)


def test_an_engine_that_begins_anew_has_the_sessions_whose_turns_are_out() -> None:
    sets = WorkingSets()
    resting, running = _opened(sets, 1, 10), _opened(sets, 2, 20)
    sets.turn_over(resting, 1.0)
    sets.forget(0)
    assert sets.tokens(0) == 20_000
    sets.turn_over(running, 2.0)
    sets.expire(1e6)
    assert (sets.sessions, sets.tokens(0)) == (0, 0.0)


def test_a_session_moves_with_its_context() -> None:
    sets = WorkingSets()
    session = _opened(sets, 1, 10)
    sets.placed(session, 3, 12_000, _marks(1, 12))
    assert (sets.tokens(0), sets.tokens(3)) == (0.0, 12_000)
    assert sets.continued(None, _marks(1, 11)) is None, "only its last prompt is gone on from"


def test_known_sessions_are_bounded() -> None:
    sets = WorkingSets()
    for name in range(MOST_SESSIONS + 100):
        sets.turn_over(_opened(sets, name, 1), 0.0)
    assert sets.sessions == MOST_SESSIONS
    sets.expire(1e6)
    assert sets.sessions == 0
    assert sets.continued(99, ()) is None, "the one that has been over longest is forgotten"
    assert sets.continued(MOST_SESSIONS + 99, ()) is not None


def test_a_session_is_opened_at_the_very_time_that_was_foreseen_for_it_whatever_was_rounded() -> None:
    """Else a request that waits for it would be looked at again and again at that time."""
    dice = Random(1)
    for _ in range(1_000):
        sets, at = WorkingSets(), dice.uniform(0.0, 100_000.0)
        sets.turn_over(_opened(sets, 1, 80, at), at)
        sets.awaits(_opened(sets, 2, 80, at), at)
        opens_at = at + STARVED_S
        assert sets.next_room_s(opens_at) > 0.0 or sets.takes(0, KV, "a", 60_000, SLOW, opens_at)
