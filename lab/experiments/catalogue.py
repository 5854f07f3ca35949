"""Every experiment by name; to add one, add its line."""

from collections.abc import Mapping
from types import MappingProxyType

from lab.experiments.adapters import ADAPTERS
from lab.experiments.agent_sessions import AGENT_SESSIONS
from lab.experiments.apart import PREFILL_DECODE
from lab.experiments.beside_people import AGENTS_BESIDE_PEOPLE
from lab.experiments.cold_prompts import COLD_PROMPTS
from lab.experiments.fairness import FAIR_TENANTS
from lab.experiments.found_cap import FOUND_CAP
from lab.experiments.giants import GIANT_PROMPTS
from lab.experiments.hints import HINT_QUALITY
from lab.experiments.isolation import LANE_ISOLATION
from lab.experiments.limiter_shootout import LIMITER_SHOOTOUT
from lab.experiments.named_quantiles import NAMED_QUANTILES
from lab.experiments.overload import NO_GATE_VS_GATE
from lab.experiments.prefill import PREFILL_ISOLATION
from lab.experiments.promises import HINTS
from lab.experiments.queue_rules import QUEUE_RULES
from lab.experiments.racks import RACKS
from lab.experiments.ramps import EARLIEST_WARNING, EARLY_WARNING, FALSE_ALARMS
from lab.experiments.sizing import SIZING
from lab.experiments.storm import RETRY_STORM
from lab.experiments.tails import HEAVY_TAIL
from lab.experiments.telemetry import ABORT_LAG, TELEMETRY_DELAY
from lab.experiments.tight_slos import TIGHT_SLOS
from lab.experiments.whole_answers import WHOLE_ANSWERS
from millgate.sim.experiments.contract import Experiment, Measured

EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType(
    {
        experiment.name: experiment
        for experiment in (
            NO_GATE_VS_GATE,
            RETRY_STORM,
            HINT_QUALITY,
            HINTS,
            HEAVY_TAIL,
            WHOLE_ANSWERS,
            TELEMETRY_DELAY,
            ABORT_LAG,
            SIZING,
            LIMITER_SHOOTOUT,
            FOUND_CAP,
            TIGHT_SLOS,
            NAMED_QUANTILES,
            LANE_ISOLATION,
            PREFILL_ISOLATION,
            GIANT_PROMPTS,
            FAIR_TENANTS,
            QUEUE_RULES,
            AGENT_SESSIONS,
            AGENTS_BESIDE_PEOPLE,
            COLD_PROMPTS,
            ADAPTERS,
            PREFILL_DECODE,
            RACKS,
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


def run_arm(
    name: str, arm: int, seed: int, knobs: Mapping[str, str] = MappingProxyType({}), first_seed: int = 1
) -> Measured:
    """Run one arm of an experiment under one seed, counted from `first_seed`; plain data in and out, for other processes."""
    experiment = chosen(name, knobs)
    return experiment.run(experiment.arms[arm], first_seed + seed - 1)
