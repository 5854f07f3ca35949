"""Placement by held prefixes beside routers that others use, on a small trace of conversations."""

import json
from pathlib import Path
from random import Random

import pytest
from lab.routers import RULES, RoutingCore
from lab.routing import POLICIES, fleet_of, play

from millgate.core.decisions import Admit, Ended
from millgate.core.events import Arrived, Failed, Released
from millgate.core.words import FailureKind, Outcome, Sent


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Sixty conversations of eight turns, a thousand tokens more each time."""
    dice, path = Random(3), tmp_path / "trace.jsonl"
    asked = [(dice.uniform(0, 200_000), talk) for talk in range(60)]
    turns = sorted((begins_ms + 20_000 * turn, talk, turn) for begins_ms, talk in asked for turn in range(8))
    lines = []
    for at_ms, talk, turn in turns:
        blocks = [talk * 100 + number for number in range(4 + 2 * turn)]
        lengths = {"input_length": 512 * len(blocks) + 100, "output_length": 100}
        lines.append({"timestamp": at_ms, **lengths, "hash_ids": [*blocks, 9_000 + talk]})
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


def _found(line: str) -> float:
    return float(line.split("|")[3])


def test_turns_return_to_the_engine_that_holds_their_conversation(trace: Path) -> None:
    fleet = fleet_of("llama3-8b_h100_tp1", 4, 300_000)
    found = {policy: _found(play(policy, fleet, trace, 1.0, 1)) for policy in POLICIES}

    assert found["gate"] > 0.7 > found["least requests"]
    assert found["gate"] >= 0.98 * max(found.values())


@pytest.mark.parametrize("rule", ["least requests", "lmetric", "dynamo"])
def test_a_request_that_an_engine_fails_is_over_and_weighs_on_it_no_more(rule: str) -> None:
    core = RoutingCore(fleet_of("llama3-8b_h100_tp1", 2, 300_000).settings, RULES[rule])
    (sent,) = core.handle(Arrived(1, prompt_bytes=2_000_000), 0.0)
    (ended,) = core.handle(Failed(1, FailureKind.STATUS, Sent.REQUEST), 0.0)
    core.handle(Released(1), 0.0)
    (next_one,) = core.handle(Arrived(2, prompt_bytes=4_000), 1.0)

    assert isinstance(ended, Ended)
    assert ended.outcome is Outcome.ENGINE_FAILED
    assert isinstance(sent, Admit)
    assert isinstance(next_one, Admit)
    assert next_one.legs[0].engine == sent.legs[0].engine
