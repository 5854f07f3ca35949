"""A crowd: users of one temper. Each brings a request, waits, leaves, comes back, or gives up."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from millgate.core.decisions import Yield
from millgate.core.words import Outcome
from millgate.sim.clients.retry_behaviour import NEVER, RetryBehaviour
from millgate.sim.jobs import Job
from millgate.sim.laws import Law
from millgate.sim.randomness import Draws, Streams
from millgate.sim.visit import Visit
from millgate.sim.world import World


@dataclass(frozen=True, slots=True)
class Manners:
    """How users of one kind behave.

    `patience` is the time to the first token, per attempt, after which one leaves (None: for ever); what follows
    is up to `retry_behaviour`, as after a refusal. `stops_reading` is the time after the first token at which the share
    `stop_share` of the users closes the page.
    """

    patience: Law | None = None
    retry_behaviour: RetryBehaviour = NEVER
    stop_share: float = 0.0
    stops_reading: Law | None = None


class Crowd:
    """Plays users of one temper in a world; every draw comes from the streams of this crowd's number."""

    def __init__(self, world: World, manners: Manners, streams: Streams, number: int = 0) -> None:
        self._world = world
        self._loop = world.loop
        self._manners = manners
        self._dice: Draws = streams.draws("comeback", lambda dice, count: dice.random(count), number)
        self._patience = self._stops = None
        if manners.patience is not None:
            self._patience = streams.draws("patience", manners.patience.sample, number)
        if manners.stops_reading is not None and manners.stop_share > 0.0:
            self._stops = streams.draws("stops reading", manners.stops_reading.sample, number)
        self.on_over: Callable[[Visit, Outcome | None], None] | None = None

    def come(self, job: Job) -> Visit:
        """A user comes with a new request."""
        world = self._world
        visit = Visit(job, self, self._loop.now)
        world.recorder.asked(visit.first_at)
        self._try(visit)
        return visit

    # ---- what the world tells

    def yielded(self, visit: Visit, decision: Yield) -> None:
        """The attempt was refused: come back some time, or give up."""
        pause_s = self._manners.retry_behaviour.after_yield(decision, visit.attempts, self._dice)
        if pause_s is None:
            self._over(visit, Outcome.YIELDED)
        else:
            visit.hinted = pause_s == decision.retry_after_s
            self._loop.at(self._loop.now + pause_s, self._try, visit)

    def first_token(self, visit: Visit) -> None:
        """The user reads; some stop after a while."""
        if self._stops is not None and self._dice.next() < self._manners.stop_share:
            self._loop.at(self._loop.now + self._stops.next(), self._stop_reading, (visit, visit.attempt))

    def failed(self, visit: Visit) -> None:
        """The engine failed the attempt: what an SDK sees as a 5xx or a broken stream."""
        self._come_back(visit, Outcome.ENGINE_FAILED)

    def answered(self, visit: Visit) -> None:
        """The answer is whole; `on_over` is told no other outcome."""
        if self.on_over is not None:
            self.on_over(visit, None)

    # ---- what users do

    def _try(self, visit: Visit) -> None:
        visit.attempts += 1
        label = visit.attempts - 1 if self._manners.retry_behaviour.labels else None
        self._world.ask(visit, label)
        if self._patience is not None and visit.attempt:
            self._loop.at(self._loop.now + self._patience.next(), self._tired, (visit, visit.attempt))

    def _tired(self, what: tuple[Visit, int]) -> None:
        visit, attempt = what
        if visit.attempt == attempt and (visit.first_token_at is None or not visit.job.stream):
            self._world.leave(visit)
            self._come_back(visit, Outcome.CLIENT_GONE)

    def _stop_reading(self, what: tuple[Visit, int]) -> None:
        visit, attempt = what
        if visit.attempt == attempt:
            self._world.leave(visit)
            self._over(visit, Outcome.CLIENT_GONE)

    def _come_back(self, visit: Visit, outcome: Outcome) -> None:
        pause_s = self._manners.retry_behaviour.after_failure(visit.attempts, self._dice)
        if pause_s is None:
            self._over(visit, outcome)
        else:
            visit.hinted = False
            self._loop.at(self._loop.now + pause_s, self._try, visit)

    def _over(self, visit: Visit, outcome: Outcome) -> None:
        self._world.over(visit, outcome)
        if self.on_over is not None:
            self.on_over(visit, outcome)


class OpenLoop:
    """Lets jobs come at their own times, however the world fares."""

    def __init__(self, world: World, crowd: Crowd, jobs: Iterator[Job]) -> None:
        self._world = world
        self._crowd = crowd
        self._jobs = jobs
        world.sources += 1
        self._await_next()

    def _await_next(self) -> None:
        job = next(self._jobs, None)
        if job is None:
            self._world.sources -= 1
        else:
            self._world.loop.at(job.at_s, self._come, job)

    def _come(self, job: Job) -> None:
        self._crowd.come(job)
        self._await_next()
