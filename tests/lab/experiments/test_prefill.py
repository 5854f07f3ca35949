"""Chat beside long prompts: chat is good, and long prompts are read nearly as fast as a fixed pace could."""

from statistics import fmean

import pytest
from lab.experiments.prefill import Scene, best_fixed, play

_SEEDS = (21, 22)


def _mean(scene: Scene, metric: str) -> float:
    return fmean(play(scene, seed)[metric] for seed in _SEEDS)


@pytest.mark.parametrize(
    "scene",
    [
        Scene(),
        Scene(long_users=8),
        Scene("llama3-70b_a100_tp4", 1.0),
        Scene("llama3-8b_h100_tp1", 1.0, 16_000),
    ],
    ids=lambda scene: f"{scene.profile} x {scene.time_scale:g}, {scene.long_users} x {scene.prompt_tokens}",
)
def test_chat_beside_long_prompts_is_good_and_they_are_read_nearly_as_fast_as_they_could(
    scene: Scene,
) -> None:
    assert _mean(scene, "good") >= 0.94
    bound = fmean(best_fixed(scene, seed)["long_tokens_per_s"] for seed in _SEEDS)
    assert _mean(scene, "long_tokens_per_s") >= 0.8 * bound


def test_without_the_gate_chat_is_lost() -> None:
    assert _mean(Scene(long_users=8, policy="no gate"), "good") < 0.5


def test_without_the_gate_no_request_is_refused() -> None:
    assert _mean(Scene("llama3-70b_a100_tp8", 1.0, 16_000, policy="no gate"), "refused") == 0.0


@pytest.mark.parametrize(
    ("profile", "tokens"), [("llama3-70b_a100_tp4", 3_900), ("llama3-70b_h100_tp4", 8_000)]
)
def test_a_flood_of_chat_leaves_the_long_lane_its_share_of_what_is_read(profile: str, tokens: int) -> None:
    """One share of four."""
    scene = Scene(profile, 1.0, tokens, chat_users=60)
    assert fmean(_part(scene, seed) for seed in _SEEDS) >= 0.22


def _part(scene: Scene, seed: int) -> float:
    read = play(scene, seed)
    return read["long_tokens_per_s"] / (read["long_tokens_per_s"] + read["chat_tokens_per_s"])
