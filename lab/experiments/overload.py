"""no_gate_vs_gate: what becomes of goodput when more and more is asked than can be done."""

from dataclasses import replace

from lab.experiments.scenario import Scenario, play
from millgate.sim.clients.crowd import Manners
from millgate.sim.clients.retry_behaviour import Sdk
from millgate.sim.experiments.contract import Arm, Experiment, Measured
from millgate.sim.laws import lognormal

_LOADS = (0.5, 0.8, 0.95, 1.2, 1.5, 2.0, 5.0, 10.0)
_POLICIES = ("no gate", "endless queue", "cap and yield", "gate")
# People wait some eight seconds for a first word; their SDK then tries again.
_USERS = Manners(lognormal(8.0, 0.25), Sdk())


def _run(arm: Arm, seed: int) -> Measured:
    assert arm.x is not None
    played = play(replace(Scenario(manners=_USERS).at_load(arm.x), policy=arm.series), seed)
    summary = played.summary
    return [
        (
            arm.x,
            {
                "goodput": played.goodput_share,
                "good": summary.good_share,
                "waste": summary.waste,
                "amplification": summary.amplification,
                "ttft_p99_s": summary.ttft_s.p99,
                "refused_after_p99_s": summary.yielded_after_s.p99,
            },
        )
    ]


NO_GATE_VS_GATE = Experiment(
    name="no_gate_vs_gate",
    question="What becomes of goodput when far more is asked than can be done?",
    arms=tuple(Arm(policy, load) for policy in _POLICIES for load in _LOADS),
    run=_run,
    metric="goodput",
    x_label="offered load, times capacity",
    y_label="good answers, share of capacity",
    logarithmic_x=True,
)
