"""Every experiment by name; to add one, add its line."""

from collections.abc import Mapping
from types import MappingProxyType

from millgate.sim.experiments.agent_sessions import AGENT_SESSIONS
from millgate.sim.experiments.contract import Experiment, Measured
from millgate.sim.experiments.fairness import FAIR_TENANTS
from millgate.sim.experiments.found_cap import FOUND_CAP
from millgate.sim.experiments.hints import HINT_QUALITY
from millgate.sim.experiments.isolation import LANE_ISOLATION
from millgate.sim.experiments.limiter_shootout import LIMITER_SHOOTOUT
from millgate.sim.experiments.named_quantiles import NAMED_QUANTILES
from millgate.sim.experiments.overload import NO_GATE_VS_GATE
from millgate.sim.experiments.prefill import PREFILL_ISOLATION
from millgate.sim.experiments.promises import HINTS
from millgate.sim.experiments.queue_rules import QUEUE_RULES
from millgate.sim.experiments.ramps import EARLIEST_WARNING, EARLY_WARNING, FALSE_ALARMS
from millgate.sim.experiments.sizing import SIZING
from millgate.sim.experiments.storm import RETRY_STORM
from millgate.sim.experiments.tails import HEAVY_TAIL
from millgate.sim.experiments.telemetry import ABORT_LAG, TELEMETRY_DELAY
from millgate.sim.experiments.tight_slos import TIGHT_SLOS

EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType(
    {
        experiment.name: experiment
        for experiment in (
            NO_GATE_VS_GATE,
            RETRY_STORM,
            HINT_QUALITY,
            HINTS,
            HEAVY_TAIL,
            TELEMETRY_DELAY,
            ABORT_LAG,
            SIZING,
            LIMITER_SHOOTOUT,
            FOUND_CAP,
            TIGHT_SLOS,
            NAMED_QUANTILES,
            LANE_ISOLATION,
            PREFILL_ISOLATION,
            FAIR_TENANTS,
            QUEUE_RULES,
            AGENT_SESSIONS,
            EARLY_WARNING,
            EARLIEST_WARNING,
            FALSE_ALARMS,
        )
    }
)


def chosen(name: str, knobs: Mapping[str, str]) -> Experiment:
    """Return an experiment with these knobs; a ValueError names the one that it does not have or that is wrong."""
    experiment = EXPERIMENTS[name]
    if not knobs:
        return experiment
    if experiment.vary is None:
        raise ValueError(f"{next(iter(knobs))}: {name} has no knobs")
    return experiment.vary(knobs)


def run_arm(name: str, arm: int, seed: int, knobs: Mapping[str, str] = MappingProxyType({})) -> Measured:
    """Run one arm of an experiment under one seed; plain data in and out, for other processes."""
    experiment = chosen(name, knobs)
    return experiment.run(experiment.arms[arm], seed)
