"""The picture shows the snapshot's own numbers, and what a newcomer would be told."""

from dataclasses import asdict, is_dataclass, replace
from typing import get_args, get_type_hints

import msgspec
import pytest

from millgate.core.decisions import Yield
from millgate.core.events import (
    Arrived,
    EngineProgress,
    Failed,
    Finished,
    FirstToken,
    Growth,
    Released,
    Tick,
)
from millgate.core.settings import EngineSettings
from millgate.core.snapshot import (
    AccountReading,
    Alarm,
    AlarmSignal,
    EngineSnapshot,
    PoolSnapshot,
    Snapshot,
    TenantSnapshot,
)
from millgate.core.words import FailureKind, KvTransfer, Reason, Role, Sent
from millgate.observe.live.banner import Level, seconds
from millgate.observe.live.page_model import MOST_ROWS, MOST_TENANTS, PageModel
from millgate.observe.live.picture import Picture, SessionsPicture
from millgate.observe.live.recent import DecisionFilter
from observe.live.rooms import EPOCH, Room


def painter_of(room: Room, snapshot: Snapshot) -> PageModel:
    """Paint another snapshot than the room's own."""
    return PageModel(
        lambda: snapshot,
        lambda arrival: room.core.explain(arrival, room.now),
        room.observers,
        room.history,
        lambda: EPOCH + room.now,
        "gate-7",
    )


def test_lanes_stand_against_their_deadline_and_say_what_a_newcomer_gets() -> None:
    room = Room()
    room.arrive(1)
    room.arrive(2, "throughput")
    interactive, throughput = room.page_model.paint().lanes

    assert (interactive.deadline_s, throughput.deadline_s) == pytest.approx((10.0, 60.0))
    assert (interactive.running, interactive.queued, interactive.stream_limit) == (1, 0, 1)
    assert (throughput.running, throughput.queued, throughput.other_running) == (0, 1, 1)
    assert throughput.newcomer.startswith("waits ")


def test_a_newcomer_runs_where_every_request_is_on_two_engines() -> None:
    engines = tuple(
        EngineSettings(role, 4, role=role, kv_transfer=KvTransfer.SGLANG)
        for role in (Role.PREFILL, Role.DECODE)
    )
    interactive, _ = Room(engines=engines).page_model.paint().lanes

    assert interactive.newcomer.startswith("runs at once")


def test_a_picture_is_the_snapshot_in_the_time_of_the_wall() -> None:
    room = Room()
    room.arrive(1)
    picture = room.page_model.paint()
    snapshot = room.core.snapshot(room.now)

    assert picture.at == EPOCH + room.now
    assert picture.engines[0].seen == snapshot.engines[0]
    assert picture.lanes[0].little == snapshot.lanes[0].little
    assert picture.little == snapshot.little
    assert [row.at for row in picture.decisions] == [EPOCH + room.now]


def test_refusals_make_the_banner_and_carry_their_beginning() -> None:
    room = Room(max_queue=0)
    room.arrive(1)
    room.now += 3.0
    for attempt in range(2, 6):
        room.arrive(attempt)
    said = room.page_model.paint().banner

    assert said.level is Level.OVERLOADED
    assert "80 % refused because no engine had room; engines full" in said.text


def test_a_gate_that_is_too_slow_itself_is_not_calm() -> None:
    """Its doors refuse every request, of which the core hears nothing: the page said "Calm"."""
    room = Room()
    refusal = Yield(7, Reason.OVERLOADED_GATE, 1.0, retry=True, value=0.4)
    room.observers.accounting.on_step(Arrived(7), (refusal,), room.now)
    banner = room.page_model.paint().banner
    said = "Overloaded since 22:15:00 UTC (0 s): new requests refused because the gate itself was too slow; 0 of 1 streams in use; hints 1.0 s"
    assert (banner.level, banner.text) == (Level.OVERLOADED, said)
    room.now += 11.0
    assert room.page_model.paint().banner.level is Level.CALM


def test_an_engine_that_hangs_is_in_the_sentence_until_its_next_first_token() -> None:
    room = Room(streams=4)
    room.arrive(1)
    room.now += 20.0
    room.step(Failed(1, FailureKind.TIMEOUT, Sent.REQUEST))
    room.step(Released(1))
    room.now += 10.0
    room.arrive(2)
    hung = room.page_model.paint().banner.text
    room.step(FirstToken(2))

    assert hung.endswith("; 1 of 1 engines silent")
    assert "silent" not in room.page_model.paint().banner.text


def test_at_night_free_streams_beside_full_kv_memory_are_told_from_a_gate_that_refuses_for_nothing() -> None:
    """18 streams, room for one prompt: "3 of 18 streams in use" alone sent the engineer to look for a fault of the gate."""
    room = Room(engines=(EngineSettings("gpu", 6, kv_tokens=400),))
    room.arrive(1, max_wait_s=5.0)
    for attempt in range(2, 30):
        room.arrive(attempt, max_wait_s=5.0)
    said = room.page_model.paint().banner

    assert said.level is Level.OVERLOADED
    assert "; 1 of 6 streams in use; KV memory has no room for what waits" in said.text

    room = Room(streams=6, max_queue=0)
    for attempt in range(1, 30):
        room.arrive(attempt)
    assert "KV memory" not in room.page_model.paint().banner.text


@pytest.mark.parametrize(
    ("left", "paused_s", "said"),
    [
        (0.01, 0.0, "Calm; engine has used up what its account grants"),
        (-0.3, 9.0, "Calm; engine gets nothing for 9.0 s, its provider has refused"),
        (0.5, 0.0, "Calm"),
    ],
)
def test_an_account_without_quota_is_named_in_the_sentence(left: float, paused_s: float, said: str) -> None:
    """With no stream in use it looked like an overload of nothing."""
    room = Room()
    snapshot = room.core.snapshot(room.now)
    account = AccountReading(left, 0.0, paused_s, breaker_open=False)
    engine = replace(snapshot.engines[0], name="engine", account=account)

    assert painter_of(room, replace(snapshot, engines=(engine,))).paint().banner.text == said


def test_growth_is_read_off_the_last_steps() -> None:
    room = Room(streams=10)
    for attempt in range(1, 5):
        room.now += 5.0
        room.arrive(attempt)
    lane = room.page_model.paint().lanes[0]

    assert lane.trend_per_s == pytest.approx(0.2)
    assert lane.acceleration_per_s2 == pytest.approx(0.0)


def test_an_alarm_is_told_in_words_and_remembered_when_it_clears() -> None:
    room = Room()
    calm = room.core.snapshot(room.now)
    alarm = Alarm(AlarmSignal.LOAD, 9.0, 5.0, 98.0, 99.0, "Offered load is 130 % of capacity.")
    (pool,) = calm.pools
    raised = replace(calm, now=106.0, pools=(PoolSnapshot(pool.engines, pool.warning, (alarm,)),))
    room.now = 106.0
    picture = painter_of(room, raised).paint()

    assert [(each.words, each.since) for each in picture.pools[0].alarms] == [(alarm.words, EPOCH + 98.0)]
    assert picture.banner.level is Level.WARNED
    room.now = 112.0
    after = painter_of(room, replace(calm, now=112.0)).paint()
    assert after.cleared is not None
    assert (after.cleared.words, after.cleared.since) == (alarm.words, EPOCH + 112.0)


def test_what_is_infinite_is_unknown_in_json() -> None:
    frame = msgspec.json.decode(msgspec.json.encode(Room().page_model.paint()))

    assert frame["pools"][0]["signals"]["time_to_full_s"] is None
    assert frame["lanes"][0]["objective"]["requests"] == 0


def test_a_newcomers_wait_is_the_one_that_it_would_be_told() -> None:
    room = Room()
    assert [lane.expected_wait_s for lane in room.page_model.paint().lanes] == [0.0, 0.0]
    room.arrive(1)
    room.arrive(2, "throughput")
    lane = room.page_model.paint().lanes[1]
    assert lane.newcomer == f"waits {seconds(lane.expected_wait_s)} at place 2"


def test_what_was_refused_for_want_of_capacity_counts_against_the_objective() -> None:
    room = Room(max_queue=0)
    for attempt in range(1, 5):
        room.arrive(attempt)
    for event in (FirstToken(1), Finished(1, 300, 100), Released(1)):
        room.step(event)
    objective = room.page_model.paint().lanes[0].objective
    assert (objective.requests, objective.refused, objective.good_share) == (4, 3, 0.25)
    assert (objective.target, objective.tpot) == ("p95", None)
    assert (objective.ttft.quantile, objective.ttft.promised_s) == ("p95", 10.0)
    assert objective.ttft.measured_s is not None


def test_the_verdict_alone_is_the_banner_of_the_picture() -> None:
    room = Room(max_queue=0)
    for attempt in range(1, 5):
        room.arrive(attempt)
    assert room.page_model.verdict() == room.page_model.paint().banner
    assert room.page_model.paint().host == room.page_model.host == "gate-7"


def test_tenants_are_the_busiest_and_bounded_and_have_the_cores_amplification_where_it_knows_them() -> None:
    room = Room(streams=4)
    room.arrive(1, tenant="acme")
    room.step(FirstToken(1))
    room.step(Finished(1, 300, 100))
    room.step(Released(1))
    room.arrive(2, tenant="acme")
    for number in range(80):
        room.arrive(10 + number, tenant=f"tenant-{number}")
    room.arrive(3)
    room.step(FirstToken(10))
    room.step(Finished(10, 50, 50))
    known = (TenantSnapshot("acme", 6, 4), TenantSnapshot("", 3, 3))
    picture = painter_of(room, replace(room.core.snapshot(room.now), tenants=known)).paint()
    acme = picture.tenants[0]

    assert len(picture.tenants) == MOST_TENANTS
    assert (acme.served.name, acme.served.attempts, acme.served.good) == ("acme", 2, 1)
    assert (acme.tokens_share, acme.good_share, acme.amplification) == (0.8, 1.0, 1.5)
    assert picture.tenants[1].amplification is None


def test_hints_are_summed_over_lanes() -> None:
    room = Room()
    snapshot = room.core.snapshot(room.now)
    lanes = tuple(replace(lane, hints_kept=9, hints_broken=1) for lane in snapshot.lanes)
    returns = painter_of(room, replace(snapshot, lanes=lanes)).paint().returns

    assert (returns.hints_kept, returns.hints_followed) == (18, 20)


def test_live_sessions_stand_with_their_memory_and_with_how_much_of_the_prediction_was_found() -> None:
    room = Room()
    snapshot = room.core.snapshot(room.now)
    told = replace(
        snapshot,
        engines=(replace(snapshot.engines[0], kv_limit=30_000),),
        live_sessions=3,
        working_set_share=0.4,
        predicted_cached_tokens=1_000,
        found_cached_tokens=900,
    )
    assert painter_of(room, told).paint().sessions == SessionsPicture(3, 0.4, 0.9)

    untold = replace(snapshot, engines=(replace(snapshot.engines[0], kv_limit=None),))
    assert painter_of(room, untold).paint().sessions == SessionsPicture(0, None, None)


def test_an_engine_shows_how_evenly_its_tokens_come_and_what_its_cache_queued() -> None:
    room = Room()
    room.arrive(1)
    room.step(FirstToken(1))
    for at, tokens in ((100.2, 11), (100.4, 101)):
        room.now = at
        room.step(EngineProgress("gpu", (Growth(1, tokens),)))
    room.step(Finished(1, 100, 101, 60))
    (engine,) = room.page_model.paint().engines

    assert engine.lately is not None
    assert engine.lately.prefix_hit_share == pytest.approx(0.6)
    assert engine.lately.gap_mean_s == pytest.approx(0.004), "ten tokens in 0.2 s, then ninety"
    assert engine.gap_deviation_s == pytest.approx((0.1 * 0.016**2 + 0.9 * (0.004 - 0.2 / 90) ** 2) ** 0.5)


def test_what_an_engine_did_an_hour_ago_is_not_what_it_did_lately() -> None:
    """After the last stream of the evening the page and `/metrics` told its gaps as those of the last minute, all night long."""
    room = Room()
    room.arrive(1)
    room.step(FirstToken(1))
    room.now += 0.2
    room.step(EngineProgress("gpu", (Growth(1, 11),)))
    room.step(Finished(1, 100, 11, 60))
    room.now += 100.0
    room.step(Tick())
    (engine,) = room.page_model.paint().engines
    assert engine.lately is not None
    assert engine.lately.gap_mean_s == pytest.approx(0.02)
    room.now += 3600.0
    room.step(Tick())
    (told,), (lane, _) = room.observers.traffic().engines, room.page_model.paint().lanes
    assert set(asdict(told.lately).values()) == {None}
    assert told.cached_tokens == 60
    assert lane.window_s is None


def test_a_lane_says_how_long_its_window_holds_work_back() -> None:
    room = Room(streams=4, window_s=0.5)
    room.arrive(1)
    room.now += 0.5
    room.step(Tick())
    interactive, throughput = room.page_model.paint().lanes

    assert interactive.window_s == pytest.approx(0.5)
    assert throughput.window_s is None


def test_a_frame_has_few_decisions_and_a_question_may_have_more() -> None:
    room = Room()
    for attempt in range(1, 101):
        room.arrive(attempt)

    assert len(room.page_model.paint().decisions) == MOST_ROWS
    assert len(room.page_model.decisions(90, DecisionFilter())) == 90


def test_the_page_reads_every_record_of_a_picture_by_its_names() -> None:
    """JSON has a tuple with names as a bare list: the state of a provider's account was one, and the page never showed it."""
    records: set[type] = set()

    def walk(hint: object) -> None:
        for part in get_args(hint):
            walk(part)
        if (
            isinstance(hint, type)
            and hint not in records
            and (is_dataclass(hint) or hasattr(hint, "_fields"))
        ):
            records.add(hint)
            for field in get_type_hints(hint).values():
                walk(field)

    walk(Picture)

    assert {AccountReading, EngineSnapshot, SessionsPicture} <= records
    assert [record for record in records if not is_dataclass(record)] == []


def test_painting_changes_nothing() -> None:
    room = Room()
    room.arrive(1)
    room.arrive(2, "throughput")
    before = room.core.snapshot(room.now)
    room.page_model.paint()

    assert room.core.snapshot(room.now) == before
