"""`millgate demo` in virtual time, with unknown lengths: the tables of docs/policies/sizing.md and short-first.md.

    python -m lab.unknown_lengths --seeds 5

Poisson arrivals of 60 s at a multiple of what 16 sequences attain, lognormal lengths, users with 10 s of patience whose
SDK tries three times more, 5 s to the first token. Every request sends `max_tokens` 4096. Figures are good users over those
which the best schedule in order of arrival serves (`sim.bounds`), of four engines and the stated seeds: mean, least, and the
mean where `max_tokens` tells the length. The last one is how long after an attempt its refusal comes.
"""

import sys
from argparse import ArgumentParser
from dataclasses import dataclass, replace
from math import exp, log, log1p, sqrt
from random import Random
from statistics import fmean
from typing import NamedTuple

from lab.knobs import at_least, within
from millgate.core.settings import EngineSettings, LaneSettings, Settings
from millgate.engine.profile import EngineProfile, find_profile
from millgate.sim.bounds.bound import bound
from millgate.sim.bounds.work import capacity_per_s
from millgate.sim.clients.crowd import Manners
from millgate.sim.clients.retry_behaviour import Sdk
from millgate.sim.fleet import SimulatedFleet
from millgate.sim.jobs import Job
from millgate.sim.laws import constant, lognormal
from millgate.sim.replay import replay
from millgate.sim.traces.synthetic import Lengths
from millgate.wiring.chosen import PREFILL_TOKENS

_SEQUENCES, _SLO_S, _PATIENCE_S, _RETRIES, _RUN_S = 16, 5.0, 10.0, 3, 60.0
_MAX_TOKENS, _MOST_PROMPT, _MOST_OUTPUT = 4096, 8000, 2000
_ENGINES = ("llama3-70b_h100_tp4", "llama3-8b_h100_tp1", "llama3-70b_a100_tp4", "llama3-8b_a100_tp1")


@dataclass(frozen=True, slots=True)
class Mix:
    """Lognormal lengths in tokens; `together` is the correlation of their logarithms."""

    load: float = 2.7
    prompt_tokens: float = 600.0
    prompt_cv: float = 0.66
    output_tokens: float = 150.0
    output_cv: float = 0.66
    together: float = 0.0


_MIXES = {
    "as in the demo": Mix(),
    "cv 0.5": Mix(prompt_cv=0.5, output_cv=0.5),
    "cv 1": Mix(prompt_cv=1.0, output_cv=1.0),
    "cv 1, answers 2": Mix(prompt_cv=1.0, output_cv=2.0),
    "prompts of 2,000": Mix(prompt_tokens=2000.0, prompt_cv=1.0),
    "1.5 times the capacity": Mix(load=1.5),
    "4 times": Mix(load=4.0),
    "cv 1, correlated 0.5": Mix(prompt_cv=1.0, output_cv=1.0, together=0.5),
    "cv 1, correlated -0.5": Mix(prompt_cv=1.0, output_cv=1.0, together=-0.5),
    "correlated -0.9": Mix(together=-0.9),
}


class Shown(NamedTuple):
    """What one load showed: users over the optimum, not known and known; mean seconds to a refusal."""

    users: float
    known: float
    refused_after_s: float


def coming(mix: Mix, profile: EngineProfile, seed: int) -> list[Job]:
    """Return the requests of this mix, by seed."""
    clock, dice, jobs = Random(seed), Random(seed + 1), []
    lengths = Lengths(
        lognormal(mix.prompt_tokens, mix.prompt_cv**2), lognormal(mix.output_tokens, mix.output_cv**2)
    )
    per_s = mix.load * capacity_per_s(profile, lengths, _SEQUENCES)
    at_s = clock.expovariate(per_s)
    while at_s < _RUN_S:
        first = dice.gauss(0.0, 1.0)
        second = mix.together * first + sqrt(1.0 - mix.together**2) * dice.gauss(0.0, 1.0)
        prompt = _length(mix.prompt_tokens, mix.prompt_cv, first, _MOST_PROMPT)
        output = _length(mix.output_tokens, mix.output_cv, second, _MOST_OUTPUT)
        jobs.append(Job(at_s, prompt, output, max_tokens=_MAX_TOKENS))
        at_s += clock.expovariate(per_s)
    return jobs


def _length(mean: float, cv: float, normal: float, most: int) -> int:
    variance = log1p(cv * cv)
    return min(most, max(1, round(exp(log(mean) - variance / 2.0 + sqrt(variance) * normal))))


def show(mix: Mix, engine: str, seed: int) -> Shown:
    """Play one load, with lengths not known and known."""
    profile = replace(find_profile(engine), max_num_seqs=_SEQUENCES)
    lane = LaneSettings("interactive", ttft_slo_s=_SLO_S, deadline_s=_SLO_S, order="short_first", fair=True)
    plain = EngineSettings(
        "engine", _SEQUENCES, kv_tokens=int(0.9 * profile.kv_tokens), prefill_tokens=PREFILL_TOKENS
    )
    fleet = SimulatedFleet(Settings((lane,), (plain,)), {"engine": profile})
    manners = Manners(constant(_PATIENCE_S), Sdk(_RETRIES, labels=False))
    jobs = coming(mix, profile, seed)
    optimum = bound(jobs, profile, 1, _SLO_S).first_come
    blind = replay(jobs, fleet, manners=manners, seed=seed).summary
    known = [job._replace(max_tokens=job.output_tokens) for job in jobs]
    told = replay(known, fleet, manners=manners, seed=seed).summary
    return Shown(blind.good_share / optimum, told.good_share / optimum, blind.yielded_after_s.mean)


def main() -> None:
    """Print the table."""
    parser = ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--seeds", type=within(int, at_least(1)), default=5, help="loads of each mix and engine"
    )
    parser.add_argument("--first", type=within(int, at_least(0)), default=0, help="the first seed")
    options = parser.parse_args()
    sys.stdout.write("mix | of the optimum | least | lengths known | refused after s\n")
    for name, mix in _MIXES.items():
        shown = [
            show(mix, engine, 100 * seed + number)
            for number, engine in enumerate(_ENGINES)
            for seed in range(options.first, options.first + options.seeds)
        ]
        users = [each.users for each in shown]
        known, after_s = fmean(each.known for each in shown), fmean(each.refused_after_s for each in shown)
        sys.stdout.write(f"{name} | {fmean(users):.3f} | {min(users):.2f} | {known:.2f} | {after_s:.1f}\n")


if __name__ == "__main__":
    main()
