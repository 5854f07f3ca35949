"""What the recording rules record, by arithmetic that is done here: promtool is given counters and asked for the series."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.test_alerts import RULES, needs_promtool, rules

# Counters rise by these amounts a minute, for ten minutes; gauges stand still.
_MINUTES = 10


def rising(per_minute: float) -> str:
    return f"0+{per_minute}x{_MINUTES}"


def standing(value: float) -> str:
    return f"{value}x{_MINUTES}"


LANE = 'job="millgate",instance="g",lane="interactive"'
ENGINE = 'job="millgate",instance="g",engine='
POOL = 'job="millgate",instance="g",pool='
GATE = 'job="millgate",instance="g"'
DARK = 'job="millgate",instance="dark"'

SERIES = {
    f"millgate_attempts_total{{{LANE}}}": rising(600),
    f'millgate_outcomes_total{{{LANE},outcome="good"}}': rising(450),
    f'millgate_outcomes_total{{{LANE},outcome="late"}}': rising(60),
    f'millgate_yields_total{{{LANE},reason="saturated"}}': rising(60),
    f'millgate_yields_total{{{LANE},reason="too_late"}}': rising(30),
    # A quota is no want of capacity.
    f'millgate_yields_total{{{LANE},reason="quota"}}': rising(300),
    f"millgate_admitted_total{{{LANE}}}": rising(500),
    f'millgate_engine_failures_total{{{LANE},kind="timeout"}}': rising(20),
    f'millgate_engine_failures_total{{{LANE},kind="status"}}': rising(5),
    # Half of the first tokens within 1 s, nineteen twentieths within 2 s, all within 4 s.
    f'millgate_ttft_seconds_bucket{{{LANE},le="1"}}': rising(100),
    f'millgate_ttft_seconds_bucket{{{LANE},le="2"}}': rising(190),
    f'millgate_ttft_seconds_bucket{{{LANE},le="4"}}': rising(200),
    f'millgate_ttft_seconds_bucket{{{LANE},le="+Inf"}}': rising(200),
    f'millgate_wait_seconds_bucket{{{LANE},le="1"}}': rising(190),
    f'millgate_wait_seconds_bucket{{{LANE},le="+Inf"}}': rising(200),
    f'millgate_engine_tpot_seconds_bucket{{{ENGINE}"a",le="0.05"}}': rising(95),
    f'millgate_engine_tpot_seconds_bucket{{{ENGINE}"a",le="+Inf"}}': rising(100),
    f"millgate_hints_kept_total{{{LANE}}}": rising(30),
    f"millgate_hints_broken_total{{{LANE}}}": rising(10),
    f"millgate_wasted_output_tokens_total{{{GATE}}}": rising(250),
    f"millgate_good_output_tokens_total{{{GATE}}}": rising(750),
    f'millgate_engine_running{{{ENGINE}"a"}}': standing(6),
    f'millgate_engine_limit{{{ENGINE}"a"}}': standing(8),
    f'millgate_engine_up{{{ENGINE}"a"}}': standing(1),
    f'millgate_engine_running{{{ENGINE}"down"}}': standing(0),
    f'millgate_engine_limit{{{ENGINE}"down"}}': standing(8),
    f'millgate_engine_up{{{ENGINE}"down"}}': standing(0),
    f'millgate_occupancy_ratio{{{POOL}"a"}}': standing(1.5),
    f'millgate_occupancy_ratio{{{POOL}"calm"}}': standing(0.5),
    # A gate without an engine: nothing runs and nothing waits.
    f'millgate_engine_up{{{DARK},engine="a"}}': standing(0),
    f'millgate_occupancy_ratio{{{DARK},pool="a"}}': standing(0),
    f'millgate_time_to_full_seconds{{{POOL}"a"}}': standing(20),
    f"process_cpu_seconds_total{{{GATE}}}": rising(15),
}

EXPECTED: dict[str, dict[str, float]] = {
    "lane:millgate_attempts:rate5m": {LANE: 10.0},
    "lane:millgate_refused_for_capacity:ratio5m": {LANE: 0.15},
    "lane:millgate_engine_failures:ratio5m": {LANE: 0.05},
    "lane:millgate_hints_broken:ratio30m": {LANE: 0.25},
    "millgate:wasted_output_tokens:ratio30m": {GATE: 0.25},
    "lane:millgate_good:ratio5m": {LANE: 0.75},
    "lane:millgate_ttft_seconds:p95_5m": {LANE: 2.0},
    "lane:millgate_wait_seconds:p95_5m": {LANE: 1.0},
    "engine:millgate_tpot_seconds:p95_5m": {f'{ENGINE}"a"': 0.05},
    "instance:millgate_stream_use:ratio": {GATE: 0.75},
    "pool:millgate_filling:ratio": {f'{POOL}"a"': 3.0, f'{POOL}"calm"': 0.0, f'{DARK},pool="a"': 0.0},
    "pool:millgate_occupancy:ratio": {f'{POOL}"a"': 1.5, f'{POOL}"calm"': 0.5, f'{DARK},pool="a"': 0.8},
    "instance:millgate_cpu:rate5m": {GATE: 0.25},
}


def asked(record: str) -> dict[str, Any]:
    """Return the question for one series: rounded, since shares of counters have the last digits that they have."""
    samples = [{"labels": f"{{{labels}}}", "value": value} for labels, value in EXPECTED[record].items()]
    return {
        "expr": f"round({{__name__={record!r}}}, 1e-6)",
        "eval_time": f"{_MINUTES}m",
        "exp_samples": samples,
    }


def test_every_recording_rule_has_its_arithmetic() -> None:
    assert {rule["record"] for rule in rules() if "record" in rule} == set(EXPECTED)


@needs_promtool
@pytest.mark.parametrize("record", EXPECTED)
def test_a_rule_records_what_its_name_says(record: str, tmp_path: Path) -> None:
    series = [{"series": name, "values": values} for name, values in SERIES.items()]
    test = {"interval": "1m", "input_series": series, "promql_expr_test": [asked(record)]}
    document = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump(document, width=1_000_000), encoding="utf-8")

    done = subprocess.run(
        ["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
