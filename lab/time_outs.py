"""Engines that are slower than believed, or hang, and a gate that gives up an answer that has not begun in time, as the doors do."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from lab.suite import Shown
from millgate.core.decisions import Admit
from millgate.core.settings import EngineSettings, LaneSettings, Settings
from millgate.core.words import FailureKind, Sent
from millgate.engine.profile import EngineProfile, find_profile, scaled
from millgate.sim.clients.crowd import Crowd, Manners, OpenLoop
from millgate.sim.engines.batched import BatchedStation
from millgate.sim.fleet import SimulatedFleet
from millgate.sim.laws import lognormal
from millgate.sim.loop import ENGINES, Loop
from millgate.sim.randomness import Streams
from millgate.sim.records import Recorder
from millgate.sim.traces.synthetic import Lengths, jobs, steady
from millgate.sim.visit import Visit
from millgate.sim.world import World
from millgate.wiring.chosen import PREFILL_TOKENS
from millgate.wiring.governor import build_governor

_SEQUENCES = 64
_DEADLINE_S = 10.0
_AFTERMATH_S = 120.0
# An engine as fast as the gate believes of one that it does not know: 0.1 ms a prompt token.
_USUAL_PER_TOKEN_MS = 0.1
_SHORT_TOKENS, _ANSWER_TOKENS = 300.0, 20.0


@dataclass(frozen=True, slots=True)
class SlowCase:
    """Engines `slower` than believed; loads are shares of what they read in a second, in short prompts and in long ones.

    From `changes_at_s` to `ends_at_s` the first one is `changes_to` times as slow again, or with 0 stands still.
    """

    slower: float = 1.0
    engines: int = 1
    short_load: float = 0.0
    long_load: float = 0.0
    long_tokens: float = 20_000.0
    changes_to: float = 1.0
    changes_at_s: float = 120.0
    ends_at_s: float = 180.0
    seconds: float = 300.0


class GivingUp(World):
    """A world whose gate ends an answer that has not begun by `first_event_by`: its client gets a 504."""

    timed_out = 0

    def admitted(self, decision: Admit) -> None:
        """Run it, and look again when it must have begun."""
        super().admitted(decision)
        late = self._visits[decision.attempt], decision.attempt
        self.loop.at(decision.first_event_by, self._look, late, ENGINES)

    def _look(self, late: tuple[Visit, int]) -> None:
        visit, attempt = late
        if visit.attempt == attempt and visit.first_token_at is None and visit.station is not None:
            self.timed_out += 1
            visit.station.hang_up(attempt)
            self.failed(attempt, FailureKind.TIMEOUT, Sent.REQUEST, None)


def given_up(case: SlowCase, seed: int) -> Shown:
    """Return the shares of requests that ended good, and with a 504."""
    streams, loop, profile = Streams(seed), Loop(), _engine(case.slower)
    lane = LaneSettings("interactive", ttft_slo_s=_DEADLINE_S, deadline_s=_DEADLINE_S)
    settings = EngineSettings(
        "", _SEQUENCES, kv_tokens=int(0.9 * profile.kv_tokens), prefill_tokens=PREFILL_TOKENS
    )
    names = [f"engine-{number}" for number in range(case.engines)]
    engines = tuple(replace(settings, name=name) for name in names)
    fleet = SimulatedFleet(Settings((lane,), engines), dict.fromkeys(names, profile))
    recorder = Recorder([lane])
    world = GivingUp(build_governor(fleet.settings, 0.0), loop, recorder)
    fleet.populate(world, streams)
    world.start_watch()
    for number, (load, tokens) in enumerate(_prompts(case)):
        lengths = Lengths(lognormal(tokens, 0.5), lognormal(_ANSWER_TOKENS, 0.5))
        per_s = load * case.engines / (case.slower * _USUAL_PER_TOKEN_MS / 1e3 * tokens)
        times = steady(per_s, streams, number=number)
        coming = jobs(times, lengths, streams, until_s=case.seconds, number=number)
        OpenLoop(world, Crowd(world, Manners(), streams, number), coming)
    station = world.stations[names[0]]
    assert isinstance(station, BatchedStation)
    _change(case, station, loop)
    loop.run(case.seconds + _AFTERMATH_S)
    requests = max(1, recorder.requests)
    return {"goodput": recorder.outcomes["good"] / requests, "timed_out": world.timed_out / requests}


def _engine(slower: float) -> EngineProfile:
    profile = find_profile("llama3-8b_a100_tp1")
    believed = scaled(profile, profile.prefill_per_token_ms / (slower * _USUAL_PER_TOKEN_MS))
    return replace(believed, max_num_seqs=_SEQUENCES)


def _prompts(case: SlowCase) -> Iterable[tuple[float, float]]:
    both = (case.short_load, _SHORT_TOKENS), (case.long_load, case.long_tokens)
    return [each for each in both if each[0] > 0.0]


def _change(case: SlowCase, station: BatchedStation, loop: Loop) -> None:
    """Let the engine stand still for a while, or be slower."""
    if not case.changes_to:
        loop.at(case.changes_at_s, station.stall, case.ends_at_s - case.changes_at_s, ENGINES)
    elif case.changes_to != 1.0:
        slow, usual = _engine(case.slower * case.changes_to), _engine(case.slower)
        loop.at(case.changes_at_s, station.change_model, slow.step_model(), ENGINES)
        loop.at(case.ends_at_s, station.change_model, usual.step_model(), ENGINES)


_MIXED = SlowCase(short_load=0.3, long_load=0.5)
SLOW_CASES = {
    "long prompts before an engine 10 times as slow as believed": SlowCase(
        10.0, long_load=0.8, seconds=900.0
    ),
    "an engine hangs for a minute": replace(_MIXED, changes_to=0.0),
    "one of four engines hangs for a minute": replace(_MIXED, engines=4, changes_to=0.0),
    "one of two engines is 20 times as slow for two minutes": replace(
        _MIXED, engines=2, long_tokens=8_000.0, changes_to=20.0, ends_at_s=240.0, seconds=360.0
    ),
}
