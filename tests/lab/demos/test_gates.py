"""The configurations of gates that know their engine."""

import json
from pathlib import Path

from lab.demos.gates import GateSetup, gate_config

from millgate.config.load import load_config
from millgate.demos.connection import GateAddress
from millgate.demos.stage import EngineSetup
from millgate.engine.profile import find_profile, scaled
from millgate.wiring.settings import build_settings

ENGINE = EngineSetup("llama3-70b_h100_tp4", time_scale=5.0, max_num_seqs=16)


def test_gate_and_engine_share_cap_and_scaled_profile(tmp_path: Path) -> None:
    file = tmp_path / "gate.yaml"
    setup = GateSetup(ttft_slo_s=3.0, deadline_from="attempt", max_queue=0)
    file.write_text(json.dumps(gate_config(GateAddress("127.0.0.1", 1234), ENGINE, setup)), encoding="utf-8")

    settings = build_settings(load_config(file).config).settings

    assert settings.engines[0].max_inflight == 16
    assert settings.engines[0].prior == scaled(find_profile(ENGINE.profile), 5.0).prior()
    assert settings.lanes[0].ttft_slo_s == settings.lanes[0].deadline_s == 3.0
    assert settings.lanes[0].deadline_from.value == "attempt"
    assert settings.lanes[0].max_queue == 0


def test_a_default_queue_is_not_bounded_by_count() -> None:
    assert (
        "max_queue"
        not in gate_config(GateAddress("h", 1), ENGINE, GateSetup(3.0, "first_attempt"))["lanes"][0]
    )
