"""One file drives the gateway and the simulator; an experiment file adds the crowd."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from millgate.config.load import load_config
from millgate.config.problems import ConfigError
from millgate.sim.experiments.file import file_experiment, read_experiment, run_file_arm
from millgate.sim.traces.tables import TraceError
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
        ("sim: {gate: gate.yaml, policies: []}", "sim.policies: .*at least 1"),
        ("sim: {gate: gate.yaml, warp: 9}", "warp"),
        ("sim: {gate: gate.yaml, rate: [9]}", "sim.rate: is not a setting; did you mean `rates`?"),
        ("gate: gate.yaml", "gate: is not a setting; known here: sim"),
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
        (
            "sim: {gate: gate.yaml, troubles: [{kind: loss, engine: a, at: 60s, lasts: 1s}]}",
            "sim.troubles: one at 60 s is after the 60 s that requests come",
        ),
        (
            "sim: {gate: gate.yaml, troubles: [{kind: refusals, engine: a, at: 1s, lasts: 1s, factor: 2}]}",
            "sim.troubles: the share refused is at most 1, not 2",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, sim: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        read_experiment(written(tmp_path, sim))


def test_an_engine_without_a_profile_has_the_speed_of_its_prior(tmp_path: Path) -> None:
    """It was simulated as the `demo` engine, whatever the gate's file said of it."""
    path = written(tmp_path)
    prior = "prior: {ttft_base: 30ms, ttft_per_token: 50us, tpot_base: 20ms, tpot_per_stream: 1ms}"
    engine = f'{{name: a, url: "http://127.0.0.1:8000", max_inflight: 8, {prior}}}'
    (tmp_path / "gate.yaml").write_text(f"engines: [{engine}]\n")
    (tmp_path / "t.csv").write_text("req_time_s,client,prompt_len,output_len\n0,7,1000,101\n")
    path.write_text("sim: {gate: gate.yaml, trace: t.csv, warm_up: 0s, policies: [gate]}")
    profile = read_experiment(path).fleet.profiles["a"]
    metrics = metrics_of(path)

    assert (profile.kv_tokens, profile.max_num_seqs) == (16_000, 8)
    assert metrics["ttft_mean_s"] == pytest.approx(0.070, rel=0.02)
    assert metrics["tpot_mean_s"] == pytest.approx(0.021, rel=0.02)


def test_an_engine_with_a_prior_may_run_more_sequences_than_a_step_has_tokens(tmp_path: Path) -> None:
    """A `max_inflight` above 8,192 was a traceback."""
    path = written(tmp_path, "sim: {gate: gate.yaml, lasts: 5s, warm_up: 0s, policies: [gate]}")
    prior = "prior: {ttft_base: 30ms, ttft_per_token: 50us, tpot_base: 20ms, tpot_per_stream: 1us}"
    engine = f'{{name: a, url: "http://127.0.0.1:8000", max_inflight: 10000, {prior}}}'
    (tmp_path / "gate.yaml").write_text(f"engines: [{engine}]\n")

    assert metrics_of(path)["good_share"] == 1.0


def test_an_engine_of_which_no_speed_is_known_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path, "sim: {gate: gate.yaml}")
    (tmp_path / "gate.yaml").write_text('engines: [{name: a, url: "http://127.0.0.1:8000"}]\n')

    with pytest.raises(ConfigError, match=r"sim.gate: a has no `profile` and no `prior`"):
        read_experiment(path)


def test_a_pace_that_no_engine_keeps_for_a_lone_stream_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path)
    (tmp_path / "gate.yaml").write_text(GATE.replace("ttft_slo: 2s", "ttft_slo: 2s, tpot_slo: 2ms"))

    with pytest.raises(ConfigError, match=r"interactive: no answer keeps a `tpot_slo` of 0.002 s, a lone"):
        read_experiment(path)


def test_engines_keep_prefixes_where_the_file_says_so(tmp_path: Path) -> None:
    """Recorded prefixes were found in no engine, and no setting changed that."""
    line = '{"timestamp": 0, "input_length": 2000, "output_length": 9, "hash_ids": [1, 2, 3]}\n'
    (tmp_path / "m.jsonl").write_text(line + line.replace('"timestamp": 0', '"timestamp": 9000'))
    sim = (
        "sim: {gate: gate.yaml, trace: m.jsonl, warm_up: 0s, policies: [gate], engines: {prefix_caching: %s}}"
    )

    assert metrics_of(written(tmp_path, sim % "no"))["hit_share"] == 0.0
    assert metrics_of(written(tmp_path, sim % "yes"))["hit_share"] > 0.3


def test_engines_that_read_for_others_are_compared_with_no_gate(tmp_path: Path) -> None:
    """An experiment without `policies` never ended: no gate sent whole requests to engines that only read."""
    path = written(tmp_path, "sim: {gate: gate.yaml, rates: [5], lasts: 10s, warm_up: 0s}")
    roles = GATE.replace("32}", "32, role: prefill}", 1).replace("32}", "32, role: decode}", 1)
    (tmp_path / "gate.yaml").write_text(roles)

    assert file_experiment(path).arms[0].series == "no gate"
    assert metrics_of(path)["good_share"] == 1.0


def test_a_request_that_names_no_model_asks_for_the_first_one(tmp_path: Path) -> None:
    """Engines with `models` refused every request of a trace."""
    path = written(tmp_path, "sim: {gate: gate.yaml, rates: [5], lasts: 5s, warm_up: 0s, policies: [gate]}")
    gate = GATE.replace("max_inflight: 32}", "max_inflight: 32, models: [llama]}")
    (tmp_path / "gate.yaml").write_text(gate)

    assert metrics_of(path)["good_share"] == 1.0


def metrics_of(path: Path, arm: int = 0) -> Mapping[str, float]:
    ((_, metrics),) = run_file_arm(path, arm, 1)
    return metrics


def test_sessions_come_at_the_rate_and_their_turns_as_recorded(tmp_path: Path) -> None:
    """Their rate was taken for a number of times faster, too: at 5 a second 25 came."""
    turns = [{"t": 2.0 * n, "in": 100, "out": 10, "blocks": [], "think_s": 0} for n in range(3)]
    session = json.dumps({"block_tokens": 512, "requests": turns})
    (tmp_path / "s.jsonl").write_text(f"{session}\n" * 400)
    path = written(
        tmp_path, "sim: {gate: gate.yaml, trace: s.jsonl, rates: [5], lasts: 60s, policies: [gate]}"
    )

    assert file_experiment(path).x_label == "requests per second"
    assert metrics_of(path)["asked_per_s"] == pytest.approx(5.0, rel=0.2)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("0,7,20,30,night", "t.csv: lane 'night' is not one of interactive"),
        ("0,7,20,30,", "t.csv: no request comes after the 10 s of `warm_up`"),
    ],
)
def test_a_trace_that_shows_nothing_of_this_gate_is_an_error(
    tmp_path: Path, row: str, complaint: str
) -> None:
    """Its good share was 0, or that of the first lane."""
    (tmp_path / "t.csv").write_text(f"req_time_s,client,prompt_len,output_len,lane\n{row}\n")
    path = written(tmp_path, "sim: {gate: gate.yaml, trace: t.csv}")

    with pytest.raises(TraceError, match=complaint):
        run_file_arm(path, 0, 1)


def test_rates_and_policies_that_are_written_twice_are_run_once(tmp_path: Path) -> None:
    """Two runs of one seed counted as two seeds, with an interval of no width."""
    path = written(tmp_path, "sim: {gate: gate.yaml, rates: [5, 5], policies: [gate, gate]}")

    assert [(arm.series, arm.x) for arm in file_experiment(path).arms] == [("gate", 5.0)]


def test_a_request_is_judged_by_the_lane_that_took_it(tmp_path: Path) -> None:
    """A long prompt was judged by the first lane's SLO."""
    (tmp_path / "t.csv").write_text("req_time_s,client,prompt_len,output_len\n0,7,30000,400\n")
    sim = "sim: {gate: gate.yaml, trace: t.csv, warm_up: 0s, lasts: 9s, policies: [gate], clients: {retry_behaviour: none}}"
    path = written(tmp_path, sim)
    engine = '{name: a, url: "http://127.0.0.1:8000", profile: llama3-8b_h100_tp1, prefill_tokens: 60000}'
    lanes = "[{name: interactive, ttft_slo: 100ms}, {name: long, ttft_slo: 30s, takes: long_prompts}]"
    (tmp_path / "gate.yaml").write_text(f"engines: [{engine}]\nlanes: {lanes}\n")

    assert metrics_of(path)["good_share"] == 1.0
