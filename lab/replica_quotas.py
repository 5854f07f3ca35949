"""`python -m lab.replica_quotas [FIRST [SEEDS]]`: one quota over four gates in virtual time, with clients that return to any of them when told.

Only the network and the engine are simulated, as in `lab.replicas`. Clients ask again as soon as they have their answer; each asks at
one gate with `hot_share`, which changes every 20 s, and else at any.
"""

import sys
from typing import NamedTuple

from lab.closed_loop import ClosedLoop
from lab.interpreted import is_compiled, run_interpreted
from lab.knobs import asked_seeds
from lab.replicas import HOT_SHARE, REPLICAS, ClusterWorld, Setup
from millgate.cluster.leases import LEASE_S, RENEWAL_S, LeaseSettings
from millgate.core.decisions import Admit
from millgate.core.settings import (
    EngineSettings,
    LaneSettings,
    QuotaLimit,
    QuotaRule,
    ServicePrior,
    Settings,
)
from millgate.core.words import QuotaKind
from millgate.sim.clients.crowd import Crowd, Manners
from millgate.sim.clients.retry_behaviour import Honouring
from millgate.sim.laws import constant
from millgate.sim.randomness import Streams
from millgate.sim.records import Recorder
from millgate.sim.traces.synthetic import Lengths, jobs

RATE_PER_S, BURST_S, USERS = 1000.0, 5.0, 100
_PROMPT_TOKENS, _OUTPUT_TOKENS = 10.0, 50.0
_TOKENS = int(_PROMPT_TOKENS + _OUTPUT_TOKENS)
_SETTLED_S = 30.0
_SKEWS = (0.0, 0.5, HOT_SHARE, 0.95)
_LOST, _KILL_EVERY_S = 0.05, 30.0
# A replica starts work by an answer for three fifths of a lease.
_LEASE = LeaseSettings(0.6 * LEASE_S, RENEWAL_S)


class Used(NamedTuple):
    """The part of the quota that was used, the most beyond its rate in any window as a part of the burst, and the hints kept."""

    used: float
    most: float
    kept: float


class QuotaWorld(ClusterWorld):
    """Notes when tokens are let out."""

    def __init__(self, setup: Setup, seed: int, recorder: Recorder, settings: Settings) -> None:
        self.taken: list[float] = []
        super().__init__(setup, seed, recorder, settings)

    def admitted(self, decision: Admit) -> None:
        """Note the time."""
        self.taken.append(self.loop.now)
        super().admitted(decision)


def play(setup: Setup, seed: int, users: int = USERS) -> Used:
    """Play one seed."""
    lane = LaneSettings("lane", ttft_slo_s=10.0)
    rule = QuotaRule("tokens", QuotaLimit(QuotaKind.TPM, 60.0 * RATE_PER_S, BURST_S))
    engine = EngineSettings("engine", 256, prior=ServicePrior(0.01, 0.0, 0.02, 0.0))
    streams = Streams(seed)
    recorder = Recorder((lane,), from_s=_SETTLED_S)
    world = QuotaWorld(setup, seed, recorder, Settings((lane,), (engine,), quotas=(rule,)))
    lengths = Lengths(constant(_PROMPT_TOKENS), constant(_OUTPUT_TOKENS))
    wanted = jobs(iter(lambda: 0.0, None), lengths, streams, until_s=setup.horizon_s)
    think = streams.draws("think", lambda dice, count: dice.random(count))
    crowd = Crowd(world, Manners(retry_behaviour=Honouring()), streams)
    ClosedLoop(world, crowd, wanted, users, think, setup.horizon_s)
    world.loop.run(setup.horizon_s)
    count = sum(at >= _SETTLED_S for at in world.taken)
    used = count * _TOKENS / (RATE_PER_S * (setup.horizon_s - _SETTLED_S))
    return Used(used, largest_part(world.taken), world.kept / max(1, world.returns))


def largest_part(taken: list[float]) -> float:
    """Return the most that left in any window beyond the rate, as a part of the burst (INV-6: at most 1)."""
    level = most = last_at = 0.0
    for at in taken:
        level = max(0.0, level - RATE_PER_S * (at - last_at)) + _TOKENS
        most, last_at = max(most, level), at
    return most / (RATE_PER_S * BURST_S)


def skews(seeds: range) -> str:
    """Return what is used by how uneven the clients are, as a table of Markdown: the least of all seeds, and the most in a window."""
    rows = ["| gates | at one of them | faults | quota used | most in a window | promises kept |"]
    rows.append("|---|---|---|---|---|---|")
    faulty = Setup(lost=_LOST, kill_every_s=_KILL_EVERY_S)
    setups = [
        ("none", Setup(1)),
        *[("none", Setup(REPLICAS, hot_share=share)) for share in _SKEWS],
        ("a twentieth lost, a kill every 30 s", faulty),
    ]
    for faults, setup in setups:
        runs = [play(setup._replace(horizon_s=150.0, lease=_LEASE), seed) for seed in seeds]
        used, kept = min(run.used for run in runs), sum(run.kept for run in runs) / len(runs)
        most, part = max(run.most for run in runs), 0.0 if setup.replicas == 1 else setup.hot_share
        rows.append(f"| {setup.replicas} | {part:.0%} | {faults} | {used:.3f} | {most:.2f} | {kept:.3f} |")
    return "\n".join(rows)


if __name__ == "__main__":
    tried = asked_seeds(sys.argv[1:], "python -m lab.replica_quotas", __doc__, first=0, seeds=2)
    if is_compiled():
        sys.exit(run_interpreted(sys.argv[1:], "lab.replica_quotas"))
    print(skews(tried))
