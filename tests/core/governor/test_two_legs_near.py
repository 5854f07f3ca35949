"""Where engines stand: a prompt is read near the engine that answers, and far from it where no near one can."""

from dataclasses import replace
from typing import Any

import pytest

from core.governor.test_two_legs import PROMPT, admitted, arrival, engine, names
from millgate.core.decisions import Admit
from millgate.core.events import EngineDown, EngineUp, Finished, FirstToken, Prefilled, Released
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, Labels, LaneSettings, Settings
from millgate.core.state.leg import distance_of, may_hand_over
from millgate.core.words import Role
from millgate.wiring.governor import build_governor

RACK_A, RACK_B = Labels(rack="a"), Labels(rack="b")


def stands(name: str, role: Role, labels: Labels, **given: Any) -> EngineSettings:
    return replace(engine(name, role, **given), labels=labels)


def busy(*engines: EngineSettings) -> Governor:
    """Return a gate whose engine `writes` is the only one that answers, and writes one answer, which a prompt read there would hold up."""
    gate = build_governor(Settings((LaneSettings("interactive", ttft_slo_s=10.0),), engines), 0.0)
    admitted(gate, 100, 0.0, prompt_tokens=40)
    gate.handle(FirstToken(100), 0.02)
    return gate


def two_racks(**near: int) -> Governor:
    return busy(
        stands("far", Role.PREFILL, RACK_A),
        stands("near", Role.PREFILL, RACK_B, **near),
        stands("writes", Role.DECODE, RACK_B),
    )


def test_a_prompt_is_read_in_the_rack_where_it_is_answered() -> None:
    assert names(admitted(two_racks(), 1, 1.0)) == ["writes", "near"]


def test_a_far_engine_reads_where_the_near_one_is_down() -> None:
    gate = two_racks()
    gate.handle(EngineDown("near"), 0.5)
    assert names(admitted(gate, 1, 1.0)) == ["writes", "far"]


def test_a_far_engine_reads_where_the_near_one_is_full() -> None:
    gate = two_racks(streams=1)
    assert names(admitted(gate, 1, 1.0)) == ["writes", "near"]
    assert names(admitted(gate, 2, 1.0)) == ["writes", "far"]


def test_a_far_engine_reads_where_the_near_one_has_a_long_line() -> None:
    gate = two_racks()
    read_by = [names(admitted(gate, number, 1.0))[-1] for number in (1, 2, 3)]
    assert read_by[:2] == ["near", "far"]


@pytest.mark.parametrize("labels", [RACK_A, Labels(host="h"), Labels(zone="z"), Labels("h", "a", "z")])
def test_engines_in_one_place_are_chosen_as_those_without_labels(labels: Labels) -> None:
    def answers(labels: Labels) -> list[list[str]]:
        engines = [stands(f"reads {number}", Role.PREFILL, labels) for number in range(3)]
        gate = busy(*engines, stands("writes", Role.DECODE, labels))
        decisions = [gate.handle(arrival(number), 1.0 + 0.05 * number)[0] for number in range(1, 8)]
        return [names(each) if isinstance(each, Admit) else [] for each in decisions]

    assert answers(labels) == answers(Labels())


def handed_over(gate: Governor, reader: str, transfer_s: float) -> None:
    """Let this reader alone hand over prompts, each in so many seconds, until it is known that this takes too long."""
    other, now = {"near": "far", "far": "near"}[reader], 1.0
    gate.handle(EngineDown(other), now)
    for number in range(10, 15):
        legs, slow_s = names(admitted(gate, number, now)), 0.0
        if legs == ["writes", reader]:
            gate.handle(Prefilled(number, PROMPT, 0), now + 0.4)
            slow_s = transfer_s
        gate.handle(FirstToken(number), now + 0.4 + slow_s)
        gate.handle(Finished(number, PROMPT, 10), now + 0.5 + slow_s)
        gate.handle(Released(number), now + 0.5 + slow_s)
        if not slow_s:
            break
        now += 5.0
    assert legs == ["writes"]
    gate.handle(EngineUp(other), 31.0)


def test_a_slow_link_between_racks_says_nothing_of_those_within_one() -> None:
    gate = two_racks()
    handed_over(gate, "far", 3.0)
    assert names(admitted(gate, 2, 32.0)) == ["writes", "near"]


def test_a_slow_link_within_a_rack_says_nothing_of_those_to_others() -> None:
    gate = two_racks()
    handed_over(gate, "near", 3.0)
    assert names(admitted(gate, 2, 32.0)) == ["writes", "far"]


@pytest.mark.parametrize(
    ("one", "other", "distance"),
    [
        (Labels(), Labels(), 1),
        (Labels("h"), Labels("h"), 0),
        (Labels("h"), Labels("i"), 1),
        (Labels("h", "a"), Labels("h", "b"), 2),
        (Labels("", "a"), Labels("", "a"), 1),
        (Labels("", "a"), Labels(), 1),
        (Labels("", "a", "y"), Labels("", "a", "z"), 3),
        (Labels("", "a", "z"), Labels("", "b", "z"), 2),
        (Labels("", "", "z"), Labels("", "", "z"), 1),
    ],
)
def test_what_is_left_out_counts_as_the_same_rack_and_never_as_the_same_host(
    one: Labels, other: Labels, distance: int
) -> None:
    assert distance_of(one, other) == distance_of(other, one) == distance


def two_zones(required: str) -> Governor:
    return busy(
        stands("far", Role.PREFILL, Labels(zone="a")),
        stands("near", Role.PREFILL, Labels(zone="b")),
        stands("writes", Role.DECODE, Labels(zone="b", required=required)),
    )


def test_a_prompt_never_leaves_the_zone_that_is_required() -> None:
    gate = two_zones("zone")
    assert names(admitted(gate, 1, 1.0)) == ["writes", "near"]

    gate.handle(EngineDown("near"), 2.0)

    assert names(admitted(gate, 2, 2.0)) == ["writes"], "it reads the prompt itself"
    open_to_all = two_zones("")
    open_to_all.handle(EngineDown("near"), 0.5)
    assert names(admitted(open_to_all, 1, 1.0)) == ["writes", "far"]


@pytest.mark.parametrize(
    ("one", "other", "may"),
    [
        (Labels("h", "r", "z", "host"), Labels("h", "r", "z"), True),
        (Labels("h", "r", "z", "host"), Labels("g", "r", "z"), False),
        (Labels("h", "r", "z", "rack"), Labels("g", "r", "z"), True),
        (Labels("h", "r", "z", "rack"), Labels("h", "q", "z"), False),
        (Labels("h", "r", "z", "rack"), Labels("h", "", "z"), False),
        (Labels("h", "r", "z", "rack"), Labels("h", "r", "y"), False),
        (Labels("h", "r", "z", "zone"), Labels("g", "q", "z"), True),
        (Labels("h", "r", "z", "zone"), Labels("h", "r", ""), False),
        (Labels("h", "r", "z"), Labels("g", "q", "y"), True),
    ],
)
def test_what_one_engine_requires_holds_for_both(one: Labels, other: Labels, may: bool) -> None:
    assert may_hand_over(one, other) is may
    assert may_hand_over(other, one) is may
