"""fair_tenants: two tenants ask for more than there is, one twice as much as the other. Which one is served?

The overload of the VTC paper (Sheng et al., OSDI 2024): 1.5 and 3 requests a second for six minutes, 256 tokens in
and out, Llama-2-7B on an A10G. Nothing is refused. Service counts a prompt token once and an output token twice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lab.experiments.accounts import SimulatedAccount, let_come
from millgate.core.settings import LaneSettings
from millgate.engine.profile import EngineProfile
from millgate.sim.clients.crowd import Manners
from millgate.sim.experiments.contract import Arm, Experiment, Measured, SeriesPoint
from millgate.sim.fleet import SimulatedFleet, uniform_fleet
from millgate.sim.jobs import Job
from millgate.sim.randomness import Streams
from millgate.sim.traces.synthetic import steady

# Weights of 13.5 GB and 0.52 MB of cache a token at four fifths of 600 GB/s; prompts at 31 TFLOPS; the paper's pool of
# 10,000 tokens. 256 in and out are then 1.80 requests a second (measured: 1.74).
A10G = EngineProfile(
    name="llama2-7b_a10g",
    source="memory bandwidth of the A10G; VTC artifact for pool and rates",
    prefill_floor_ms=28.5,
    prefill_base_ms=5.0,
    prefill_per_token_ms=0.45,
    prefill_per_token_squared_ms=0.0,
    decode_base_ms=28.5,
    decode_per_sequence_ms=0.01,
    decode_per_kv_token_ms=0.00109,
    step_overhead_ms=0.0,
    kv_tokens=10_000,
    max_num_seqs=256,
    max_num_batched_tokens=2048,
)
# The paper's runtime reserves the peak of all that runs together, which is less than the sum of all peaks: streams that
# began at different times end at different times. 1.35 is what gives its throughput on both of its workloads.
_OVERCOMMITTED = 1.35
_RATES_PER_S = (1.5, 3.0)
_TOKENS = 256
_UNTIL_S, _STEP_S = 360.0, 10.0
# Both have waiting work from here on, under every seed.
_BACKLOGGED_FROM_S = 30.0


def serve_all(
    coming: Sequence[Job], streams: Streams, *, fair: bool, order: str = "arrival"
) -> list[SimulatedAccount]:
    """Let these jobs come to the paper's engine behind a gate that refuses none; return what became of them."""
    lane = LaneSettings("all", ttft_slo_s=1e6, deadline_s=1e6, order=order, fair=fair)
    plain = uniform_fleet(A10G, 1, [lane])
    kv_tokens = int(_OVERCOMMITTED * A10G.kv_tokens)
    engines = tuple(replace(engine, kv_tokens=kv_tokens) for engine in plain.settings.engines)
    fleet = SimulatedFleet(replace(plain.settings, engines=engines), plain.profiles)
    return let_come(fleet, [(Manners(), iter(coming))], streams, 1e6)


def overload(streams: Streams) -> list[Job]:
    """Return the jobs of both tenants, in order of time."""
    coming = []
    for number, rate in enumerate(_RATES_PER_S):
        for at_s in steady(rate, streams, number=number):
            if at_s >= _UNTIL_S:
                break
            coming.append(Job(at_s, _TOKENS, _TOKENS, f"tenant-{number}", max_tokens=_TOKENS))
    return sorted(coming)


def service(accounts: Sequence[SimulatedAccount], tenant: str, at_s: float) -> float:
    """Return the tokens given to a tenant by then, as the paper counts: outputs spread evenly over their time."""
    given = 0.0
    for each in accounts:
        begun_at = each.first_token_at
        if each.tenant == tenant and begun_at is not None and begun_at <= at_s:
            part = min(1.0, (at_s - begun_at) / max(1e-9, each.ended_at - begun_at))
            given += each.prompt_tokens + 2.0 * each.output_tokens * part
    return given


def _run(arm: Arm, seed: int) -> Measured:
    streams = Streams(seed)
    accounts = serve_all(overload(streams), streams, fair=arm.series == "fair")
    gaps = {}
    for step in range(int(_UNTIL_S / _STEP_S) + 1):
        at_s = step * _STEP_S
        gaps[at_s] = service(accounts, "tenant-1", at_s) - service(accounts, "tenant-0", at_s)
    later = [(at_s, gap) for at_s, gap in gaps.items() if at_s >= _BACKLOGGED_FROM_S]
    first = later[0][1]
    return [(at_s, {"gap": abs(gap - first), "gap_from_start": abs(gap)}) for at_s, gap in later]


def _facts(places: Sequence[SeriesPoint]) -> Mapping[str, float]:
    facts = {}
    for series in dict.fromkeys(place.series for place in places):
        own = [place.metrics for place in places if place.series == series]
        for metric in ("gap", "gap_from_start"):
            facts[f"{series}: largest {metric}"] = max(metrics[metric].mean for metrics in own)
    return facts


FAIR_TENANTS = Experiment(
    name="fair_tenants",
    question="Two tenants ask for more than there is, one for twice as much as the other: which one is served?",
    arms=(Arm("by arrival"), Arm("fair")),
    run=_run,
    metric="gap",
    x_label="seconds",
    y_label="difference of services since both wait, weighted tokens",
    facts=_facts,
)
