"""Requests that name no lane: classed by what an idle engine takes for them, whatever the load; and they keep their class."""

from dataclasses import replace
from math import inf

import pytest

from millgate.core.decisions import Admit, Queue, Yield
from millgate.core.events import Arrived, Draining, EngineDown, Finished, Released
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, LaneSettings, ServicePrior, Settings
from millgate.core.state.lane import Lane, choose_lane
from millgate.core.words import ClassedBy, DeadlineFrom, LaneTakes
from millgate.wiring.governor import INSTRUMENTS, build_governor, make_order

CHAT = LaneSettings("chat", order="short_first", share=8.0)
LONG = LaneSettings(
    "long",
    ttft_slo_s=60.0,
    deadline_s=60.0,
    deadline_from=DeadlineFrom.ATTEMPT,
    takes=LaneTakes.LONG_PROMPTS,
    over_s=5.0,
)
BATCH = LaneSettings("batch", ttft_slo_s=60.0, deadline_s=60.0, takes=LaneTakes.BATCH, over_s=10.0)
READS_A_MS = ServicePrior(0.1, 0.001, 0.02, 0.0)
"""A token in a millisecond; four bytes are a token until something is learned."""


def gate(
    *lanes: LaneSettings, engines: tuple[EngineSettings, ...] = (EngineSettings("e", 4, prior=READS_A_MS),)
) -> Governor:
    return build_governor(Settings(lanes or (CHAT, LONG, BATCH), engines), 0.0)


def asks(prompt_tokens: int, number: int = 1, **more: object) -> Arrived:
    shape = {"fixed_tokens": prompt_tokens, "prompt_bytes": 0, "body_bytes": 100}
    return Arrived(number, **(shape | more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arrival", "lane", "by"),
    [
        (asks(4_900), "chat", None),
        (asks(5_200), "long", ClassedBy.PROMPT),
        (asks(5_200, stream=False), "long", ClassedBy.PROMPT),
        (asks(5_200, lane="chat"), "chat", None),
        (asks(20, lane="batch"), "batch", None),
        (asks(20, lane="unknown"), "chat", None),
        (asks(20, max_tokens=0, stream=False), "batch", ClassedBy.ONLY_READ),
        (asks(20_000, max_tokens=0, stream=False), "batch", ClassedBy.ONLY_READ),
        (asks(100, max_tokens=600, min_tokens=600, stream=False), "batch", ClassedBy.ANSWER),
        (asks(100, max_tokens=600, min_tokens=600), "chat", None),
        (asks(100, max_tokens=400, min_tokens=400, stream=False), "chat", None),
        (asks(100, max_tokens=400, min_tokens=400, answers=3, stream=False), "chat", None),
    ],
)
def test_a_request_is_classed_by_what_an_idle_engine_takes(
    arrival: Arrived, lane: str, by: ClassedBy | None
) -> None:
    governor = gate()

    explained = governor.explain(arrival, 0.0)
    decision = governor.handle(arrival, 0.0)[0]

    assert explained.decision == decision
    assert explained.lane == lane
    assert (explained.classed and explained.classed.by) == by
    assert not isinstance(decision, Admit) or decision.classed == explained.classed


@pytest.mark.parametrize(
    ("arrival", "lane", "by", "value_s", "bound_s"),
    [
        (asks(6_000), "long", ClassedBy.PROMPT, 6.0, 5.0),
        (
            asks(6_000, max_tokens=600, min_tokens=600, stream=False),
            "long",
            ClassedBy.PROMPT,
            6.0,
            5.0,
        ),
        (
            asks(100, max_tokens=600, min_tokens=600, stream=False),
            "batch",
            ClassedBy.ANSWER,
            0.1 + 0.1 + 599 * 0.02,
            10.0,
        ),
    ],
)
def test_the_number_and_the_threshold_are_told(
    arrival: Arrived, lane: str, by: ClassedBy, value_s: float, bound_s: float
) -> None:
    classed = gate().explain(arrival, 0.0).classed

    assert classed is not None
    assert (classed.lane, classed.by, classed.bound_s) == (lane, by, bound_s)
    assert classed.value_s == pytest.approx(value_s)


def test_one_lane_classes_nothing() -> None:
    explained = gate(CHAT).explain(asks(90_000), 0.0)

    assert (explained.lane, explained.classed) == ("chat", None)
    assert explained.reading_s == pytest.approx(90.0)


def test_of_several_lanes_for_long_prompts_the_longest_that_fits_takes_it() -> None:
    huge = LaneSettings("huge", takes=LaneTakes.LONG_PROMPTS, over_s=20.0)

    lanes = [gate(CHAT, LONG, huge).explain(asks(tokens), 0.0).lane for tokens in (4_000, 6_000, 30_000)]

    assert lanes == ["chat", "long", "huge"]


def test_the_class_does_not_depend_on_the_load() -> None:
    governor = gate()
    for number in range(4):
        governor.handle(asks(4_000, number), 0.0)

    assert isinstance(governor.handle(asks(4_000, 7), 0.1)[0], Queue | Yield)
    assert governor.explain(asks(4_000), 0.1).lane == "chat"


def test_the_fastest_engine_that_is_up_decides() -> None:
    slow = EngineSettings("slow", 4, prior=READS_A_MS)
    fast = EngineSettings("fast", 4, prior=ServicePrior(0.1, 0.0001, 0.02, 0.0))
    governor = gate(engines=(slow, fast))

    assert governor.explain(asks(8_000), 0.0).lane == "chat"
    governor.handle(EngineDown("fast"), 0.0)
    assert governor.explain(asks(8_000), 0.0).lane == "long"
    governor.handle(EngineDown("slow"), 0.0)
    assert governor.explain(asks(8_000), 0.0).lane == "chat", "with none up it is the fastest of all"


def test_a_request_that_comes_back_keeps_its_class_though_the_engine_is_faster_by_then() -> None:
    slow = EngineSettings("e", 1, prior=READS_A_MS)
    governor = gate(CHAT, replace(LONG, max_queue=0), engines=(slow,))
    governor.handle(asks(100, 1, max_tokens=4_000, min_tokens=4_000), 0.0)
    refused = governor.handle(asks(6_000, 2, fingerprint=lambda: 7), 0.0)[0]
    assert isinstance(refused, Yield)
    assert refused.classed is not None
    back = asks(4_000, 3, fingerprint=lambda: 7, retry_count=1)

    explained = governor.explain(back, refused.retry_after_s)

    assert governor.explain(asks(4_000, 3), refused.retry_after_s).lane == "chat"
    assert (explained.recognised, explained.lane) == (True, "long")
    assert explained.classed is not None
    assert explained.classed.by is ClassedBy.FIRST_ATTEMPT
    named = governor.explain(back._replace(lane="chat"), refused.retry_after_s)
    assert (named.lane, named.classed) == ("chat", None), "what names a lane is in that lane"


def test_a_long_prompt_gets_a_deadline_that_it_can_meet() -> None:
    governor = gate()

    decision = governor.handle(asks(30_000), 0.0)[0]

    assert isinstance(decision, Admit)
    assert governor.explain(asks(30_000, 2), 0.0).deadline == 60.0


def test_while_others_wait_a_long_lane_reads_no_more_than_its_share() -> None:
    """Ten seconds of reading for a share of one in eleven: the next after 110 s, unless nothing else waits."""
    engine = EngineSettings("e", 1, prior=READS_A_MS)
    patient = LaneSettings("chat", deadline_s=inf, ttft_slo_s=1e3, share=10.0)
    long = LaneSettings("long", deadline_s=inf, takes=LaneTakes.LONG_PROMPTS, over_s=5.0)
    governor = gate(patient, long, engines=(engine,))
    governor.handle(asks(10_000, 1), 0.0)
    governor.handle(asks(10_000, 2), 1.0)
    governor.handle(asks(100, 3), 2.0)
    governor.handle(asks(100, 4), 3.0)

    order = []
    for now, over in ((20.0, 1), (21.0, 3), (22.0, 4)):
        governor.handle(Finished(over, None, 5), now)
        order += [each.attempt for each in governor.handle(Released(over), now) if isinstance(each, Admit)]

    assert order == [3, 4, 2], "the second long prompt goes when nothing else waits, not before"


def test_a_refusal_in_a_drain_tells_the_class_as_well() -> None:
    governor = gate()
    governor.handle(Draining(), 0.0)

    refused = governor.handle(asks(9_000), 1.0)[0]

    assert isinstance(refused, Yield)
    assert refused.classed is not None
    assert refused.classed.lane == "long"


@pytest.mark.parametrize(("hint", "lane"), [(None, "slow"), ("fast", "fast"), ("gone", "slow")])
def test_the_named_lane_or_the_default(hint: str | None, lane: str) -> None:
    lanes = {name: Lane(LaneSettings(name), make_order, INSTRUMENTS, 0.0) for name in ("slow", "fast")}

    assert choose_lane(lanes, hint, lanes["slow"]) is lanes[lane]
