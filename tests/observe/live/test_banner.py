"""The sentence says the worst thing that is true, in plain words, with its numbers."""

import re
from dataclasses import replace

from hypothesis import given, strategies as st

from millgate.core.words import Reason
from millgate.observe.live.banner import LaneWait, Level, Situation, banner, with_workers

# 14:05:12 UTC on 7 November 2023, two minutes after 14:03:12.
NOW = 1_699_365_912.0
CALM = Situation(
    now=NOW,
    lanes=(LaneWait("interactive", 0, 0.0, 10.0), LaneWait("throughput", 0, 0.0, 60.0)),
    engines_up=2,
    engines=2,
    running=3,
    limit=64,
    arrived=100,
)


def test_nothing_waits_and_nobody_is_refused_is_calm() -> None:
    said = banner(CALM)

    assert (said.level, said.text) == (Level.CALM, "Calm")


def test_a_lone_engine_that_fails_its_requests_is_not_calm() -> None:
    failing = "gpu-0: 30 requests in a row failed: status 500"
    said = banner(replace(CALM, engines=1, engines_up=1, failing=failing))
    busy = banner(replace(CALM, running=64, failing=failing))

    assert (said.level, said.text) == (Level.WARNED, f"Engines fail requests; {failing}")
    assert (busy.level, busy.text) == (Level.WARNED, f"Busy: engines full, nothing waits; {failing}")


def test_engines_that_fail_a_part_of_the_requests_are_not_calm_either() -> None:
    said = banner(replace(CALM, failed=40))
    overloaded = banner(replace(CALM, failed=40, refused={Reason.TOO_LATE: 10}, refusing_since=NOW - 3.0))

    assert (said.level, said.text) == (Level.WARNED, "Engines fail requests; 40 % failed on engines")
    assert overloaded.text.endswith("3 of 64 streams in use; 40 % failed on engines")
    assert banner(replace(CALM, failed=5)).text == "Calm"
    assert banner(replace(CALM, arrived=0, failed=2)).text == "Engines fail requests; 100 % failed on engines"


def test_an_engine_whose_provider_has_refused_is_named_before_what_follows_from_it() -> None:
    paused = "hosted gets nothing for 58 s, its provider has refused"
    refused = {Reason.TOO_LATE: 30}
    overloaded = banner(replace(CALM, paused=paused, failed=10, refused=refused, refusing_since=NOW - 3.0))

    assert banner(replace(CALM, paused=paused)).text == f"Calm; {paused}"
    assert overloaded.text.endswith(f"3 of 64 streams in use; {paused}; 10 % failed on engines")


def test_what_waits_is_busy_and_names_the_lane_nearest_to_its_deadline() -> None:
    lanes = (LaneWait("interactive", 4, 1.2, 10.0), LaneWait("throughput", 40, 5.0, 60.0))

    said = banner(replace(CALM, lanes=lanes, running=64))

    assert (said.level, said.text) == (Level.BUSY, "Busy: interactive waits 1.2 s of 10 s")


def test_full_engines_without_a_queue_are_busy() -> None:
    assert banner(replace(CALM, running=64)).text == "Busy: engines full, nothing waits"


def test_refusals_for_want_of_capacity_are_an_overload_with_its_beginning() -> None:
    said = banner(
        replace(
            CALM,
            running=64,
            refused={Reason.TOO_LATE: 41, Reason.EXPIRED: 3},
            refusing_since=NOW - 120.0,
            hints_s=(3.0, 18.2),
        )
    )

    assert said.level is Level.OVERLOADED
    assert said.text == (
        "Overloaded since 14:03:12 UTC (2 min): 41 % refused because it would have been late, 3 % refused because it waited too long; "
        "engines full; hints 3.0-18 s"
    )


def test_an_overload_says_who_waits_and_that_its_engines_are_not_full() -> None:
    said = banner(
        replace(
            CALM,
            lanes=(LaneWait("interactive", 9, 8.0, 10.0),),
            refused={Reason.SATURATED: 1},
            refusing_since=NOW - 3.0,
            hints_s=(0.05, 2.0),
        )
    )

    assert said.text == (
        "Overloaded since 14:05:09 UTC (3.0 s): 1 % refused because no engine had room; 3 of 64 streams in use; "
        "interactive waits 8.0 s of 10 s; hints 50 ms-2.0 s"
    )


def test_the_last_seconds_of_an_overload_say_that_refusing_has_stopped() -> None:
    said = banner(replace(CALM, refusing_since=NOW - 30.0))

    assert "refusals have just stopped" in said.text


def test_a_rule_that_refuses_is_no_overload_but_is_said() -> None:
    said = banner(replace(CALM, refused={Reason.QUOTA: 12}))

    assert (said.level, said.text) == (Level.CALM, "Calm; 12 % refused because a quota was used up")


def test_an_alarm_before_any_refusal_is_a_warning_with_its_evidence() -> None:
    said = banner(replace(CALM, warning="Offered load is 130 % of capacity.", warned_since=NOW - 7.0))

    assert said.level is Level.WARNED
    assert said.text == "Overload is coming, seen 14:05:05 UTC (7.0 s): Offered load is 130 % of capacity."


def test_engines_that_are_down_are_named_in_number_and_all_of_them_are_a_level() -> None:
    assert banner(replace(CALM, engines_up=1)).text == "Calm; 1 of 2 engines down"
    assert banner(replace(CALM, engines_up=0, limit=0)).level is Level.DOWN


def test_engines_that_hang_are_named_in_number() -> None:
    """The sentence was "Calm" while a quarter of the engines began nothing."""
    refusing = replace(CALM, engines_silent=1, refused={Reason.TOO_LATE: 30}, refusing_since=NOW - 3.0)

    assert banner(replace(CALM, engines_silent=1)).text == "Calm; 1 of 2 engines silent"
    assert banner(replace(CALM, engines=4, engines_silent=1)).text == (
        "Calm; 2 of 4 engines down; 1 of 4 engines silent"
    )
    assert banner(refusing).text.endswith("3 of 64 streams in use; 1 of 2 engines silent")


def test_a_worker_that_does_not_answer_is_named_and_none_that_does_is_down() -> None:
    hung = ["no answer for 5.1 s from worker 2 (process 31)", "1 of 4 workers missing"]
    calm, all_hung = (with_workers(banner(CALM), hung, is_down=is_down) for is_down in (False, True))
    failing = with_workers(banner(replace(CALM, failing="gpu-0 fails")), hung[:1], is_down=False)
    busy = with_workers(banner(replace(CALM, running=64)), hung[1:], is_down=False)

    assert calm.level is busy.level is failing.level is Level.WARNED
    assert all_hung.level is Level.DOWN
    assert calm.text == "No answer for 5.1 s from worker 2 (process 31); 1 of 4 workers missing"
    assert all_hung.text == f"Down: {hung[0]}; {hung[1]}"
    assert failing.text == f"Engines fail requests; gpu-0 fails; {hung[0]}"
    assert busy.text == "Busy: engines full, nothing waits; 1 of 4 workers missing"


def test_draining_says_what_still_runs() -> None:
    said = banner(replace(CALM, draining=True, running=1))

    assert (said.level, said.text) == (Level.DOWN, "Draining: 1 request still runs, nothing new is let in")


@given(
    arrived=st.integers(0, 50),
    refused=st.dictionaries(st.sampled_from(list(Reason)), st.integers(0, 500)),
    since=st.none() | st.floats(0.0, 1e5),
    wait_s=st.floats(0.0, 1e4),
    deadline_s=st.floats(0.0, 100.0),
    up=st.integers(0, 2),
)
def test_any_situation_has_a_sentence_and_no_share_above_all(
    arrived: int,
    refused: dict[Reason, int],
    since: float | None,
    wait_s: float,
    deadline_s: float,
    up: int,
) -> None:
    said = banner(
        replace(
            CALM,
            arrived=arrived,
            refused=refused,
            refusing_since=None if since is None else NOW - since,
            lanes=(LaneWait("interactive", 1, wait_s, deadline_s),),
            engines_up=up,
        )
    )

    shares = [int(share) for share in re.findall(r"(\d+) %", said.text)]
    assert said.text
    assert "\n" not in said.text
    assert all(share <= 100 for share in shares)
