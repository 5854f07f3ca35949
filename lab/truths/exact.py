"""Identities: not estimated but exact, so their rows carry no error beyond rounding."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from lab.truths.rows import ValidationRow
from millgate.core.governor import Governor
from millgate.core.settings import LaneSettings
from millgate.core.words import DeadlineFrom
from millgate.engine.profile import find_profile
from millgate.sim.clients.crowd import Crowd, Manners, OpenLoop
from millgate.sim.fleet import uniform_fleet
from millgate.sim.jobs import Job
from millgate.sim.laws import exponential
from millgate.sim.loop import WATCHES, Loop
from millgate.sim.randomness import Streams
from millgate.sim.records import Recorder
from millgate.sim.traces.synthetic import LENGTHS, jobs, steady
from millgate.sim.world import World
from millgate.wiring.governor import build_governor

# What adding up a few thousand floating-point times may lose.
_ROUNDING = 1e-9
_PROFILE = "llama3-8b_h100_tp1"


def exact_rows(arrivals: int = 20_000) -> list[ValidationRow]:
    """Return every identity's row."""
    return [*_alone(), *_busy(arrivals)]


def _row(name: str, expected: float, got: float, count: int) -> ValidationRow:
    ok = abs(got - expected) <= _ROUNDING * max(1.0, abs(expected))
    return ValidationRow(name, ok, expected, got, 0.0, count)


def _alone() -> list[ValidationRow]:
    """One request on an idle engine: prefill, then an arithmetic series of decode steps (engine/step_time)."""
    prompt, output = 2000, 500
    profile = find_profile(_PROFILE)
    prefill_ms = max(
        profile.prefill_floor_ms,
        profile.prefill_base_ms
        + profile.prefill_per_token_ms * prompt
        + profile.prefill_per_token_squared_ms * prompt**2,
    )
    steps = output - 1
    first_ms = (
        profile.decode_base_ms + profile.decode_per_sequence_ms + profile.decode_per_kv_token_ms * prompt
    )
    decode_ms = steps * first_ms + profile.decode_per_kv_token_ms * steps * (steps - 1) / 2
    overhead_ms = profile.step_overhead_ms
    seen = _run([Job(0.0, prompt, output)]).recorder
    return [
        _row("one request alone: time to first token", (prefill_ms + overhead_ms) / 1e3, seen.ttft.mean, 1),
        _row(
            "one request alone: time to last token",
            (prefill_ms + decode_ms + output * overhead_ms) / 1e3,
            seen.total.mean,
            1,
        ),
    ]


@dataclass(slots=True)
class _Run:
    recorder: Recorder
    governor: Governor
    world: World
    most_running: int = 0

    def look(self, _nothing: None) -> None:
        """Read the gate every virtual second while a request is there."""
        running = self.governor.snapshot(self.world.loop.now).engines[0].running
        self.most_running = max(self.most_running, running)
        if not self.world.is_over():
            self.world.loop.at(self.world.loop.now + 1.0, self.look, None, WATCHES)


def _run(coming: Iterable[Job], manners: Manners | None = None, max_inflight: int = 64) -> _Run:
    lane = LaneSettings("truth", deadline_from=DeadlineFrom.ATTEMPT)
    fleet = uniform_fleet(find_profile(_PROFILE), 1, [lane], max_inflight=max_inflight)
    loop, governor = Loop(), build_governor(fleet.settings, 0.0)
    recorder = Recorder(fleet.settings.lanes)
    world = World(governor, loop, recorder)
    fleet.populate(world, Streams(1))
    world.start_watch()
    OpenLoop(world, Crowd(world, manners or Manners(), Streams(1)), iter(coming))
    run = _Run(recorder, governor, world)
    loop.at(0.0, run.look, None, WATCHES)
    loop.run()
    return run


def _busy(arrivals: int) -> list[ValidationRow]:
    """An overloaded engine with impatient users: whatever happens, the accounts agree."""
    streams = Streams(1)
    source = jobs(steady(40.0, streams), LENGTHS["azure_conversation"], streams)
    run = _run(islice(source, arrivals), Manners(exponential(2.0)), max_inflight=16)
    books = run.recorder
    shot = run.governor.snapshot(run.world.loop.now)
    lane, engine = shot.lanes[0], shot.engines[0]
    over = float(sum(books.outcomes.values()))
    ended = float(sum(count for _, count in lane.outcomes))
    return [
        _row("requests that came = requests that ended", float(books.requests), over, arrivals),
        _row("attempts that came = outcomes", float(lane.arrived), ended, arrivals),
        _row("permits out when all is over", 0.0, float(engine.running + engine.departing), arrivals),
        _row("most streams at once = the cap", 16.0, float(run.most_running), arrivals),
        _row("Little's law: what is left of L - lambda W", 0.0, lane.little.whole.residual, arrivals),
    ]
