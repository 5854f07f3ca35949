"""agent_sessions: agents whose contexts do, or do not, fit into the memory of the engines together.

Every agent comes back some seconds after each answer with all that was said so far. While the contexts of all of them fit,
engines compute only what is new. As soon as they do not, each is evicted just before it comes back. The gate bounds how many
sessions are live on an engine; the other series queue or send requests one by one. On one engine the cliff is that of
memory alone. On several, turns that come back to another engine than before add to it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import cycle
from pathlib import Path
from types import MappingProxyType
from typing import Final

from lab.agents.generated_sessions import AGENTS, LONGEST_THINK_S, PEOPLE, drawn_sessions
from lab.agents.renumbering import renumbered
from lab.agents.session_users import AGENT_PATIENCE_S, Agents, agent_retries, put_agents
from lab.bounds.shared_cache import SharedCache
from lab.knobs import (
    ABOVE_0,
    ANY,
    PROFILE,
    SHARE,
    KnobLimit,
    Limits,
    at_least,
    check,
    check_longer,
    one_of,
    with_knobs,
)
from lab.laws import uniform
from millgate.core.settings import LaneSettings
from millgate.engine.profile import find_profile
from millgate.sim.clients.crowd import Crowd, Manners
from millgate.sim.experiments.contract import Arm, Experiment, Measured, Metrics, SeriesPoint
from millgate.sim.fleet import SimulatedFleet, uniform_fleet
from millgate.sim.laws import constant
from millgate.sim.loop import Loop
from millgate.sim.policies import POLICIES
from millgate.sim.randomness import Streams
from millgate.sim.records import Recorder, Summary
from millgate.sim.traces.sources import AgentSession, read_sessions
from millgate.sim.traces.tables import TraceError
from millgate.sim.world import World

_SLO_S: Final = 10.0
_LOADS: Final = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)
_SERIES: Final[Mapping[str, tuple[str, str]]] = {
    "no gate": ("no gate", "arrival"),
    "FIFO": ("plain queue", "arrival"),
    "least work": ("plain queue", "short_first"),
    "gate": ("gate", "short_first"),
}


@dataclass(frozen=True, slots=True)
class AgentScene:
    """Equal engines and agents; `working_set` is the agents' mean contexts together over all engines' KV tokens.

    An engine runs `slots` requests at most, 0 for as many as its profile does. `sessions` names a file of recorded sessions; without one they are drawn, of the `users`, which are agents or people.
    Of all sessions the share `questions` ends with its first answer.
    """

    engines: int = 1
    profile: str = "llama3-70b_h100_tp8"
    slots: int = 0
    sessions: str = ""
    users: str = "agents"
    questions: float = 0.0
    working_set: float = 1.0
    policy: str = "gate"
    order: str = "arrival"
    warm_up_s: float = 300.0
    until_s: float = 1_500.0

    @property
    def memory_tokens(self) -> int:
        """KV tokens of all engines."""
        return self.engines * find_profile(self.profile).kv_tokens


_LIMITS: Final[Limits] = {
    "engines": at_least(1),
    "profile": PROFILE,
    "slots": at_least(0),
    "sessions": ANY,
    "users": one_of("agents", "people"),
    "questions": SHARE,
    "warm_up_s": at_least(0),
    "until_s": ABOVE_0,
}
_FILE: Final = KnobLimit("a file of recorded sessions", lambda name: not name or Path(name).is_file())


def play(scene: AgentScene, seed: int) -> Metrics:
    """Return turns and good ones a minute, hit shares, and mean times, without the warm-up."""
    streams, loop, fleet = Streams(seed), Loop(), _fleet(scene)
    recorder = Recorder(fleet.settings.lanes, from_s=scene.warm_up_s)
    world = World(POLICIES[scene.policy](fleet.settings), loop, recorder)
    fleet.populate(world, streams)
    world.start_watch()
    shared = SharedCache(scene.memory_tokens)
    world.on_admit = lambda visit, _decision: shared.ask(visit.job)
    agents = _agents(scene, world, streams)
    loop.run(scene.warm_up_s)
    before = _Counts.of(world, shared, agents)
    loop.run(scene.until_s)
    return _metrics(_Counts.of(world, shared, agents).since(before), world.summary(recorder), scene)


@dataclass(frozen=True, slots=True)
class _Counts:
    """What has been counted since the start of a run."""

    finished: int
    given_up: int
    hit_tokens: int
    queried_tokens: int
    shared_hit_tokens: int
    shared_asked_tokens: int

    @staticmethod
    def of(world: World, shared: SharedCache, agents: Agents) -> "_Counts":
        totals = world.totals()
        return _Counts(
            agents.finished_turns,
            agents.given_up,
            totals.hit_tokens,
            totals.queried_tokens,
            shared.hit_tokens,
            shared.asked_tokens,
        )

    def since(self, before: "_Counts") -> "_Counts":
        return _Counts(*[now - then for now, then in zip(astuple(self), astuple(before), strict=True)])


def _metrics(counts: _Counts, summary: Summary, scene: AgentScene) -> Metrics:
    minutes = (scene.until_s - scene.warm_up_s) / 60.0
    return {
        "turns_per_minute": counts.finished / minutes,
        "good_per_minute": summary.outcomes.get("good", 0) / minutes,
        "given_up_per_minute": counts.given_up / minutes,
        "hit_share": counts.hit_tokens / max(1, counts.queried_tokens),
        "shared_hit_share": counts.shared_hit_tokens / max(1, counts.shared_asked_tokens),
        "ttft_mean_s": summary.ttft_s.mean,
        "tpot_mean_s": summary.tpot_s.mean,
    }


def _fleet(scene: AgentScene) -> SimulatedFleet:
    lane = LaneSettings("agents", ttft_slo_s=_SLO_S, deadline_s=_SLO_S, order=scene.order)
    fleet = uniform_fleet(
        find_profile(scene.profile), scene.engines, [lane], max_inflight=scene.slots or None
    )
    return replace(fleet, prefix_caching=True)


def _agents(scene: AgentScene, world: World, streams: Streams) -> Agents:
    return put_agents(
        world,
        Crowd(world, Manners(constant(AGENT_PATIENCE_S), agent_retries()), streams),
        _sessions(scene, streams),
        streams,
        scene.working_set * scene.memory_tokens,
        spread_s=scene.warm_up_s / 2,
        until_s=scene.until_s,
    )


def _sessions(scene: AgentScene, streams: Streams) -> Iterator[AgentSession]:
    """Yield sessions without end, and of some of them the first turn alone."""
    share = streams.draws("questions", uniform(0.0, 1.0).sample)
    for session in _whole_sessions(scene, streams):
        yield session._replace(turns=session.turns[:1]) if share.next() < scene.questions else session


def _whole_sessions(scene: AgentScene, streams: Streams) -> Iterator[AgentSession]:
    """Yield sessions without end: drawn ones, or the recorded ones again and again, each time as sessions of their own."""
    if not scene.sessions:
        yield from drawn_sessions(streams, PEOPLE if scene.users == "people" else AGENTS)
    file = Path(scene.sessions)
    recorded = [session for session in map(_present, read_sessions(file)) if session.turns]
    if not recorded:
        raise TraceError(file, 1, "there is no session with a turn")
    streams.generator("order of sessions").shuffle(recorded)
    for number, session in enumerate(cycle(recorded), start=1):
        yield renumbered(session, number)


def _present(session: AgentSession) -> AgentSession:
    """Let no agent pause longer than drawn ones do."""
    turns = [turn._replace(think_s=min(turn.think_s, LONGEST_THINK_S)) for turn in session.turns]
    return session._replace(turns=tuple(turns))


def agent_sessions(knobs: Mapping[str, str] = MappingProxyType({})) -> Experiment:
    """Return the experiment with these fields of `AgentScene` set; a ValueError names the one that is wrong."""
    scene = with_knobs(AgentScene(), knobs, _LIMITS)
    check("sessions", scene.sessions, _FILE)
    check_longer("until_s", scene.until_s, scene.warm_up_s, "warm_up_s")

    def run(arm: Arm, seed: int) -> Measured:
        assert arm.x is not None
        policy, order = _SERIES[arm.series]
        return [(arm.x, play(replace(scene, policy=policy, order=order, working_set=arm.x), seed))]

    return Experiment(
        name="agent_sessions",
        question="What becomes of agents whose contexts do not fit into memory together?",
        arms=tuple(Arm(series, load) for series in _SERIES for load in _LOADS),
        run=run,
        metric="turns_per_minute",
        x_label="contexts of all agents, times the engines' KV memory",
        y_label="finished turns a minute",
        facts=_facts,
        vary=agent_sessions,
    )


def _facts(places: Sequence[SeriesPoint]) -> Mapping[str, float]:
    found: dict[str, float] = {}
    for place in places:
        if place.x in {1.0, 2.0}:
            of = f"{place.series} at {place.x:g}"
            for name in ("good_per_minute", "hit_share", "shared_hit_share"):
                found[f"{of}: {name.replace('_', ' ')}"] = place.metrics[name].mean
    return found


AGENT_SESSIONS = agent_sessions()
