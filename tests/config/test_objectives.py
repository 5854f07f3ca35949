"""Objectives: a time alone, or with the quantile that it is promised at."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from millgate.config.lanes import LaneConfig
from millgate.config.schema import Config
from millgate.config.sections import LimitConfig
from millgate.config.units import Objective, format_objective


def _ttft(value: object) -> Objective:
    lane = LaneConfig.model_validate({"name": "chat", "ttft_slo": value})
    return lane.ttft_objective(lane)


@pytest.mark.parametrize(
    ("value", "objective"),
    [
        ("2s", Objective(2.0)),
        ({"p50": "250ms"}, Objective(0.25, 0.5)),
        ({"p95": "2s"}, Objective(2.0, 0.95)),
        ({"p99.9": "2s"}, Objective(2.0, 0.999)),
        ("p99:2s", Objective(2.0, 0.99)),
        (" p97.5 : 1m ", Objective(60.0, 0.975)),
    ],
)
def test_an_objective_is_a_time_or_a_quantile_and_its_time(value: object, objective: Objective) -> None:
    assert _ttft(value) == objective
    assert _ttft(format_objective(objective)) == objective


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("5", "has no unit: write 5s, 5ms or 5m"),
        ("0s", "must be more than 0s, not '0s'"),
        ("25h", "must be at most 24h, not '25h'"),
        ({"p99": "0s"}, "must be more than 0s, not '0s'"),
        ({"p99": "2"}, "has no unit"),
        ({"p99": None}, "is not a duration"),
        ({"p49": "2s"}, "'p49' is not a quantile from p50 to p99.9"),
        ({"p99.95": "2s"}, "'p99.95' is not a quantile from p50 to p99.9"),
        ({"p100": "2s"}, "'p100' is not a quantile from p50 to p99.9"),
        ({"P99": "2s"}, "'P99' is not a quantile"),
        ({99: "2s"}, "99 is not a quantile"),
        ({"mean": "2s"}, "'mean' is not a quantile"),
        ("p9:2s", "'p9' is not a quantile"),
        ({"p95": "2s", "p99": "4s"}, "must name one quantile, as in {p99: 2s}, not 2"),
        ({}, "must name one quantile, as in {p99: 2s}, not 0"),
        (["p99", "2s"], "is not a duration"),
    ],
)
def test_what_is_wrong_with_an_objective_is_named(value: object, said: str) -> None:
    with pytest.raises(ValidationError) as error:
        _ttft(value)
    assert said in str(error.value)
    assert [detail["loc"] for detail in error.value.errors()] == [("ttft_slo",)]


def test_a_time_per_token_is_a_minute_at_most() -> None:
    assert LimitConfig.model_validate({"tpot_slo": {"p90": "1m"}}).tpot_slo == Objective(60.0, 0.9)
    with pytest.raises(ValidationError, match="must be at most 1m"):
        LimitConfig.model_validate({"tpot_slo": {"p90": "61s"}})


def test_what_is_shown_is_seconds_by_the_quantile_that_is_named() -> None:
    lane = LaneConfig.model_validate({"name": "chat", "ttft_slo": "2s", "tpot_slo": {"p99.9": "50ms"}})
    shown = json.loads(lane.model_dump_json())
    assert (shown["ttft_slo"], shown["tpot_slo"]) == (2.0, {"p99.9": 0.05})


def test_the_json_schema_knows_both_forms() -> None:
    lane = Config.model_json_schema()["$defs"]["LaneConfig"]["properties"]
    assert [form["type"] for form in lane["ttft_slo"]["anyOf"][0]["anyOf"]] == [
        ["string", "number"],
        "object",
    ]


def _in_force(lane: LaneConfig, first: LaneConfig) -> dict[str, Any]:
    over_s = lane.over_s(first) if lane.takes in ("long_prompts", "batch") else None
    return {**lane.model_dump(), "ttft_slo": lane.ttft_objective(first), "over": over_s}


def test_the_page_on_lanes_writes_the_default_lanes_out_as_they_are_in_force() -> None:
    page = (Path(__file__).parents[2] / "docs/policies/lanes.md").read_text(encoding="utf-8")
    block = page.partition("The default lanes, written out.")[2].split("```")[1].removeprefix("yaml")
    engines = [{"url": "http://127.0.0.1:8000"}]
    written = Config.model_validate({"engines": engines, **yaml.safe_load(block)}).lanes
    default = Config.model_validate({"engines": engines}).lanes

    assert [_in_force(lane, written[0]) for lane in written] == [
        _in_force(lane, default[0]) for lane in default
    ]
