"""Waves of clients before one stream: two whose refused clients never return, and a third that keeps its hints."""

from lab.books import unread_books
from lab.engines.plain import PacedStation
from millgate.core.settings import EngineSettings, LaneSettings, ServicePrior, Settings
from millgate.core.words import Outcome
from millgate.sim.clients.crowd import Crowd, Manners, OpenLoop
from millgate.sim.clients.retry_behaviour import NEVER, Honouring
from millgate.sim.jobs import Job
from millgate.sim.loop import Loop
from millgate.sim.randomness import Streams
from millgate.sim.visit import Visit
from millgate.sim.world import World
from millgate.wiring.governor import build_governor

_WAVE = 20
_STAY_AWAY_S, _RETURN_S = (0.0, 25.0), 28.0
_OUTPUT_TOKENS = 100
_WITHIN_S = 0.05
_LONG_S = 3600.0


def third_wave(service_s: float, tenants: int, seed: int) -> tuple[float, float]:
    """Return the share of the third wave's time in which the stream is free, and how often a client of it tries at the mean."""
    streams, loop = Streams(seed), Loop()
    pace_s = service_s / _OUTPUT_TOKENS
    lane = LaneSettings("lane", ttft_slo_s=_LONG_S, deadline_s=_LONG_S, max_queue=0)
    engine = EngineSettings("engine", 1, prior=ServicePrior(pace_s, 0.0, pace_s, 0.0))
    world = World(build_governor(Settings((lane,), (engine,)), 0.0), loop, unread_books())
    world.add_station(PacedStation("engine", loop, world, pace_s, pace_s))
    world.start_watch()
    dice = streams.draws("within", lambda generator, count: generator.random(count))

    def wave(starts_at: float) -> list[Job]:
        at = sorted(starts_at + _WITHIN_S * dice.next() for _ in range(_WAVE))
        return [
            Job(each, 100, _OUTPUT_TOKENS, tenant=f"tenant-{number % tenants}", max_tokens=_OUTPUT_TOKENS)
            for number, each in enumerate(at)
        ]

    over: list[tuple[float, int]] = []

    def ended(visit: Visit, _outcome: Outcome | None) -> None:
        over.append((loop.now, visit.attempts))

    away = Crowd(world, Manners(retry_behaviour=NEVER), streams)
    OpenLoop(world, away, iter([job for starts_at in _STAY_AWAY_S for job in wave(starts_at)]))
    back = Crowd(world, Manners(retry_behaviour=Honouring()), streams, 1)
    back.on_over = ended
    OpenLoop(world, back, iter(wave(_RETURN_S)))
    loop.run(_LONG_S)
    took_s = max(at for at, _ in over) - _RETURN_S
    return 1.0 - _WAVE * service_s / took_s, sum(tries for _, tries in over) / len(over)
