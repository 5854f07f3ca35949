"""One file drives the gateway and the simulator; an experiment file adds the crowd."""

from pathlib import Path

import pytest

from millgate.config.load import load_config
from millgate.config.problems import ConfigError
from millgate.sim.experiments.file import file_experiment, read_experiment, run_file_arm
from millgate.wiring.chosen import EngineFacts
from millgate.wiring.settings import build_settings

GATE = """
engines:
  - {name: a, url: "http://127.0.0.1:8000", profile: llama3-8b_h100_tp1, max_inflight: 32}
  - {name: b, url: "http://127.0.0.1:8001", profile: llama3-8b_h100_tp1, max_inflight: 32}
lanes:
  - {name: interactive, ttft_slo: 2s}
"""
SIM = """
sim:
  gate: gate.yaml
  rates: [20, 60]
  lasts: 15s
  warm_up: 5s
  clients: {patience: 5s, retry_behaviour: sdk}
  engines: {abort_lag: 300ms}
  troubles: [{kind: stall, engine: a, at: 8s, lasts: 2s}]
"""


def written(folder: Path, sim: str = SIM) -> Path:
    (folder / "gate.yaml").write_text(GATE)
    (folder / "sim.yaml").write_text(sim)
    return folder / "sim.yaml"


def test_the_simulated_settings_are_those_that_serve_would_run_with(tmp_path: Path) -> None:
    prepared = read_experiment(written(tmp_path))
    facts = {name: EngineFacts(profile.kv_tokens) for name, profile in prepared.fleet.profiles.items()}

    assert (
        prepared.fleet.settings == build_settings(load_config(tmp_path / "gate.yaml").config, facts).settings
    )


def test_a_file_runs_its_policies_at_its_rates(tmp_path: Path) -> None:
    path = written(tmp_path)
    experiment = file_experiment(path)
    (rate, metrics) = run_file_arm(path, 2, 1)[0]

    assert [(arm.series, arm.x) for arm in experiment.arms] == [
        ("no gate", 20.0),
        ("no gate", 60.0),
        ("gate", 20.0),
        ("gate", 60.0),
    ]
    assert rate == 20.0
    assert 0.9 < metrics["good_share"] <= 1.0
    assert metrics["ttft_p99_s"] < 2.5


@pytest.mark.parametrize(
    ("sim", "complaint"),
    [
        ("sim: {gate: gate.yaml, policies: [magic]}", "'magic' is not one of no gate"),
        ("sim: {gate: gate.yaml, warp: 9}", "warp"),
        ("sim: {gate: other.yaml}", "other.yaml"),
        (
            "sim: {gate: gate.yaml, trace: nothing.csv}",
            "sim.trace: .*nothing.csv' is neither a file nor one of",
        ),
        ("sim: {gate: gate.yaml, engines: {profile: magic}}", "sim.engines: 'magic' is not one of"),
        ("sim: {gate: gate.yaml, metric: magic}", "sim.metric: 'magic' is not one of requests, .*good_share"),
        ("sim: {gate: gate.yaml, warm_up: 60s}", "sim.warm_up: 60 s leave nothing to count of the 60 s"),
        (
            "sim: {gate: gate.yaml, troubles: [{kind: stall, engine: z, at: 1s, lasts: 1s}]}",
            "'z' is not one of a, b",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, sim: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        read_experiment(written(tmp_path, sim))
