"""Agents in a closed loop: the next turn follows the answer, a refused one comes back, a failed one ends its session."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from lab.agents.session_users import AFTER_GIVING_UP_S, Agents, agent_retries
from lab.books import unread_books
from lab.interpreted import is_compiled
from lab.laws import uniform

from millgate.core.settings import LaneSettings
from millgate.engine.profile import find_profile
from millgate.sim.clients.crowd import Crowd, Manners
from millgate.sim.clients.retry_behaviour import NEVER
from millgate.sim.engines.contract import EngineTotals
from millgate.sim.fleet import uniform_fleet
from millgate.sim.jobs import Job
from millgate.sim.laws import constant
from millgate.sim.loop import Loop
from millgate.sim.policies import POLICIES
from millgate.sim.randomness import Streams
from millgate.sim.traces.sources import MOST_UNITS, AgentSession, SessionTurn
from millgate.sim.visit import Visit
from millgate.sim.world import World

pytestmark = pytest.mark.skipif(is_compiled(), reason="a compiled class has no interpreted ones below it")

PROFILE = find_profile("llama3-8b_h100_tp1")


def session(number: int, turns: int, think_s: float = 5.0) -> AgentSession:
    made = []
    for turn in range(turns):
        prompt = 2000 + 1000 * turn
        ids = tuple(number * MOST_UNITS + unit for unit in range((prompt + 100) // 512))
        made.append(SessionTurn(Job(0.0, prompt, 100, prefix_ids=ids, session=number), think_s))
    return AgentSession(number, tuple(made))


class Stage:
    """Agents before one engine; keeps when each turn was asked for."""

    def __init__(
        self,
        sessions: Sequence[AgentSession],
        agents: int,
        *,
        until_s: float = 1e6,
        patience_s: float | None = None,
    ) -> None:
        lane = LaneSettings("agents", ttft_slo_s=60.0, deadline_s=60.0, max_queue=0)
        fleet = replace(uniform_fleet(PROFILE, 1, [lane], max_inflight=1), prefix_caching=True)
        loop, streams = Loop(), Streams(1)
        self.world = World(POLICIES["gate"](fleet.settings), loop, unread_books())
        fleet.populate(self.world, streams)
        self.asked: list[tuple[int, int, float]] = []
        patience = None if patience_s is None else constant(patience_s)
        manners = Manners(patience, NEVER if patience_s is not None else agent_retries())
        self.agents = Agents(
            self.world,
            _Noting(self.world, manners, streams, self.asked),
            iter(sessions),
            agents,
            streams.draws("agents", uniform(0.0, 0.0).sample),
            spread_s=0.0,
            until_s=until_s,
        )
        self.world.start_watch()
        loop.run(1e6)

    @property
    def totals(self) -> EngineTotals:
        return self.world.totals()


class _Noting(Crowd):
    def __init__(
        self, world: World, manners: Manners, streams: Streams, asked: list[tuple[int, int, float]]
    ) -> None:
        super().__init__(world, manners, streams)
        self._asked = asked
        self._clock = world.loop

    def come(self, job: Job) -> Visit:
        self._asked.append((job.session, job.prompt_tokens, self._clock.now))
        return super().come(job)


def test_a_turn_follows_the_answer_before_it_after_the_think_time() -> None:
    stage = Stage([session(1, 3)], 1)
    times = [at_s for _, _, at_s in stage.asked]

    assert [prompt for _, prompt, _ in stage.asked] == [2000, 3000, 4000]
    assert all(6.0 > later - earlier > 5.0 + 99 * 0.006 for earlier, later in pairwise(times))
    assert stage.agents.finished_turns == 3


def test_each_turn_finds_what_the_one_before_has_left() -> None:
    totals = Stage([session(1, 3)], 1).totals

    # Of 3,000 and 4,000 tokens: 2,000 + 100 - 1 are 4 full units, 3,000 + 100 - 1 are 6.
    assert (totals.queried_tokens, totals.hit_tokens) == (9000, (4 + 6) * 512)
    assert totals.prompt_tokens == 9000 - totals.hit_tokens


def test_an_agent_plays_one_session_after_the_other() -> None:
    stage = Stage([session(number, 2) for number in (1, 2, 3)], 1)

    assert [number for number, _, _ in stage.asked] == [1, 1, 2, 2, 3, 3]
    assert stage.world.sources == 0


def test_a_refused_turn_comes_back_by_its_hint_and_its_session_goes_on() -> None:
    """One stream and no queue: of two agents one is told to come back, each time."""
    stage = Stage([session(1, 4), session(2, 4)], 2)

    assert stage.agents.finished_turns == 8
    assert stage.agents.given_up == 0


def test_a_turn_that_is_given_up_ends_its_session() -> None:
    stage = Stage([session(1, 4), session(2, 1)], 1, patience_s=0.02)

    assert [number for number, _, _ in stage.asked] == [1, 2]
    assert stage.asked[1][2] == stage.asked[0][2] + 0.02 + AFTER_GIVING_UP_S
    assert (stage.agents.finished_turns, stage.agents.given_up) == (0, 2)


def test_no_agent_asks_after_the_end() -> None:
    stage = Stage(list(_many()), 3, until_s=30.0)

    assert max(at_s for _, _, at_s in stage.asked) < 30.0
    assert stage.world.sources == 0
    assert stage.world.is_over()


def _many() -> Iterator[AgentSession]:
    return (session(number, 5, think_s=1.0) for number in range(1, 100))
