"""The last decisions are kept in a bounded ring and told with lane, engine and reason."""

import pytest

from headgate.core.decisions import Yield
from headgate.core.events import ClientGone, Finished, Released, Tick
from headgate.core.words import Reason
from headgate.observe.live.recent import MOST_DECISIONS, QUIET_S, DecisionFilter, RecentDecisions
from observe.live.rooms import Room

LANES = ("interactive", "throughput")


def told(room: Room, wanted: DecisionFilter | None = None) -> list[tuple[str, str, int, str, str]]:
    rows = room.recent.rows(100, wanted or DecisionFilter(), LANES)
    return [(row.kind, row.word, row.attempt, row.lane, row.engine) for row in rows]


def test_a_life_is_told_newest_first_with_its_lane_and_engine() -> None:
    room = Room()
    room.arrive(1)
    room.arrive(2, "throughput")
    room.step(Finished(1, 100, 20))
    room.step(Released(1))

    assert told(room) == [
        ("admit", "", 2, "throughput", "gpu"),
        ("ended", "good", 1, "interactive", "gpu"),
        ("hold", "", 2, "throughput", ""),
        ("admit", "", 1, "interactive", "gpu"),
    ]


def test_numbers_count_decisions_since_start() -> None:
    room = Room()
    for attempt in range(1, 6):
        room.arrive(attempt)

    assert [row.number for row in room.recent.rows(2, DecisionFilter(), LANES)] == [5, 4]


@pytest.mark.parametrize(
    ("wanted", "attempts"),
    [
        (DecisionFilter(word="yield"), [4]),
        (DecisionFilter(word="saturated"), [4]),
        (DecisionFilter(word="client_gone"), [3]),
        (DecisionFilter(lane="throughput"), [2]),
        (DecisionFilter(engine="gpu"), [1]),
        (DecisionFilter(attempt=3), [3, 3]),
        (DecisionFilter(attempt=3, word="hold"), [3]),
        (DecisionFilter(attempt=9), []),
    ],
)
def test_a_filter_takes_what_fits_all_of_it(wanted: DecisionFilter, attempts: list[int]) -> None:
    room = Room()
    room.arrive(1)
    room.arrive(3)
    room.step(ClientGone(3))
    room.arrive(2, "throughput")
    room.arrive(4, max_wait_s=0.0)

    assert [attempt for _, _, attempt, _, _ in told(room, wanted)] == attempts


def test_a_refusal_out_of_the_queue_is_one_row() -> None:
    room = Room()
    room.arrive(1)
    room.arrive(2)
    room.now += 30.0
    room.step(Tick())

    assert [(kind, word) for kind, word, *_ in told(room, DecisionFilter(attempt=2))] == [
        ("yield", "expired"),
        ("hold", ""),
    ]


def test_an_unknown_lane_is_the_first_one_as_the_core_takes_it() -> None:
    room = Room()
    room.arrive(1, "nonsense that a client sent")

    assert [lane for _, _, _, lane, _ in told(room)] == ["interactive"]


def test_what_is_kept_is_bounded() -> None:
    recent = RecentDecisions()
    crowd = tuple(Yield(attempt, Reason.SATURATED, 1.0, True) for attempt in range(MOST_DECISIONS + 500))
    recent.on_step(Tick(), crowd, 0.0)

    rows = recent.rows(10**6, DecisionFilter(), LANES)

    assert (len(rows), rows[0].number) == (MOST_DECISIONS, MOST_DECISIONS + 500)


def test_refusing_begins_with_the_first_refusal_after_quiet() -> None:
    recent = RecentDecisions()
    refusal = (Yield(1, Reason.TOO_LATE, 1.0, True),)
    for at in (5.0, 10.0, 18.0, 18.0 + QUIET_S + 1.0):
        recent.on_step(Tick(), refusal, at)
        assert recent.is_refusing(at)
        assert recent.refusing_since == (5.0 if at < 20.0 else at)
    assert not recent.is_refusing(at + QUIET_S + 0.1)


def test_a_quota_is_no_overload() -> None:
    recent = RecentDecisions()
    recent.on_step(Tick(), (Yield(1, Reason.QUOTA, 1.0, True),), 5.0)

    assert not recent.is_refusing(5.0)


def test_hints_are_those_of_the_last_seconds_that_are_worth_following() -> None:
    recent = RecentDecisions()
    for at, hint_s, retry in ((0.0, 50.0, True), (15.0, 3.0, True), (16.0, 18.0, True), (17.0, 60.0, False)):
        recent.on_step(Tick(), (Yield(1, Reason.TOO_LATE, hint_s, retry),), at)

    assert recent.hints(18.0) == (3.0, 18.0)
    assert recent.hints(100.0) is None
