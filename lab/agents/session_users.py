"""Agents: users whose every request goes on from the one before, with the whole context in the prompt."""

from collections.abc import Iterator
from itertools import chain, islice
from statistics import fmean
from typing import Final

from lab.laws import uniform
from millgate.core.words import Outcome
from millgate.sim.clients.crowd import Crowd
from millgate.sim.clients.retry_behaviour import RetryBehaviour, Sdk
from millgate.sim.jobs import Job
from millgate.sim.randomness import Draws, Streams
from millgate.sim.traces.sources import AgentSession, SessionTurn
from millgate.sim.visit import Visit
from millgate.sim.world import World

AGENT_RETRIES = 10
"""How often Claude Code tries a request again by default (its documentation, CLAUDE_CODE_MAX_RETRIES)."""
AGENT_PATIENCE_S = 600.0
"""How long the official SDKs wait for an answer by default."""
AFTER_GIVING_UP_S = 60.0
"""How long the person behind an agent takes to begin something else when a session has failed."""
# Sessions that the mean context is taken from.
_SAMPLE: Final = 200


def agent_retries() -> RetryBehaviour:
    """Return how an agent comes back after a refusal or a failure: by the hint, else backing off, ten times."""
    return Sdk(AGENT_RETRIES)


class Agents:
    """A fixed number of agents in a closed loop; each plays one session after the other until `until_s`.

    The next turn is asked `think_s` after the end of the one before. A turn that is given up ends its session, as the agent
    has nothing to go on with. Every agent is met in the midst of its work: its first session begins within `spread_s`, at
    any of its turns alike, by `dice` that are uniform from 0 to 1.
    """

    def __init__(
        self,
        world: World,
        crowd: Crowd,
        sessions: Iterator[AgentSession],
        agents: int,
        dice: Draws,
        *,
        spread_s: float,
        until_s: float,
    ) -> None:
        self._world = world
        self._loop = world.loop
        self._crowd = crowd
        self._sessions = sessions
        self._until_s = until_s
        self._agents = agents
        self._turns: dict[int, Iterator[SessionTurn]] = {}
        self.finished_turns = 0
        self.given_up = 0
        world.sources += 1
        crowd.on_over = self._turn_over
        for _ in range(agents):
            self._loop.at(self._loop.now + spread_s * dice.next(), self._begin, dice.next())

    def _begin(self, share_done: float) -> None:
        """Begin the next session, with this share of its turns done already."""
        session = next((session for session in self._sessions if session.turns), None)
        if session is None:
            self._retire()
            return
        turns = iter(session.turns[int(share_done * len(session.turns)) :])
        self._turns[session.number] = turns
        self._ask(next(turns).job)

    def _ask(self, job: Job) -> None:
        if self._loop.now < self._until_s:
            self._crowd.come(job._replace(at_s=self._loop.now))
        else:
            self._retire()

    def _turn_over(self, visit: Visit, outcome: Outcome | None) -> None:
        number, now = visit.job.session, self._loop.now
        if outcome is not None:
            self.given_up += 1
            del self._turns[number]
            self._loop.at(now + AFTER_GIVING_UP_S, self._begin, 0.0)
            return
        self.finished_turns += 1
        following = next(self._turns[number], None)
        if following is not None:
            self._loop.at(now + following.think_s, self._ask, following.job)
        else:
            del self._turns[number]
            self._loop.at(now, self._begin, 0.0)

    def _retire(self) -> None:
        self._agents -= 1
        if self._agents == 0:
            self._world.sources -= 1


def of_agents(session: AgentSession) -> AgentSession:
    """Let the gate know the turns of this session for those of a coding agent."""
    turns = [turn._replace(job=turn.job._replace(of_agent=True)) for turn in session.turns]
    return session._replace(turns=tuple(turns))


def put_agents(
    world: World,
    crowd: Crowd,
    sessions: Iterator[AgentSession],
    streams: Streams,
    kv_tokens: float,
    *,
    spread_s: float,
    until_s: float,
) -> Agents:
    """Put as many agents into a world as have contexts of so many tokens together, by the mean of the first sessions."""
    sample = list(islice(sessions, _SAMPLE))
    mean_tokens = fmean(turn.job.prompt_tokens for session in sample for turn in session.turns)
    number = max(1, round(kv_tokens / mean_tokens))
    dice = streams.draws("agents", uniform(0.0, 1.0).sample)
    return Agents(world, crowd, chain(sample, sessions), number, dice, spread_s=spread_s, until_s=until_s)
