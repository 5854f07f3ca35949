"""The cliff: agents whose contexts fit are served from memory, those that do not are computed anew each time."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from lab.experiments.agent_sessions import AgentScene, agent_sessions, play

SHORT = AgentScene(policy="no gate", warm_up_s=200.0, until_s=800.0)


def test_beyond_the_working_set_turns_fall_though_more_agents_ask() -> None:
    fits = play(replace(SHORT, working_set=0.75), 1)
    over = play(replace(SHORT, working_set=2.0), 1)

    assert fits["hit_share"] > 0.9
    assert over["hit_share"] < 0.1
    assert over["turns_per_minute"] < fits["turns_per_minute"]
    assert over["good_per_minute"] < 0.2 * fits["good_per_minute"]


def test_on_one_engine_the_shared_cache_is_its_own() -> None:
    found = play(replace(SHORT, working_set=0.5), 1)

    assert found["hit_share"] == pytest.approx(found["shared_hit_share"], abs=0.005)


def test_spread_over_engines_sessions_lose_what_one_shared_cache_would_keep() -> None:
    found = play(replace(SHORT, working_set=0.5, engines=4), 1)

    assert found["shared_hit_share"] > 0.9
    assert found["hit_share"] < 0.7


def test_a_knob_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="engine: not one of engines, profile"):
        agent_sessions({"engine": "2"})


def test_recorded_sessions_are_played_again_and_again_as_others_though_lines_of_their_file_are_blank(
    tmp_path: Path,
) -> None:
    turns = [
        {"t": turn, "in": 1_000 * turn + 600, "out": 5, "blocks": [[0, 1 + 2 * turn]], "think_s": 1.0}
        for turn in range(3)
    ]
    line = json.dumps({"block_tokens": 512, "requests": turns})
    (tmp_path / "sessions.jsonl").write_text(f"{line}\n\n{line}\n", encoding="utf-8")
    scene = AgentScene(
        profile="demo", sessions=str(tmp_path / "sessions.jsonl"), warm_up_s=10.0, until_s=60.0
    )

    found = play(replace(scene, policy="no gate", working_set=0.5), 1)

    assert found["turns_per_minute"] > 100.0
    assert found["given_up_per_minute"] == 0.0
