"""prefill_decode: four engines, prompts read and answers written apart, or together; which of the two does the cost choose?

Twelve mixes of prompt length, answer length and load. TTFT is bounded by the time that an idle engine takes to read the prompt, and TPOT to
`tpot_factor` times that of a quiet engine. `unified` engines do all of every request. `apart`, some engines read every prompt and the others
write every answer, as many as the work of the mix asks for. `chosen` has the same engines, and the governor's cost decides for each request.
All engines have the meter of prompts that a gate gives them, and the limit of streams that a lane with a `tpot_slo` gives, but for those that
read. `apart`, engines speak SGLang's protocol: those that answer read no prompt, and the gate knows it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from lab.changing_rates import changing
from lab.default_gate import metered
from lab.knobs import ABOVE_0, PROFILE, KnobLimit, Limits, at_least, check, with_knobs
from millgate.core.settings import EngineSettings, LaneSettings, LimitSettings
from millgate.core.words import KvTransfer, Role
from millgate.engine.profile import EngineProfile, find_profile
from millgate.sim.bounds.work import capacity_per_s
from millgate.sim.clients.crowd import Crowd, Manners, OpenLoop
from millgate.sim.experiments.contract import Arm, Experiment, Measured, Metrics, SeriesPoint
from millgate.sim.fleet import SimulatedFleet, uniform_fleet
from millgate.sim.jobs import Job
from millgate.sim.laws import lognormal
from millgate.sim.loop import Loop
from millgate.sim.randomness import Streams
from millgate.sim.records import Recorder
from millgate.sim.traces.synthetic import Lengths, jobs
from millgate.sim.world import World
from millgate.wiring.governor import build_governor

_WARM_UP_S, _UNTIL_S, _AFTERMATH_S = 20.0, 80.0, 60.0
_PROMPTS: Final = (500.0, 2_000.0, 8_000.0)
_OUTPUTS: Final = (64.0, 256.0)
_LOADS: Final = (0.5, 0.8)
_FREE: Final = ("unified", "apart", "chosen")


@dataclass(frozen=True, slots=True)
class Mix:
    """One mix of requests, by mean tokens, and the share of what four unified engines can do at most."""

    prompt_tokens: float
    output_tokens: float
    load: float


@dataclass(frozen=True, slots=True)
class Stage:
    """The engines, how far TPOT may be above that of a quiet one, and how many engines read: 0 for as many as a mix asks for.

    `reader_tokens` is the meter of prompts of those that read, 0 for that of a gate that is not told.
    """

    profile: str = "llama3-70b_h100_tp4"
    engines: int = 4
    max_inflight: int = 64
    tpot_factor: float = 1.5
    reading: int = 0
    reader_tokens: int = 0


_LIMITS: Final[Limits] = {
    "profile": PROFILE,
    "engines": at_least(2),
    "max_inflight": at_least(1),
    "tpot_factor": ABOVE_0,
    "reading": at_least(0),
    "reader_tokens": at_least(0),
}
MIXES: Final = tuple(
    Mix(prompt, output, load) for prompt in _PROMPTS for output in _OUTPUTS for load in _LOADS
)


def play(stage: Stage, mix: Mix, how: str, seed: int) -> Metrics:
    """Return the share of requests that were good, and of those admitted the share that was read apart."""
    profile = find_profile(stage.profile)
    loop, streams = Loop(), Streams(seed)
    fleet = _fleet(stage, profile, mix, how)
    governor = build_governor(fleet.settings, 0.0)
    recorder = Recorder(fleet.settings.lanes, from_s=_WARM_UP_S)
    world = World(governor, loop, recorder)
    fleet.populate(world, streams)
    world.start_watch()
    OpenLoop(world, Crowd(world, Manners(), streams), _jobs(stage, profile, mix, streams))
    loop.run(_UNTIL_S + _AFTERMATH_S)
    summary = world.summary(recorder)
    snapshot = governor.snapshot(loop.now)
    admitted = snapshot.lanes[0].admitted
    return {
        "good_per_s": summary.goodput_per_s,
        "apart_share": snapshot.legs.begun / admitted if admitted else 0.0,
    }


def _lengths(mix: Mix) -> Lengths:
    return Lengths(lognormal(mix.prompt_tokens, 0.3), lognormal(mix.output_tokens, 0.3))


def _jobs(stage: Stage, profile: EngineProfile, mix: Mix, streams: Streams) -> Iterator[Job]:
    lengths = _lengths(mix)
    rate = mix.load * stage.engines * capacity_per_s(profile, lengths, stage.max_inflight)
    return jobs(changing(lambda _now: rate, rate, streams), lengths, streams, until_s=_UNTIL_S)


def _fleet(stage: Stage, profile: EngineProfile, mix: Mix, how: str) -> SimulatedFleet:
    prior, tpot_s = profile.prior(), _tpot_slo_s(stage, profile)
    ttft_s = 1.0 + 4.0 * (prior.ttft_base_s + prior.ttft_per_token_s * mix.prompt_tokens)
    lane = LaneSettings("interactive", ttft_slo_s=ttft_s, deadline_s=ttft_s, tpot_slo_s=tpot_s)
    limit = LimitSettings("slo_gradient", tpot_slo_s=tpot_s)
    fleet = uniform_fleet(profile, stage.engines, [lane], max_inflight=stage.max_inflight, limit=limit)
    if how == "unified":
        return metered(fleet)
    reading = stage.reading or reading_engines(stage, mix)
    engines = [_in_role(each, number < reading, how) for number, each in enumerate(fleet.settings.engines)]
    fleet = metered(replace(fleet, settings=replace(fleet.settings, engines=tuple(engines))))
    return _with_reader_tokens(fleet, stage.reader_tokens) if stage.reader_tokens else fleet


def _with_reader_tokens(fleet: SimulatedFleet, tokens: int) -> SimulatedFleet:
    engines = [
        replace(each, prefill_tokens=tokens) if each.role is Role.PREFILL else each
        for each in fleet.settings.engines
    ]
    return replace(fleet, settings=replace(fleet.settings, engines=tuple(engines)))


def _tpot_slo_s(stage: Stage, profile: EngineProfile) -> float:
    prior = profile.prior()
    return stage.tpot_factor * (prior.tpot_base_s + prior.tpot_per_stream_s * 8)


def reading_engines(stage: Stage, mix: Mix) -> int:
    """Return how many engines should read prompts, so that the slower of both stages is as fast as it can be.

    The others write in batches as large as the KV memory holds and TPOT allows: a small engine beside long contexts keeps it for few streams.
    """
    profile = find_profile(stage.profile)
    prior, tpot_slo_s, step = (
        profile.prior(),
        _tpot_slo_s(stage, profile),
        profile.step_model().decode_steps_s,
    )
    context_tokens = int(mix.prompt_tokens + mix.output_tokens / 2)
    held = min(stage.max_inflight, profile.kv_tokens // context_tokens)
    kept = [batch for batch in range(2, held + 1) if step(batch, batch * context_tokens, 1) <= tpot_slo_s]
    batch = max(kept, default=1)
    read_s = prior.ttft_per_token_s * mix.prompt_tokens
    write_s = mix.output_tokens * (prior.tpot_base_s + prior.tpot_per_stream_s * batch) / batch
    return max(
        range(1, stage.engines), key=lambda number: min(number / read_s, (stage.engines - number) / write_s)
    )


def _in_role(engine: EngineSettings, reads: bool, how: str) -> EngineSettings:
    transfer = KvTransfer.SGLANG if how == "apart" else KvTransfer.NIXL
    if reads:
        return replace(engine, role=Role.PREFILL, limit=LimitSettings(), kv_transfer=transfer)
    return replace(engine, role=Role.DECODE, kv_transfer=transfer)


def _run(stage: Stage, arm: Arm, seed: int) -> Measured:
    return [(float(number), play(stage, mix, arm.series, seed)) for number, mix in enumerate(MIXES)]


def _facts(places: Sequence[SeriesPoint]) -> Mapping[str, float]:
    """Return the worst share of the better fixed way that the chosen one reaches, over the mixes."""
    good = {(each.series, each.x): each.metrics["good_per_s"].mean for each in places}
    shares = [
        good["chosen", x] / max(1e-9, good["unified", x], good["apart", x])
        for series, x in good
        if series == "chosen"
    ]
    return {"worst_share_of_better": min(shares), "mean_share_of_better": sum(shares) / len(shares)}


def _stage(knobs: Mapping[str, str]) -> Stage:
    stage = with_knobs(Stage(), knobs, _LIMITS)
    check("reading", stage.reading, KnobLimit(f"below engines ({stage.engines})", stage.engines.__gt__))
    return stage


def _experiment(stage: Stage) -> Experiment:
    return Experiment(
        "prefill_decode",
        "Reading and writing apart or together: does the cost choose what is better?",
        tuple(Arm(series) for series in _FREE),
        lambda arm, seed: _run(stage, arm, seed),
        metric="good_per_s",
        x_label="mix (prompt, answer, load)",
        y_label="good requests a second",
        facts=_facts,
        vary=lambda knobs: _experiment(_stage(knobs)),
    )


PREFILL_DECODE: Final = _experiment(Stage())
