"""Users who ask again only after their answer, in virtual time."""

from collections.abc import Iterator

from millgate.core.words import Outcome
from millgate.sim.clients.crowd import Crowd
from millgate.sim.jobs import Job
from millgate.sim.randomness import Draws
from millgate.sim.visit import Visit
from millgate.sim.world import World


class ClosedLoop:
    """A fixed number of users, each thinking, asking and waiting in turn, until `until_s`."""

    def __init__(
        self, world: World, crowd: Crowd, jobs: Iterator[Job], users: int, think: Draws, until_s: float
    ) -> None:
        self._world = world
        self._crowd = crowd
        self._jobs = jobs
        self._think = think
        self._until_s = until_s
        self._users = users
        world.sources += 1
        crowd.on_over = self._think_again
        for _ in range(users):
            self._think_again()

    def _think_again(self, _visit: Visit | None = None, _outcome: Outcome | None = None) -> None:
        self._world.loop.at(self._world.loop.now + self._think.next(), self._ask, None)

    def _ask(self, _nothing: None) -> None:
        now = self._world.loop.now
        job = next(self._jobs, None) if now < self._until_s else None
        if job is not None:
            self._crowd.come(job._replace(at_s=now))
            return
        self._users -= 1
        if self._users == 0:
            self._world.sources -= 1
