"""An experiment in a file: the gateway's own configuration, a crowd, a load, and the policies to compare."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from millgate.config.blame import explain
from millgate.config.document import read_document
from millgate.config.load import load_config
from millgate.config.problems import ConfigError, Problem, ValueOrigin as Spot
from millgate.config.schema import Config
from millgate.config.values import Count, Duration, Number, Section, YesOrNo
from millgate.core.settings import LaneSettings
from millgate.core.words import Outcome
from millgate.engine.profile import DEFAULT_PROFILE, load_profiles
from millgate.sim.clients.crowd import Crowd, Manners, OpenLoop
from millgate.sim.clients.retry_behaviour import NEVER, Honouring, Refreshing, RetryBehaviour, Sdk
from millgate.sim.engines.contract import EngineTotals
from millgate.sim.engines.troubles import EngineTrouble
from millgate.sim.experiments.contract import FEWEST_SEEDS, Arm, Experiment, Measured
from millgate.sim.fleet import USUAL_ABORT_LAG_S, EngineManners, SimulatedFleet, configured_fleet
from millgate.sim.jobs import Job
from millgate.sim.laws import exponential, lognormal
from millgate.sim.loop import Loop
from millgate.sim.policies import POLICIES
from millgate.sim.randomness import Streams
from millgate.sim.records import Recorder, Summary
from millgate.sim.traces.sources import between, faster, has_its_own_times, open_trace, within_lanes
from millgate.sim.traces.synthetic import LENGTHS
from millgate.sim.traces.tables import TraceError
from millgate.sim.world import World

_PATIENCE_VARIATION = 0.25  # squared: a standard deviation of half its mean
_RETRY_BEHAVIOURS: dict[str, RetryBehaviour] = {
    "none": NEVER,
    "sdk": Sdk(),
    "instant": Refreshing(chance=1.0, most=10, pause_s=0.01),
    "honouring": Honouring(),
    "refreshing": Refreshing(),
}


class ClientsSpec(Section):
    """How the users behave."""

    patience: Duration | None = Field(
        default=None,
        gt=0,
        description="Mean time that one waits for a first token (lognormal). Default: for ever.",
    )
    retry_behaviour: Literal["none", "sdk", "instant", "honouring", "refreshing"] = Field(
        default="sdk", description="What one does after a refusal, a failure or a hang-up."
    )
    stop_share: Number = Field(default=0.0, ge=0, le=1, description="Share that stops reading midway.")
    stops_reading: Duration = Field(default=2.0, gt=0, description="Mean time after which they stop.")

    def manners(self) -> Manners:
        """Build the users' manners."""
        patience = None if self.patience is None else lognormal(self.patience, _PATIENCE_VARIATION)
        retries, stops = _RETRY_BEHAVIOURS[self.retry_behaviour], exponential(self.stops_reading)
        return Manners(patience, retries, self.stop_share, stops)


class EnginesSpec(Section):
    """How the engines behave, beyond the speed that their profiles give."""

    profile: str | None = Field(
        default=None, description="For engines that name no speed in the gate's file."
    )
    prefix_caching: YesOrNo = Field(default="no", description="`yes`: they keep what prompts have in common.")
    abort_lag: Duration = Field(default=USUAL_ABORT_LAG_S, ge=0, description="Work after a hang-up.")
    ignores_hangups: YesOrNo = Field(default="no", description="`yes`: works on to the end in vain.")
    telemetry_delay: Duration = Field(default=0.0, ge=0, description="Age of the gauges when read.")


class TroubleSpec(Section):
    """One trouble of one engine."""

    kind: Literal["loss", "stall", "drift", "refusals"] = Field(description="What goes wrong.")
    engine: str = Field(description="Name of the engine in the gate's file.")
    at: Duration = Field(description="When it begins.")
    lasts: Duration = Field(gt=0, description="How long it lasts (a drift: how long it takes).")
    factor: Number = Field(default=1.0, gt=0, description="Drift: times slower. Refusals: the share refused.")


class SimSpec(Section):
    """One experiment."""

    name: str = Field(default="experiment", description="Its name in the report.")
    question: str = Field(default="How does the gate fare?", description="The report's title.")
    gate: str = Field(description="The gateway's configuration, relative to this file.")
    trace: str = Field(default="azure_conversation", description="Lengths by name, or a trace file.")
    rates: tuple[Annotated[Number, Field(gt=0)], ...] = Field(
        default=(), max_length=50, description="Requests per second. For a trace file: how many times faster."
    )
    policies: tuple[str, ...] = Field(default=("no gate", "gate"), min_length=1, description="Compared.")
    seeds: Count = Field(default=FEWEST_SEEDS, ge=1, le=1000, description="Independent runs of everything.")
    lasts: Duration = Field(default=60.0, gt=0, description="How long requests come.")
    warm_up: Duration = Field(default=10.0, ge=0, description="Not counted.")
    metric: str = Field(default="good_share", description="A number of the summary, for the picture.")
    clients: ClientsSpec = Field(default_factory=ClientsSpec, description="The users.")
    engines: EnginesSpec = Field(default_factory=EnginesSpec, description="The engines.")
    troubles: tuple[TroubleSpec, ...] = Field(default=(), max_length=100, description="What goes wrong.")


class _File(Section):
    sim: SimSpec


@dataclass(frozen=True, slots=True)
class Prepared:
    """An experiment file, read and checked, with the fleet of its gate."""

    spec: SimSpec
    fleet: SimulatedFleet
    trace: str


def read_experiment(path: Path) -> Prepared:
    """Read an experiment file and the gate's file that it names; ConfigError says what is wrong and where."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(Problem(Spot(str(path)), (), f"cannot be read: {error.strerror}")) from None
    document = read_document(text, str(path))
    try:
        spec = _File.model_validate(document.data).sim
    except ValidationError as error:
        raise ConfigError(*explain(error, document.places, _File)) from None
    gate = load_config(path.parent / spec.gate).config
    for name, problem in _problems(spec, gate, path.parent):
        raise ConfigError(Problem(document.places.get(("sim", name)), ("sim", name), problem))
    fleet = configured_fleet(
        gate, spec.engines.profile or DEFAULT_PROFILE, prefix_caching=spec.engines.prefix_caching == "yes"
    )
    alone_s = min(profile.prior(0).tpot_base_s for profile in fleet.profiles.values())
    for lane in fleet.settings.lanes:
        if lane.tpot_slo_s is not None and lane.tpot_slo_s <= alone_s:
            problem = f"{lane.name}: no answer keeps a `tpot_slo` of {lane.tpot_slo_s:g} s, a lone stream takes {alone_s:.2g} s"
            raise ConfigError(Problem(document.places.get(("sim", "gate")), ("sim", "gate"), problem))
    return Prepared(spec, fleet, _trace(spec, path.parent))


def _problems(spec: SimSpec, gate: Config, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield what no type says of an experiment: the setting, and what is wrong with it."""
    engines = [engine.name for engine in gate.engines]
    named = [spec.engines.profile, *(engine.profile for engine in gate.engines)]
    for engine in gate.engines:
        if not (spec.engines.profile or engine.profile or engine.prior):
            yield "gate", f"{engine.name} has no `profile` and no `prior`: name one in `sim.engines.profile`"
    metrics = _metrics(Recorder((LaneSettings("any"),)).summary(EngineTotals(0, 0, 0)))
    for name, given, known in (
        ("policies", spec.policies, POLICIES),
        ("troubles", [trouble.engine for trouble in spec.troubles], engines),
        ("engines", [each for each in named if each], load_profiles()),
        ("metric", [spec.metric], metrics),
    ):
        yield from (
            (name, f"{each!r} is not one of {', '.join(known)}") for each in given if each not in known
        )
    for trouble in spec.troubles:
        if trouble.at >= spec.lasts:
            yield "troubles", f"one at {trouble.at:g} s is after the {spec.lasts:g} s that requests come"
        if trouble.kind == "refusals" and trouble.factor > 1.0:
            yield "troubles", f"the share refused is at most 1, not {trouble.factor:g}"
    if spec.warm_up >= spec.lasts:
        yield "warm_up", f"{spec.warm_up:g} s leave nothing to count of the {spec.lasts:g} s that it lasts"
    try:
        open_trace(_trace(spec, folder), Streams(1), 1.0, spec.lasts)
    except ValueError as error:
        yield "trace", str(error).removeprefix("trace: ")


def file_experiment(path: Path) -> Experiment:
    """Return the experiment that a file describes."""
    prepared = read_experiment(path)
    spec, trace = prepared.spec, prepared.trace
    return Experiment(
        name=spec.name,
        question=spec.question,
        arms=tuple(
            Arm(policy, rate)
            for policy in dict.fromkeys(spec.policies)
            for rate in dict.fromkeys(spec.rates or (1.0,))
        ),
        run=lambda arm, seed: _run(prepared, arm, seed),
        metric=spec.metric,
        x_label="times faster than recorded" if has_its_own_times(trace) else "requests per second",
        y_label=spec.metric.replace("_", " "),
        seeds=spec.seeds,
    )


def run_file_arm(path: Path, arm: int, seed: int) -> Measured:
    """Run one arm of an experiment file under one seed; plain data in and out, for other processes."""
    experiment = file_experiment(path)
    return experiment.run(experiment.arms[arm], seed)


def _trace(spec: SimSpec, folder: Path) -> str:
    return spec.trace if spec.trace in LENGTHS else str(folder / spec.trace)


def _jobs(prepared: Prepared, rate: float, streams: Streams) -> Iterator[Job]:
    spec, trace = prepared.spec, prepared.trace
    jobs = open_trace(trace, streams, rate, spec.lasts)
    jobs = between(faster(jobs, rate) if has_its_own_times(trace) else jobs, 0.0, spec.lasts)
    # Engines that serve named models refuse a request for none.
    model = next((name for engine in prepared.fleet.settings.engines for name in engine.models), "")
    jobs = (job if job.adapter else job._replace(adapter=model) for job in jobs) if model else jobs
    return within_lanes(jobs, prepared.fleet.settings.lanes, trace)


def _run(prepared: Prepared, arm: Arm, seed: int) -> Measured:
    spec, fleet, streams, loop = prepared.spec, prepared.fleet, Streams(seed), Loop()
    rate = 1.0 if arm.x is None else arm.x
    recorder = Recorder(fleet.settings.lanes, from_s=spec.warm_up)
    world = World(POLICIES[arm.series](fleet.settings), loop, recorder)
    troubles = [
        EngineTrouble(each.kind, each.engine, each.at, each.lasts, each.factor) for each in spec.troubles
    ]
    manners = EngineManners(spec.engines.abort_lag, spec.engines.ignores_hangups == "yes")
    fleet.populate(world, streams, manners, troubles)
    world.start_watch(spec.engines.telemetry_delay)
    OpenLoop(world, Crowd(world, spec.clients.manners(), streams), _jobs(prepared, rate, streams))
    loop.run()
    if not recorder.requests:
        raise TraceError(Path(spec.trace), 0, f"no request comes after the {spec.warm_up:g} s of `warm_up`")
    return [(rate, _metrics(world.summary(recorder)))]


def _metrics(summary: Summary) -> dict[str, float]:
    plain = summary.as_dict()
    metrics = {name: float(value) for name, value in plain.items() if isinstance(value, int | float)}
    asked = max(1, summary.requests)
    metrics |= {f"{outcome}_share": summary.outcomes.get(outcome, 0) / asked for outcome in Outcome}
    metrics |= {f"ttft_{name}_s": value for name, value in plain["ttft_s"].items() if name != "count"}
    metrics |= {f"tpot_{name}_s": value for name, value in plain["tpot_s"].items() if name != "count"}
    return metrics
