"""Tight SLOs: what an arm measures, what is said of them all, and what is left out."""

import pytest
from lab.experiments.tight_slos import RATIOS, TIGHT_SLOS

from lab.experiments import tight_slos
from millgate.sim.experiments.contract import Arm, answer

SEED = 1


def test_an_arm_shows_both_starts_beside_what_is_feasible() -> None:
    [(x, metrics)] = TIGHT_SLOS.run(Arm("llama3-8b_h200_tp1", 1.2), SEED)

    assert x == 1.2
    assert metrics["feasible_streams"] == 3.0
    both = (metrics["tokens_share from half"], metrics["tokens_share from ten times"])
    assert metrics["tokens_share"] == pytest.approx(sum(both) / 2.0)
    assert min(metrics["tpot_p90_share from half"], metrics["tpot_p90_share from ten times"]) > 0.8


def test_facts_count_what_is_outside_the_aim_at_each_slo() -> None:
    def metrics(half: tuple[float, float], ten: tuple[float, float]) -> dict[str, float]:
        return {
            "tokens_share": (half[0] + ten[0]) / 2.0,
            "tokens_share from half": half[0],
            "tpot_p90_share from half": half[1],
            "tokens_share from ten times": ten[0],
            "tpot_p90_share from ten times": ten[1],
        }

    told = answer(
        TIGHT_SLOS,
        [
            (Arm("demo", 2.0), [(2.0, metrics((1.0, 0.99), (0.9, 0.99)))]),
            (Arm("llama3-8b_a100_tp1", 2.0), [(2.0, metrics((0.96, 1.0), (0.97, 1.01)))]),
        ],
    )

    assert told.facts["2x: outside the aim, of 4"] == 2.0
    assert told.facts["2x: least tokens_share"] == 0.9
    assert told.facts["2x: most tpot_p90_share"] == 1.01
    assert not [name for name in told.facts if not name.startswith("2x")]


def test_a_seed_that_leaves_nothing_to_compare_with_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_profile: str, _seed: int, _ratio: float) -> tuple[int, float]:
        raise ValueError

    monkeypatch.setattr(tight_slos, "feasible", nothing)
    assert TIGHT_SLOS.run(Arm("demo", 1.2), SEED) == []


def test_every_profile_is_asked_at_every_slo() -> None:
    assert len({(arm.series, arm.x) for arm in TIGHT_SLOS.arms}) == 10 * len(RATIOS)
