"""The witness sees what a real core decides, and every attempt leaves exactly one line and nothing behind."""

import json
from pathlib import Path
from typing import Any

import pytest

from millgate.core.decisions import Admit, Candidate, Ended, Leg, Queue, Yield
from millgate.core.events import (
    Arrived,
    ClientGone,
    Draining,
    EngineProgress,
    Event,
    Failed,
    Finished,
    FirstToken,
    Growth,
    HeldBack,
    Released,
    Tick,
)
from millgate.core.settings import EngineSettings, LaneSettings, Settings
from millgate.core.words import FailureKind, Outcome, Sent, Stage
from millgate.observe.attempt_log import AttemptLog
from millgate.observe.refusals import Refusals
from millgate.observe.ring import Ring
from millgate.observe.step_accounting import StepAccounting
from millgate.observe.traffic import Traffic
from millgate.wiring.governor import build_governor


class Room:
    """A real core with one engine, and a witness of everything that it decides."""

    def __init__(
        self, path: Path, max_inflight: int = 1, engines: tuple[str, ...] = ("gpu",), **lane: Any
    ) -> None:
        every = tuple(EngineSettings(name, max_inflight) for name in engines)
        settings = Settings((LaneSettings("interactive", **lane),), every)
        self.core = build_governor(settings, 0.0)
        self.traffic = Traffic()
        self.log = AttemptLog(str(path), boot="b007", first_lane="interactive", tenants=["acme"])
        self.ring = Ring()
        self.accounting = StepAccounting(self.ring, self.traffic, Refusals(), self.log, "interactive")
        self._path = path

    def post(self, now: float, *events: Event) -> None:
        for event in events:
            self.accounting.on_step(event, self.core.handle(event, now), now)

    def lines(self) -> list[dict[str, Any]]:
        """Return what was written, when everything has been."""
        accounting = self.accounting
        accounting.settle()
        self.log.close()
        assert not any(
            (
                accounting._arrivals,
                accounting._admits,
                accounting._heard,
                accounting._given,
                accounting._given_upstream,
                accounting._begun,
            )
        )
        return [json.loads(line) for line in self._path.read_bytes().splitlines()]


def test_the_engine_s_own_id_of_an_answer_stands_beside_ours(tmp_path: Path) -> None:
    room = Room(tmp_path / "log")
    room.post(10.0, Arrived(1))
    room.accounting.upstream_named(1, b"req_011")
    room.post(12.5, Finished(1, 90, 21), Released(1))

    (line,) = room.lines()
    assert (line["id"], line["upstream_id"]) == ("b007-1", "req_011")


def test_a_whole_answer_leaves_its_sizes_and_times(tmp_path: Path) -> None:
    room = Room(tmp_path / "log")
    room.accounting.named(1, b"given-by-the-client")
    room.post(10.0, Arrived(1, "acme", prompt_bytes=400, max_tokens=64, retry_count=2))
    room.post(10.5, FirstToken(1))
    room.post(12.5, Finished(1, 90, 21), Released(1))

    (line,) = room.lines()
    assert line.pop("time").endswith("Z")
    assert line.pop("expected_ttft_s") > 0
    assert line == {
        "id": "given-by-the-client",
        "attempt": 1,
        "outcome": "good",
        "tenant": "acme",
        "lane": "interactive",
        "engine": "gpu",
        "stream": True,
        "retry_count": 2,
        "prompt_bytes": 400,
        "expected_prompt_tokens": 100,
        "reserved_tokens": 164,
        "prompt_tokens": 90,
        "output_tokens": 21,
        "waited_s": 0.0,
        "ttft_s": 0.5,
        "total_s": 2.5,
    }


def test_every_way_to_end_leaves_one_line_with_its_outcome_and_cause(tmp_path: Path) -> None:
    room = Room(tmp_path / "log", deadline_s=5.0)
    room.post(0.0, *(Arrived(number, max_tokens=10) for number in (1, 2, 3)))
    room.post(0.5, ClientGone(2))
    room.post(6.0, Tick())
    room.post(6.5, FirstToken(1), ClientGone(1), Released(1))
    room.post(7.0, Arrived(4), Failed(4, FailureKind.BROKEN, Sent.REQUEST), Released(4))
    room.post(8.0, Arrived(5), Arrived(6), Draining(1.0))
    room.post(9.5, Tick(), Released(5), Arrived(7))

    ends = {line["attempt"]: (line["outcome"], line.get("reason")) for line in room.lines()}
    assert ends == {
        1: ("client_gone", "decode"),
        2: ("client_gone", "queued"),
        3: ("yielded", "expired"),
        4: ("engine_failed", "broken"),
        5: ("yielded", "draining"),
        6: ("yielded", "too_late"),
        7: ("yielded", "draining"),
    }


def test_who_was_with_an_engine_that_did_nothing_and_was_refused_then_has_it_in_its_line(
    tmp_path: Path,
) -> None:
    room = Room(tmp_path / "log", engines=("gpu", "other"), deadline_s=5.0)
    room.post(0.0, *(Arrived(number, max_tokens=10) for number in (1, 2, 3)))
    room.post(1.0, Finished(1, 10, 10), Released(1))  # 3 has waited, and is admitted now
    for number in (2, 3):
        room.accounting.upstream_named(number, b"theirs")
    room.post(1.5, Arrived(4, max_tokens=10))
    room.post(2.0, Failed(3, FailureKind.STATUS, Sent.NONE), Released(3))
    room.post(6.5, Tick())
    room.post(7.0, FirstToken(2), Finished(2, 10, 10), Released(2), Finished(4, 10, 10), Released(4))

    lines = {line["attempt"]: line for line in room.lines()}
    assert (lines[3]["outcome"], lines[3]["upstream_id"]) == ("yielded", "theirs")
    assert {number: line["engine"] for number, line in lines.items()} == {
        1: "gpu",
        2: "other",
        3: "gpu",
        4: "gpu",
    }


def test_gaps_are_read_off_the_progress_of_streams_and_the_rest_at_the_end(tmp_path: Path) -> None:
    room = Room(tmp_path / "log")
    room.post(0.0, Arrived(1, max_tokens=100))
    room.post(0.5, FirstToken(1))
    room.post(1.5, EngineProgress("gpu", (Growth(1, 51), Growth(99, 7))))
    room.post(2.5, EngineProgress("gpu", (Growth(1, 51),)))
    room.post(3.5, EngineProgress("gpu", (Growth(1, 61),)))
    room.post(4.0, Finished(1, 10, 71), Released(1))
    room.lines()

    (engine,) = room.traffic.read().engines
    assert sum(engine.gap.counts) == 70
    assert engine.gap.total == pytest.approx(3.5)
    assert engine.gap.counts[2:] == (50, 0, 10, 0, 10, 0, 0, 0)[: len(engine.gap.counts) - 2]


def test_a_client_that_reads_slowly_says_nothing_of_the_pace_of_its_engine(tmp_path: Path) -> None:
    """The page showed an engine that stutters, and a lane whose tokens come slowly."""
    room = Room(tmp_path / "log")
    room.post(0.0, Arrived(1), FirstToken(1))
    room.post(1.0, EngineProgress("gpu", (Growth(1, 41),)), HeldBack(1))
    for second in range(2, 40):
        room.post(float(second), EngineProgress("gpu", (Growth(1, 41 + second),)))
    room.post(40.0, Finished(1, 10, 82), Released(1))
    room.lines()

    traffic = room.traffic.read()
    assert traffic.engines[0].lately.gap_mean_s == pytest.approx(0.025)
    assert traffic.engines[0].tpot.total == 0.0
    assert traffic.lanes[0].lately.tpot_mean_s is None
    assert sum(traffic.engines[0].ttft.counts) == 1


@pytest.mark.parametrize("carries", [1, 5])
def test_an_engine_whose_events_carry_several_tokens_does_not_stutter_for_that(
    carries: int, tmp_path: Path
) -> None:
    """With speculative decoding the page showed 40 ms ± 80 ms for ever: few tokens a second, and the rest of them at the end."""
    room = Room(tmp_path / "log")
    for number in range(1, 31):
        begins = 4.0 * number
        room.post(begins, Arrived(number, max_tokens=20 * carries), FirstToken(number))
        for second in (1, 2, 3):
            events = 1 + 5 * second
            room.post(begins + second, EngineProgress("gpu", (Growth(number, events),)))
        room.post(begins + 3.8, Finished(number, 10, 20 * carries), Released(number))
    room.lines()

    (engine,) = room.traffic.read().engines
    assert engine.lately.gap_mean_s == pytest.approx(0.2 / carries, rel=0.15)
    assert (engine.lately.gap_variance or 0.0) ** 0.5 < 0.35 * 0.2 / carries
    assert engine.lately.tpot_mean_s == pytest.approx(3.8 / (20 * carries - 1))


def test_a_tenant_that_is_not_configured_is_a_hash_and_nobody_has_no_name(tmp_path: Path) -> None:
    room = Room(tmp_path / "log", max_inflight=8)
    hashed = "key-" + "ab" * 12
    for number, tenant in enumerate(("acme", "jane.doe", "", hashed, "jane.doe"), 1):
        room.post(0.0, Arrived(number, tenant), Finished(number), Released(number))

    names = [line.get("tenant", "") for line in room.lines()]
    assert (names[0], names[2], names[3]) == ("acme", "", hashed)
    assert names[1] == names[4]
    assert names[1].startswith("tenant-")
    assert "jane" not in names[1]


def test_hints_and_how_true_they_were_for_whoever_came_back_with_a_ticket(tmp_path: Path) -> None:
    room = Room(tmp_path / "log", max_queue=0)
    room.post(0.0, Arrived(1), Arrived(2))
    room.post(2.0, Finished(1, 10, 10), Released(1))
    room.post(3.0, Arrived(3, first_seen=0.0, due_at=2.6))
    room.post(3.5, Finished(3, 10, 10), Released(3))
    room.lines()

    (lane,) = room.traffic.read().lanes
    assert (sum(lane.hint.counts), sum(lane.hint_error.counts)) == (1, 1)
    assert lane.hint_error.total == pytest.approx(0.4)


def test_hints_and_how_true_they_were_for_whoever_came_back_without_a_ticket(tmp_path: Path) -> None:
    room = Room(tmp_path / "log", max_queue=0)
    room.post(0.0, Arrived(1), Arrived(2, fingerprint=lambda: 7))
    room.accounting.settle()
    (refusal,) = [step[2][0] for _, step in room.ring.newest(9) if isinstance(step[2][0], Yield)]
    hint_s = refusal.retry_after_s
    room.post(hint_s, Finished(1, 10, 10), Released(1))
    room.post(hint_s + 0.3, Arrived(3, fingerprint=lambda: 7))
    room.post(hint_s + 0.4, Finished(3, 10, 10), Released(3))
    room.lines()

    (lane,) = room.traffic.read().lanes
    assert sum(lane.hint_return.counts) == sum(lane.hint_error.counts) == 1
    assert lane.hint_return.total == lane.hint_error.total == pytest.approx(0.3)


def test_a_line_says_what_was_cached_and_what_was_waited_for_company(tmp_path: Path) -> None:
    room = Room(tmp_path / "log", max_inflight=4, window_s=0.5)
    room.post(0.0, Arrived(1, max_tokens=64))
    room.post(0.5, Tick())
    room.post(1.0, Finished(1, 100, 20, 60), Released(1))

    (line,) = room.lines()
    assert (line["cached_tokens"], line["window_s"], line["waited_s"]) == (60, 0.5, 0.5)
    (lane,) = room.traffic.read().lanes
    assert lane.window.total == pytest.approx(0.5)


def test_what_ran_in_another_lane_is_counted_for_the_lane_that_was_asked_for(tmp_path: Path) -> None:
    room = Room(tmp_path / "log")
    lanes = (LaneSettings("interactive", max_queue=0, demote="batch"), LaneSettings("batch", deadline_s=60.0))
    room.core = build_governor(Settings(lanes, (EngineSettings("gpu", 1),)), 0.0)
    room.post(0.0, Arrived(1), Arrived(2))
    room.post(1.0, Finished(1, 10, 10), Released(1))
    room.post(2.0, Finished(2, 10, 10), Released(2))
    room.lines()

    counts = {lane.name: (lane.demoted, lane.clipped) for lane in room.traffic.read().lanes}
    assert counts["interactive"] == (1, 0)


def test_whoever_looks_now_and_then_is_called_at_most_every_tenth_of_a_second(tmp_path: Path) -> None:
    room = Room(tmp_path / "log", max_inflight=100)
    beats: list[float] = []
    room.accounting.on_beat.append(beats.append)
    for number in range(1, 31):
        room.post(1.0 + number / 128, Arrived(number))
    room.log.close()

    assert beats == [1.0 + number / 128 for number in (1, 14, 27)]


def test_the_books_of_a_flood_are_done_in_small_batches_and_nobody_looks_more_often_for_it(
    tmp_path: Path,
) -> None:
    room = Room(tmp_path / "log", max_inflight=1000)
    beats: list[float] = []
    room.accounting.on_beat.append(beats.append)
    for number in range(1, 201):
        room.post(1.0, Arrived(number))
    booked = room.ring.decided
    room.log.close()

    assert booked == 1 + 3 * 64
    assert beats == [1.0]


def test_what_no_later_step_brings_in_is_brought_in_by_a_timer(tmp_path: Path) -> None:
    """On an idle gate whose engine is never polled the last attempt would wait for the next user."""
    timers: list[tuple[float, Any]] = []
    room = Room(tmp_path / "log")
    room.accounting = StepAccounting(
        room.ring,
        room.traffic,
        Refusals(),
        room.log,
        "interactive",
        lambda delay_s, callback: timers.append((delay_s, callback)),
    )
    room.post(1.0, Arrived(1, "", "interactive", "m", 400, 400, 64))
    room.post(1.01, Finished(1, 100, 64), Released(1))
    assert [delay_s for delay_s, _ in timers] == [0.1]
    timers.pop()[1]()
    room.log.close()
    assert len((tmp_path / "log").read_bytes().splitlines()) == 1
    room.post(1.02, Arrived(2, "", "interactive", "m", 400, 400, 64))
    assert len(timers) == 1


def test_a_first_token_that_comes_after_the_end_leaves_nothing_behind(tmp_path: Path) -> None:
    """A client hangs up, and the engine's first event is already on its way through the loop."""
    room = Room(tmp_path / "log", max_inflight=2)
    room.post(1.0, Arrived(1, max_tokens=10))
    room.post(1.01, ClientGone(1), FirstToken(1), Released(1))
    room.post(2.0, Arrived(2, max_tokens=10), ClientGone(2))
    room.accounting.settle()
    room.post(2.5, FirstToken(2), EngineProgress("gpu", (Growth(2, 9),)), Released(2))

    assert [line["outcome"] for line in room.lines()] == ["client_gone"] * 2


def test_whoever_begins_to_watch_in_the_middle_keeps_nothing_of_those_whose_arrival_it_missed(
    tmp_path: Path,
) -> None:
    room = Room(tmp_path / "log")
    missed = (Arrived(1, max_tokens=10), Arrived(2, max_tokens=10))
    for event in missed:
        room.core.handle(event, 0.0)
    room.post(1.0, FirstToken(1), Finished(1, 10, 10), Released(1))
    room.post(2.0, FirstToken(2), Finished(2, 10, 10), Released(2))

    assert room.lines() == []


def test_an_attempt_that_is_admitted_again_is_logged_as_it_was_admitted_last(tmp_path: Path) -> None:
    room = Room(tmp_path / "log")
    first = Admit(1, (Leg("gpu", 1, 164, 100),), 0.0, 0.5, 9.0)
    again = Admit(1, (Leg("tpu", 1, 264, 200),), 0.0, 0.7, 9.0)
    gone = Ended(1, Outcome.CLIENT_GONE, "interactive", None, 0.0, 2.0, None, 100, 0, Stage.PREFILL)
    room.accounting.on_step(Arrived(1), (Queue(9, 1, 0.1), first), 0.0)
    room.accounting.on_step(Tick(), (again,), 1.0)
    room.accounting.on_step(ClientGone(1), (gone,), 2.0)

    (line,) = room.lines()
    assert (line["engine"], line["expected_prompt_tokens"], line["reserved_tokens"]) == ("tpu", 200, 264)
    assert (line["expected_ttft_s"], "prompt_tokens" in line) == (0.7, False)


@pytest.mark.parametrize(
    "admit",
    [
        Admit(1, (Leg("gpu", 1, 1_064, 40),), 0.0, 0.5, 9.0, candidates=(Candidate("gpu", 960, 1_000, 0.1),)),
        Admit(1, (Leg("gpu", 1, 1_064, 1), Leg("reads", 1, 1_000, 600)), 0.0, 0.5, 9.0),
    ],
    ids=["most of it is cached", "another engine reads it"],
)
def test_a_prompt_is_logged_as_long_as_it_was_taken_to_be(tmp_path: Path, admit: Admit) -> None:
    """`prompt_tokens` beside it counts what was cached, or read elsewhere, as well."""
    room = Room(tmp_path / "log")
    ended = Ended(1, Outcome.GOOD, "interactive", "gpu", 0.0, 2.0, 0.1, 990, 8, None, 950)
    room.accounting.on_step(Arrived(1), (admit,), 0.0)
    room.accounting.on_step(Finished(1, 990, 8, 950), (ended,), 2.0)

    (line,) = room.lines()
    assert (line["expected_prompt_tokens"], line["reserved_tokens"], line["prompt_tokens"]) == (
        1_000,
        1_064,
        990,
    )
