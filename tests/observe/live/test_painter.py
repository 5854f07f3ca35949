"""The picture shows the snapshot's own numbers, and what a newcomer would be told."""

from dataclasses import replace

import msgspec
import pytest

from headgate.core.snapshot import Alarm, AlarmSignal, PoolSnapshot, Snapshot, TenantSnapshot
from headgate.observe.live.banner import Level
from headgate.observe.live.painter import MOST_ROWS, MOST_TENANTS, Painter, Sources
from headgate.observe.live.recent import DecisionFilter
from observe.live.rooms import EPOCH, Room


def painter_of(room: Room, snapshot: Snapshot) -> Painter:
    """Paint another snapshot than the room's own."""
    return Painter(
        Sources(
            lambda: snapshot,
            lambda arrival: room.core.explain(arrival, room.now),
            room.recent,
            room.trail,
            lambda: EPOCH + room.now,
        )
    )


def test_lanes_stand_against_their_deadline_and_say_what_a_newcomer_gets() -> None:
    room = Room()
    room.arrive(1)
    room.arrive(2, "throughput")
    interactive, throughput = room.painter.paint().lanes

    assert (interactive.deadline_s, throughput.deadline_s) == pytest.approx((10.0, 60.0))
    assert (interactive.running, interactive.held, interactive.stream_limit) == (1, 0, 1)
    assert (throughput.running, throughput.held, throughput.other_running) == (0, 1, 1)
    assert throughput.newcomer.startswith("waits ")


def test_a_picture_is_the_snapshot_in_the_time_of_the_wall() -> None:
    room = Room()
    room.arrive(1)
    picture = room.painter.paint()
    snapshot = room.core.snapshot(room.now)

    assert picture.at == EPOCH + room.now
    assert picture.engines[0].seen == snapshot.engines[0]
    assert picture.lanes[0].little == snapshot.lanes[0].little
    assert [row.at for row in picture.decisions] == [EPOCH + room.now]


def test_refusals_make_the_banner_and_carry_their_beginning() -> None:
    room = Room(max_queue=0)
    room.arrive(1)
    room.now += 3.0
    for attempt in range(2, 6):
        room.arrive(attempt)
    said = room.painter.paint().banner

    assert said.level is Level.OVERLOADED
    assert "80 % refused as saturated; engines full" in said.text


def test_growth_is_read_off_the_last_steps() -> None:
    room = Room(streams=10)
    for attempt in range(1, 5):
        room.now += 5.0
        room.arrive(attempt)
    lane = room.painter.paint().lanes[0]

    assert lane.trend_per_s == pytest.approx(0.2)
    assert lane.acceleration_per_s2 == pytest.approx(0.0)


def test_an_alarm_is_told_in_words_and_remembered_when_it_clears() -> None:
    room = Room()
    calm = room.core.snapshot(room.now)
    alarm = Alarm(AlarmSignal.LOAD, 9.0, 5.0, 98.0, 99.0, "Offered load is 130 % of capacity.")
    (pool,) = calm.pools
    raised = replace(calm, now=106.0, pools=(PoolSnapshot(pool.engines, pool.warning, alarm),))
    room.now = 106.0
    picture = painter_of(room, raised).paint()

    assert picture.pools[0].alarm is not None
    assert (picture.pools[0].alarm.words, picture.pools[0].alarm.since) == (alarm.words, EPOCH + 98.0)
    assert picture.banner.level is Level.WARNED
    room.now = 112.0
    after = painter_of(room, replace(calm, now=112.0)).paint()
    assert after.cleared is not None
    assert (after.cleared.words, after.cleared.since) == (alarm.words, EPOCH + 112.0)


def test_what_is_infinite_is_unknown_in_json() -> None:
    frame = msgspec.json.decode(msgspec.json.encode(Room().painter.paint()))

    assert frame["pools"][0]["signals"]["time_to_full_s"] is None
    assert frame["lanes"][0]["objective"]["answers"] == 0


def test_tenants_are_the_busiest_and_bounded() -> None:
    room = Room()
    crowd = tuple(TenantSnapshot(f"tenant-{number}", number, number // 2) for number in range(80))
    picture = painter_of(room, replace(room.core.snapshot(room.now), tenants=crowd)).paint()

    assert len(picture.tenants) == MOST_TENANTS
    assert (picture.tenants[0].tenant, picture.tenants[0].amplification) == ("tenant-79", 79 / 39)


def test_a_frame_has_few_decisions_and_a_question_may_have_more() -> None:
    room = Room()
    for attempt in range(1, 101):
        room.arrive(attempt)

    assert len(room.painter.paint().decisions) == MOST_ROWS
    assert len(room.painter.decisions(90, DecisionFilter())) == 90


def test_painting_changes_nothing() -> None:
    room = Room()
    room.arrive(1)
    room.arrive(2, "throughput")
    before = room.core.snapshot(room.now)
    room.painter.paint()

    assert room.core.snapshot(room.now) == before
