"""The last decisions are kept in a bounded ring and told with lane, engine and reason."""

import pytest

from headgate.core.decisions import Hold, Yield
from headgate.core.events import Arrived, ClientGone, Finished, Released, Tick
from headgate.core.words import Reason
from headgate.observe.live.recent import DecisionFilter, recent_rows
from headgate.observe.ring import FEWEST_STEPS, Ring, facts_of
from observe.live.rooms import Room

LANES = ("interactive", "throughput")


def told(room: Room, wanted: DecisionFilter | None = None) -> list[tuple[str, str, int, str, str]]:
    room.eyes.settle()
    rows = recent_rows(room.eyes.ring, 100, wanted or DecisionFilter(), LANES)
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

    room.eyes.settle()
    rows = recent_rows(room.eyes.ring, 2, DecisionFilter(), LANES)
    assert [row.number for row in rows] == [5, 4]


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


def test_the_page_reads_only_so_far_back() -> None:
    ring = Ring(attempts=10 * FEWEST_STEPS)
    crowd = [
        (0.0, None, (Yield(number, Reason.SATURATED, 1.0, True),)) for number in range(FEWEST_STEPS + 500)
    ]
    ring.extend(crowd)

    rows = recent_rows(ring, 10**6, DecisionFilter(), LANES)

    assert (len(rows), rows[0].number) == (FEWEST_STEPS, FEWEST_STEPS + 500)


def test_where_nobody_may_ask_why_the_page_still_has_its_rows_and_why_has_nothing() -> None:
    ring = Ring(attempts=0)
    ring.name(1, b"known")
    ring.extend([(0.0, None, (Yield(1, Reason.SATURATED, 1.0, True),))])

    assert [row.attempt for row in recent_rows(ring, 5, DecisionFilter(), LANES)] == [1]
    assert ring.find("known") == ring.find("1") == []


def test_whoever_had_to_make_room_has_a_row_beside_the_arrival_that_took_it() -> None:
    ring = Ring()
    ring.extend([(0.0, facts_of(Arrived(1, lane="throughput")), (Hold(1, 1, 2.0),))])
    displaced = Yield(1, Reason.DISPLACED, 1.0, True, value=3.0, bound=10.0)
    ring.extend([(3.0, facts_of(Arrived(2)), (Hold(2, 1, 2.0), displaced))])

    rows = recent_rows(ring, 5, DecisionFilter(), LANES)
    assert [(row.number, row.attempt, row.lane) for row in rows] == [
        (3, 1, "throughput"),
        (2, 2, "interactive"),
        (1, 1, "throughput"),
    ]
    assert rows[0].words.startswith("waited 3.0 s, ")
