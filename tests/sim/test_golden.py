"""One run in full, kept: what changes here has changed what users would see, and must be meant.

Regenerate with `python tests/sim/test_golden.py`.
"""

import json
from dataclasses import replace
from pathlib import Path

from lab.experiments.scenario import Scenario, play

from millgate.sim.clients.crowd import Manners
from millgate.sim.clients.retry_behaviour import Sdk
from millgate.sim.laws import lognormal

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "overload_at_twice_the_capacity.json"


def overload(policy: str) -> dict[str, object]:
    """Return one minute at twice the capacity, with people who wait eight seconds and SDKs that retry."""
    scenario = replace(Scenario(manners=Manners(lognormal(8.0, 0.25), Sdk())).at_load(2.0), policy=policy)
    summary = play(scenario, 1).summary
    return {
        "requests": summary.requests,
        "outcomes": summary.outcomes,
        "goodput_per_s": round(summary.goodput_per_s, 2),
        "waste": round(summary.waste, 3),
        "ttft_p99_s": round(summary.ttft_s.p99, 2),
    }


def test_no_gate_collapses_in_exactly_the_kept_way() -> None:
    assert overload("no gate") == json.loads(GOLDEN.read_text())["no gate"]


def test_the_gate_keeps_at_least_the_kept_goodput() -> None:
    """A better policy may change the gate's row upward without anybody's leave; never downward by a twentieth."""
    kept, now = json.loads(GOLDEN.read_text())["gate"], overload("gate")

    assert now["requests"] == kept["requests"]
    assert float(str(now["goodput_per_s"])) >= 0.95 * kept["goodput_per_s"]


if __name__ == "__main__":
    rows = {policy: overload(policy) for policy in ("no gate", "gate")}
    GOLDEN.write_text(json.dumps(rows, indent=2) + "\n")
