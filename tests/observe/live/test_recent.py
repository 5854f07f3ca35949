"""The last decisions are kept in a bounded ring and told with lane, engine and reason."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from millgate.core.decisions import Admit, Cancel, Decision, Ended, Leg, Queue, Yield
from millgate.core.events import Arrived, ClientGone, Finished, Released, Tick
from millgate.core.words import Outcome, Reason
from millgate.observe.live.decision_index import MOST_KEPT
from millgate.observe.live.recent import STEPS_AT_ONCE, UNWATCHED_AFTER_S, DecisionFilter, Recent
from millgate.observe.packing import unpack, unpack_decision
from millgate.observe.ring import FEWEST_STEPS, Kept, Ring, facts_of
from observe.live.rooms import Room

LANES = ("interactive", "throughput")


def told(room: Room, wanted: DecisionFilter | None = None) -> list[tuple[str, str, int, str, str]]:
    room.observers.settle()
    rows = Recent(room.observers.ring).rows(100, wanted or DecisionFilter(), LANES, room.now)
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
        ("queue", "", 2, "throughput", ""),
        ("admit", "", 1, "interactive", "gpu"),
    ]


def test_numbers_count_decisions_since_start() -> None:
    room = Room()
    for attempt in range(1, 6):
        room.arrive(attempt)

    room.observers.settle()
    rows = Recent(room.observers.ring).rows(2, DecisionFilter(), LANES, room.now)
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
        (DecisionFilter(attempt=3, word="queue"), [3]),
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
        ("queue", ""),
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

    rows = Recent(ring).rows(10**6, DecisionFilter(), LANES, 0.0)

    assert (len(rows), rows[0].number) == (FEWEST_STEPS, FEWEST_STEPS + 500)


def test_where_nobody_may_ask_why_the_page_still_has_its_rows_and_why_has_nothing() -> None:
    ring = Ring(attempts=0)
    ring.name(1, b"known")
    ring.extend([(0.0, None, (Yield(1, Reason.SATURATED, 1.0, True),))])

    assert [row.attempt for row in Recent(ring).rows(5, DecisionFilter(), LANES, 0.0)] == [1]
    assert ring.find("known") == ring.find("1") == []


def test_whoever_had_to_make_room_has_a_row_beside_the_arrival_that_took_it() -> None:
    ring = Ring()
    ring.extend([(0.0, facts_of(Arrived(1, lane="throughput")), (Queue(1, 1, 2.0),))])
    displaced = Yield(1, Reason.DISPLACED, 1.0, True, value=3.0, bound=10.0)
    ring.extend([(3.0, facts_of(Arrived(2)), (Queue(2, 1, 2.0), displaced))])

    rows = Recent(ring).rows(5, DecisionFilter(), LANES, 0.0)
    assert [(row.number, row.attempt, row.lane) for row in rows] == [
        (3, 1, "throughput"),
        (2, 2, "interactive"),
        (1, 1, "throughput"),
    ]
    assert rows[0].words.startswith("waited 3.0 s, ")


def refusals(numbers: Sequence[int], at: float = 0.0) -> list[Kept]:
    return [(at, facts_of(Arrived(each)), (Yield(each, Reason.QUOTA, 1.0, True),)) for each in numbers]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the steps of every batch that is unpacked, and a -1 for every decision that is made again."""
    seen: list[int] = []

    def counted(packed: bytes) -> list[list[Any]]:
        steps = unpack(packed)
        seen.append(len(steps))
        return steps

    def made(fields: Sequence[Any]) -> Decision:
        seen.append(-1)
        return unpack_decision(fields)

    monkeypatch.setattr("millgate.observe.ring.unpack", counted)
    monkeypatch.setattr("millgate.observe.ring.unpack_decision", made)
    return seen


def unpacked(read: list[int]) -> int:
    return sum(each for each in read if each > 0)


def test_what_is_kept_is_unpacked_once_for_all_filters_and_what_comes_later_never(read: list[int]) -> None:
    ring = Ring()
    for first in range(0, 2 * MOST_KEPT, 512):
        ring.extend(refusals(range(first, first + 512)))
    recent = Recent(ring)
    filters = [DecisionFilter(attempt=2 * MOST_KEPT - 100 * each) for each in range(1, 41)]

    for picture in range(5):
        rows = [recent.rows(100, wanted, LANES, float(picture)) for wanted in filters]
        assert [row.attempt for (row,) in rows] == [wanted.attempt for wanted in filters]
        assert recent.rows(100, DecisionFilter(lane="throughput"), LANES, float(picture)) == ()
        ring.extend(refusals([10**6 + picture], float(picture)))

    assert unpacked(read) == MOST_KEPT
    assert len(recent.rows(100, DecisionFilter(word="quota"), LANES, 4.0)) == 100


def test_the_first_look_reads_a_little_at_a_time_and_misses_nothing_that_comes_meanwhile(
    read: list[int],
) -> None:
    ring = Ring()
    recent = Recent(ring)
    ring.extend(refusals(range(1000)))
    came = 1000
    while recent.recall(0.0):
        assert read.count(-1) <= STEPS_AT_ONCE
        read.clear()
        ring.extend(refusals([came]))
        came += 1

    assert came == 1000 + 1000 // STEPS_AT_ONCE
    rows = recent.rows(10**6, DecisionFilter(word="yield"), LANES, 0.0)
    assert [(row.number, row.attempt) for row in rows] == [(each + 1, each) for each in reversed(range(came))]


def test_the_page_without_a_filter_reads_no_more_than_it_shows_and_a_little(read: list[int]) -> None:
    ring = Ring()
    for first in range(0, MOST_KEPT, 10):
        ring.extend(refusals(range(first, first + 10)))

    assert len(Recent(ring).rows(40, DecisionFilter(), LANES, 0.0)) == 40
    assert unpacked(read) <= STEPS_AT_ONCE + 10


def test_when_nobody_looks_any_more_nothing_is_sorted_and_nothing_kept() -> None:
    ring = Ring()
    recent = Recent(ring)
    ring.extend(refusals(range(10)))
    assert len(recent.rows(99, DecisionFilter(word="quota"), LANES, 0.0)) == 10

    ring.extend(refusals([10], UNWATCHED_AFTER_S))
    assert len(ring.followers) == 1
    ring.extend(refusals([11], UNWATCHED_AFTER_S + 0.1))
    assert len(ring.followers) == 0
    assert (recent._index, list(recent._older)) == (None, [])
    assert len(recent.rows(99, DecisionFilter(word="quota"), LANES, 9.0)) == 12


def test_what_is_sorted_is_bounded_however_long_somebody_looks() -> None:
    ring = Ring()
    recent = Recent(ring)
    recent.rows(1, DecisionFilter(word="quota"), LANES, 0.0)
    for first in range(0, 4 * MOST_KEPT, 512):
        reasons = list(Reason)
        ring.extend(
            [
                (0.0, facts_of(Arrived(each)), (Yield(each, reasons[each // 512 % len(reasons)], 1.0, True),))
                for each in range(first, first + 512)
            ]
        )

    index = recent._index
    assert index is not None
    assert len(index.entries) == MOST_KEPT
    assert [len(index.fitting(reason, None)) for reason in Reason].count(1) == MOST_KEPT // 512
    assert len(index.lanes) <= 2 * MOST_KEPT


ATTEMPTS = st.integers(0, 5)
ENGINES = st.sampled_from([None, "gpu", "tpu"])


def admitted(attempt: int, engine: str | None, would: Reason | None) -> Decision:
    return Admit(attempt, (Leg(engine, 1, 2, 3),) if engine else (), 0.0, 1.0, 2.0, would)


def refused(attempt: int, reason: Reason) -> Decision:
    return Yield(attempt, reason, 1.0, retry=True)


def ended(attempt: int, outcome: Outcome, lane: str, engine: str | None) -> Decision:
    return Ended(attempt, outcome, lane, engine, 0.0, 1.0, None, 1, 1, None)


DECISIONS: st.SearchStrategy[Decision] = st.one_of(
    st.builds(admitted, ATTEMPTS, ENGINES, st.sampled_from([None, Reason.QUOTA])),
    ATTEMPTS.map(lambda attempt: Queue(attempt, 1, 2.0)),
    st.builds(refused, ATTEMPTS, st.sampled_from([Reason.QUOTA, Reason.SATURATED])),
    ATTEMPTS.map(lambda attempt: Cancel(attempt, Reason.DRAINING, 1.0)),
    st.builds(
        ended, ATTEMPTS, st.sampled_from([Outcome.GOOD, Outcome.YIELDED]), st.sampled_from(LANES), ENGINES
    ),
)
ARRIVALS = st.builds(
    lambda attempt, lane: facts_of(Arrived(attempt, lane=lane)),
    ATTEMPTS,
    st.sampled_from([None, *LANES, "strange"]),
)
STEPS = st.tuples(st.just(1.0), st.none() | ARRIVALS, st.lists(DECISIONS, min_size=1, max_size=3).map(tuple))
FILTERS = st.builds(
    DecisionFilter,
    st.sampled_from([None, "admit", "queue", "yield", "cancel", "ended", "quota", "good", "draining"]),
    st.sampled_from([None, *LANES]),
    st.sampled_from([None, "gpu", "tpu"]),
    st.none() | ATTEMPTS,
)


@settings(max_examples=150)
@given(st.lists(st.lists(STEPS, max_size=4), max_size=6), st.integers(0, 6), FILTERS, st.integers(1, 12))
def test_it_does_not_matter_when_somebody_began_to_look(
    batches: list[list[Kept]], early: int, wanted: DecisionFilter, most: int
) -> None:
    ring = Ring()
    recent = Recent(ring)
    for number, batch in enumerate(batches):
        if number == early:
            recent.rows(1, DecisionFilter(word="queue"), LANES, 1.0)
        ring.extend(batch)

    watched = recent.rows(most, wanted, LANES, 1.0)
    assert watched == Recent(ring).rows(most, wanted, LANES, 1.0)
    everything = Recent(ring).rows(10**6, DecisionFilter(), LANES, 1.0)
    assert watched == tuple([row for row in everything if fits(row, wanted)])[:most]


def fits(row: Any, wanted: DecisionFilter) -> bool:
    return (
        wanted.word in {None, row.kind, row.word}
        and wanted.lane in {None, row.lane}
        and wanted.engine in {None, row.engine}
        and wanted.attempt in {None, row.attempt}
    )
