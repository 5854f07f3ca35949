"""racks: prompts are read and answered apart in two racks with slow links between them; what do labels of the engines save?

Each rack has engines that read and engines that write. Within a rack prompts go over the fast link, between the two over one that is
slower; where both are as fast, labels are of no use and should do no harm. `equal labels` puts all engines into one rack. In the second third of
the time `lost` readers of the first rack are gone: then those of the other one read for it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from lab.knobs import (
    ABOVE_0,
    PROFILE,
    KnobLimit,
    Limits,
    at_least,
    check,
    check_fits,
    check_longer,
    with_knobs,
)
from millgate.core.settings import EngineSettings, Labels, LaneSettings
from millgate.core.words import Role
from millgate.engine.profile import EngineProfile, find_profile
from millgate.sim.clients.crowd import Crowd, Manners, OpenLoop
from millgate.sim.engines.handoffs import LinkSpeed
from millgate.sim.engines.troubles import EngineTrouble
from millgate.sim.experiments.contract import Arm, Experiment, Measured, Metrics
from millgate.sim.fleet import SimulatedFleet, uniform_fleet
from millgate.sim.jobs import Job
from millgate.sim.laws import lognormal
from millgate.sim.loop import Loop
from millgate.sim.randomness import Streams
from millgate.sim.records import Recorder
from millgate.sim.traces.synthetic import Lengths, jobs, steady
from millgate.sim.world import World
from millgate.wiring.governor import build_governor

NO_LABELS, EQUAL_LABELS, LABELS = _SERIES = ("no labels", "equal labels", "labels")
_RACKS: Final = ("a", "b")
# Between racks, 10^9 bytes a second: as within one, and as 100, 25 and 10 Gb/s.
_FAR: Final = (50.0, 12.5, 3.125, 1.25)
_WARM_UP_S, _AFTERMATH_S = 20.0, 60.0


@dataclass(frozen=True, slots=True)
class Racks:
    """Two racks of `reading` and `writing` engines each, requests a second over both, mean tokens, and what is good."""

    reading: int = 2
    writing: int = 2
    profile: str = "llama3-70b_h100_tp4"
    rate_per_s: float = 4.0
    prompt_tokens: float = 8_000.0
    output_tokens: float = 128.0
    ttft_slo_s: float = 3.0
    tpot_slo_s: float = 0.03
    until_s: float = 120.0
    lost: int = 0


_LIMITS: Final[Limits] = {
    "reading": at_least(1),
    "writing": at_least(1),
    "profile": PROFILE,
    "rate_per_s": ABOVE_0,
    "prompt_tokens": at_least(1),
    "output_tokens": at_least(1),
    "ttft_slo_s": ABOVE_0,
    "tpot_slo_s": ABOVE_0,
    "until_s": ABOVE_0,
    "lost": at_least(0),
}


def _engine(engine: EngineSettings, number: int, scene: Racks, labelled: str) -> EngineSettings:
    """Make it one of its rack: those that read come first there."""
    rack, place = divmod(number, scene.reading + scene.writing)
    role = Role.PREFILL if place < scene.reading else Role.DECODE
    labels = {NO_LABELS: Labels(), EQUAL_LABELS: Labels(rack="a"), LABELS: Labels(rack=_RACKS[rack])}
    return replace(engine, name=f"{_RACKS[rack]}-{place}", role=role, labels=labels[labelled])


def fleet(scene: Racks, labelled: str, far: float) -> SimulatedFleet:
    """Return both racks, with links of so many 10^9 bytes a second between them."""
    profile = find_profile(scene.profile)
    lane = LaneSettings("interactive", ttft_slo_s=scene.ttft_slo_s, deadline_s=scene.ttft_slo_s)
    lane = replace(lane, tpot_slo_s=scene.tpot_slo_s)
    whole = uniform_fleet(profile, 2 * (scene.reading + scene.writing), [lane])
    engines = tuple(
        _engine(each, number, scene, labelled) for number, each in enumerate(whole.settings.engines)
    )
    profiles: dict[str, EngineProfile] = {each.name: profile for each in engines}
    between = LinkSpeed(bytes_per_s=far * 1e9)
    links = {
        (one.name, other.name): between
        for one in engines
        for other in engines
        if one.name[0] != other.name[0]
    }
    return replace(whole, settings=replace(whole.settings, engines=engines), profiles=profiles, links=links)


def _asked(scene: Racks, streams: Streams) -> Iterator[Job]:
    lengths = Lengths(lognormal(scene.prompt_tokens, 0.3), lognormal(scene.output_tokens, 0.3))
    return jobs(steady(scene.rate_per_s, streams), lengths, streams, until_s=scene.until_s)


def play(scene: Racks, labelled: str, far: float, seed: int) -> Metrics:
    """Return the share of good requests, the p95 of TTFT, the share that is read apart, and the mean transfer in seconds."""
    loop, streams = Loop(), Streams(seed)
    stage = fleet(scene, labelled, far)
    governor = build_governor(stage.settings, 0.0)
    recorder = Recorder(stage.settings.lanes, from_s=_WARM_UP_S)
    world = World(governor, loop, recorder)
    third_s = scene.until_s / 3
    lost = [EngineTrouble("loss", f"a-{number}", third_s, third_s) for number in range(scene.lost)]
    stage.populate(world, streams, troubles=lost)
    world.start_watch()
    OpenLoop(world, Crowd(world, Manners(), streams), _asked(scene, streams))
    loop.run(scene.until_s + _AFTERMATH_S)
    summary, snapshot = world.summary(recorder), governor.snapshot(loop.now)
    legs, admitted = snapshot.legs, snapshot.lanes[0].admitted
    return {
        "good_share": summary.good_share,
        "ttft_p95_s": summary.ttft_s.p95,
        "apart_share": legs.begun / admitted if admitted else 0.0,
        "transfer_s": legs.transfer_s / legs.fetched if legs.fetched else 0.0,
    }


def racks(knobs: Mapping[str, str] = MappingProxyType({})) -> Experiment:
    """Return the experiment with these fields of `Racks` set; a ValueError names the one that is wrong."""
    scene = with_knobs(Racks(), knobs, _LIMITS)
    check("lost", scene.lost, KnobLimit(f"at most reading ({scene.reading})", scene.reading.__ge__))
    check_longer("until_s", scene.until_s, _WARM_UP_S, "the warm-up")
    check_fits("prompt_tokens", scene.prompt_tokens + scene.output_tokens, scene.profile)

    def run(arm: Arm, seed: int) -> Measured:
        assert arm.x is not None
        return [(arm.x, play(scene, arm.series, arm.x, seed))]

    return Experiment(
        name="racks",
        question="Prefill and decode apart in two racks: what do labels of the engines save?",
        arms=tuple(Arm(series, far) for series in _SERIES for far in _FAR),
        run=run,
        metric="good_share",
        x_label="10^9 bytes a second between racks",
        y_label="share of good requests",
        vary=racks,
    )


RACKS: Final = racks()
