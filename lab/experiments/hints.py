"""hint_quality: does it matter what a refusal says about when to come back?

The same gate with its hints replaced by a constant, against the hints that it computes. The clients take what they
are told to the letter. The gate holds nothing, so that a return is either served or refused at once.
"""

from dataclasses import replace

from lab.changing_rates import on_off
from lab.experiments.scenario import Scenario, play, scenario_fleet
from millgate.core.decisions import Decision, Yield
from millgate.core.events import Event
from millgate.core.settings import LaneSettings
from millgate.core.words import DeadlineFrom
from millgate.sim.clients.crowd import Manners
from millgate.sim.clients.retry_behaviour import Honouring
from millgate.sim.driver import DecidingCore
from millgate.sim.experiments.contract import Arm, Experiment, Measured
from millgate.sim.policies import POLICIES

_CONSTANTS = {"always 1 s": 1.0, "always 5 s": 5.0, "always 30 s": 30.0}
_PEAKS = (1.5, 2.0, 3.0, 4.0)
_ON_S, _OFF_S = 20.0, 40.0
_SCENARIO = Scenario(
    policy="cap and yield",
    lane=LaneSettings(
        "interactive", ttft_slo_s=90.0, deadline_s=90.0, deadline_from=DeadlineFrom.FIRST_ATTEMPT
    ),
    manners=Manners(retry_behaviour=Honouring()),
    warm_up_s=0.0,
    until_s=180.0,
)


class ConstantHints:
    """A core whose hints are all the same."""

    def __init__(self, inner: DecidingCore, hint_s: float) -> None:
        self._inner = inner
        self._hint_s = hint_s

    def handle(self, event: Event, now: float) -> tuple[Decision, ...]:
        """Pass on, with every hint replaced."""
        return tuple(
            decision._replace(retry_after_s=self._hint_s) if isinstance(decision, Yield) else decision
            for decision in self._inner.handle(event, now)
        )

    def next_wake(self) -> float | None:
        """Pass on."""
        return self._inner.next_wake()


def _run(arm: Arm, seed: int) -> Measured:
    peak = arm.x
    assert peak is not None
    scenario = replace(_SCENARIO, load=on_off(peak, _ON_S, _OFF_S), highest_load=peak)
    core = POLICIES[scenario.policy](scenario_fleet(scenario).settings)
    if arm.series in _CONSTANTS:
        core = ConstantHints(core, _CONSTANTS[arm.series])
    played = play(scenario, seed, core)
    summary = played.summary
    return [
        (
            peak,
            {
                "attempts": summary.amplification,
                "returns_kept": summary.returns_kept,
                "good": summary.good_share,
                "goodput": played.goodput_share,
                "ttft_mean_s": summary.ttft_s.mean,
                "ttft_p99_s": summary.ttft_s.p99,
            },
        )
    ]


HINT_QUALITY = Experiment(
    name="hint_quality",
    question="Does it matter what a refusal says about when to come back?",
    arms=tuple(Arm(series, peak) for series in (*_CONSTANTS, "computed") for peak in _PEAKS),
    run=_run,
    metric="attempts",
    x_label="load while it is on, times capacity (20 s on, 40 s off)",
    y_label="attempts per request",
)
