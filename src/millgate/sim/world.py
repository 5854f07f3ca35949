"""The world: users on one side, engines on the other, the governor between them, virtual time around all.

It does for the governor what the gateway's runtime does. It carries decisions out, posts what becomes of them,
reads gauges, and sends Released right after a whole answer or a failure. After a hang-up it says nothing more; the
governor concludes from the gauges when the engine has let go.
"""

from collections.abc import Callable
from functools import partial
from operator import itemgetter

from millgate.core.decisions import Admit, Cancel, Ended, Queue, Yield
from millgate.core.events import (
    Arrived,
    ClientGone,
    EngineProgress,
    Failed,
    Finished,
    FirstToken,
    Growth,
    PrefixMarks,
    Released,
)
from millgate.core.words import FailureKind, Outcome, Sent
from millgate.sim.driver import DecidingCore, VirtualDriver
from millgate.sim.engines.contract import EngineTotals, Station, added_up
from millgate.sim.engines.handoffs import PromptTransfers
from millgate.sim.engines.watch import GaugeWatch
from millgate.sim.jobs import PREFIX_UNIT_TOKENS, Job
from millgate.sim.loop import Loop
from millgate.sim.records import Recorder, Summary
from millgate.sim.visit import Visit

# English text and its JSON: what the governor's prior expects (core/sizing/prompt_sizes).
BYTES_PER_TOKEN = 4
# A hinted return that runs within this time was promised rightly: the governor may hold a due one for as long.
KEPT_WITHIN_S = 1.0


class World:
    """One run's world. `remembers` lets attempts carry fingerprints, so that the governor recognises returns; `names_sessions` lets turns name their session."""

    def __init__(
        self,
        core: DecidingCore,
        loop: Loop,
        recorder: Recorder,
        *,
        remembers: bool = True,
        names_sessions: bool = True,
    ) -> None:
        self.loop = loop
        self.recorder = recorder
        self.sources = 0
        self.driver = VirtualDriver(core, loop, self)
        self.stations: dict[str, Station] = {}
        self.watch: GaugeWatch | None = None
        self.handoffs: PromptTransfers | None = None
        self.on_admit: Callable[[Visit, Admit], None] | None = None
        self._remembers = remembers
        self._asked: dict[int, PrefixMarks] | None = None if names_sessions else {}
        self._visits: dict[int, Visit] = {}
        self._growing: dict[str, dict[int, int]] = {}
        self._followed: set[str] = set()
        self._attempts = 0
        self._numbers = 0

    def add_station(self, station: Station, *, followed: bool = False) -> None:
        """Put an engine into the world, under the name that the governor knows it by.

        Of a `followed` one the progress of every stream with a token is told once a second, as the gateway does; of
        others only that of streams which outgrow what they reserved, since nothing else is decided by it there.
        """
        self.stations[station.name] = station
        self._growing[station.name] = {}
        if followed:
            self._followed.add(station.name)

    def start_watch(self, delay_s: float = 0.0) -> None:
        """Begin reading gauges, as the gateway does."""
        self.watch = GaugeWatch(
            self.loop,
            list(self.stations.values()),
            self.driver.post,
            self.is_over,
            delay_s=delay_s,
            before_poll=self._progress,
        )

    def is_over(self) -> bool:
        """Return whether no client asks any more and every engine is idle."""
        if self.sources or self._visits:
            return False
        return all(station.read()[:2] == (0, 0) for station in self.stations.values())

    def summary(self, recorder: Recorder) -> Summary:
        """Return the run in numbers, with what the engines computed for it."""
        return recorder.summary(self.totals())

    def totals(self) -> EngineTotals:
        """Return what all engines have done together."""
        return added_up([station.totals() for station in self.stations.values()])

    # ---- what users do

    def ask(self, visit: Visit, retry_count: int | None) -> None:
        """Send the next attempt of this visit to the gate."""
        if visit.number == 0:
            self._numbers += 1
            visit.number = self._numbers
        self._attempts += 1
        attempt = visit.attempt = self._attempts
        visit.asked_at, visit.first_token_at = self.loop.now, None
        self._visits[attempt] = visit
        self.recorder.tried(visit.first_at)
        job = visit.job
        size = job.prompt_tokens * BYTES_PER_TOKEN
        self.driver.post(
            Arrived(
                attempt,
                job.tenant,
                job.lane,
                job.adapter,
                size,
                size,
                job.max_tokens,
                1,
                job.stream,
                retry_count=retry_count,
                fingerprint=visit.fingerprint if self._remembers else None,
                marks=_marks_of(job, self._asked) if job.prefix_ids else None,
                session=(job.session or None) if self._asked is None else None,
                hands_over=self.handoffs is not None,
                bootstraps=self.handoffs is not None,
                of_agent=job.of_agent,
            )
        )

    def leave(self, visit: Visit) -> None:
        """The user hangs up on the attempt that is under way."""
        attempt, station = visit.attempt, visit.station
        if station is not None:
            produced = station.produced(attempt)
            self.driver.post(EngineProgress(station.name, (Growth(attempt, produced),)))
        if visit.hinted:
            self._judge_return(visit, kept=False)
        self._forget(visit)
        self.driver.post(ClientGone(attempt))
        if station is not None:
            station.hang_up(attempt)
            if self.handoffs is not None:
                self.handoffs.hang_up(attempt)
            if self.watch is not None:
                self.watch.hung_up(station)

    def over(self, visit: Visit, outcome: Outcome) -> None:
        """The request has ended without an answer."""
        self.recorder.over(outcome, visit.first_at)

    # ---- what the governor decides

    def admitted(self, decision: Admit) -> None:
        """Run the attempt on its engine."""
        attempt = decision.attempt
        visit = self._visits[attempt]
        leg = decision.legs[0]
        station = visit.station = self.stations[leg.engine]
        if visit.hinted:
            self._judge_return(visit, kept=decision.waited_s <= KEPT_WITHIN_S)
        if self.on_admit is not None:
            self.on_admit(visit, decision)
        job, reshaped = visit.job, decision.reshaped
        visit.lane = decision.classed.lane if decision.classed else job.lane
        if reshaped is not None:
            visit.lane = reshaped.lane or visit.lane
            job = job._replace(output_tokens=min(job.output_tokens, reshaped.max_tokens or job.output_tokens))
        if leg.engine in self._followed:
            if job.stream:
                self._growing[leg.engine][attempt] = 0
        elif job.prompt_tokens + job.output_tokens > leg.kv_tokens:
            self._growing[leg.engine][attempt] = leg.kv_tokens - job.prompt_tokens
        if len(decision.legs) > 1 and self.handoffs is not None:
            self.handoffs.start(attempt, job, decision.legs[1].engine, leg.engine)
        else:
            station.start(attempt, job)

    def queued(self, decision: Queue) -> None:
        """It waits; its user is not told."""

    def yielded(self, decision: Yield) -> None:
        """Tell the user."""
        visit = self._visits[decision.attempt]
        self.recorder.yielded(decision.reason.value, visit.first_at, visit.asked_at, self.loop.now)
        if visit.hinted:
            self._judge_return(visit, kept=False)
        self._forget(visit)
        visit.user.yielded(visit, decision)

    def cancelled(self, decision: Cancel) -> None:
        """Stop it at its engine; its user sees a broken answer."""
        visit = self._visits[decision.attempt]
        assert visit.station is not None
        visit.station.hang_up(decision.attempt)
        if self.handoffs is not None:
            self.handoffs.hang_up(decision.attempt)
        self._forget(visit)
        self.driver.post(Released(decision.attempt))
        visit.user.failed(visit)

    def ended(self, decision: Ended) -> None:
        """The governor's own accounts; the world keeps the users', but for what no engine will answer any more."""
        if decision.outcome is Outcome.ENGINE_FAILED:
            visit = self._visits[decision.attempt]
            self._forget(visit)
            self.driver.post(Released(decision.attempt))
            visit.user.failed(visit)

    # ---- what engines report

    def first_token(self, attempt: int) -> None:
        """The answer begins; late news of a user that has left means nothing.

        Where nothing is streamed neither gate nor user see it; the answer is judged by it all the same.
        """
        visit = self._visits.get(attempt)
        if visit is None:
            return
        visit.first_token_at = self.loop.now
        if self.handoffs is not None:
            self.handoffs.fetched(attempt)
        if visit.job.stream:
            self.driver.post(FirstToken(attempt))
            visit.user.first_token(visit)

    def finished(self, attempt: int, output_tokens: int, cached_tokens: int | None = None) -> None:
        """The answer is whole."""
        visit = self._visits.get(attempt)
        if visit is None:
            return
        now, job = self.loop.now, visit.job
        first_token_at = now if visit.first_token_at is None else visit.first_token_at
        self._forget(visit)
        self.driver.post(
            Finished(attempt, job.prompt_tokens, output_tokens, cached_tokens), Released(attempt)
        )
        self.recorder.answered(
            visit.lane, visit.first_at, visit.asked_at, first_token_at, now, job.prompt_tokens, output_tokens
        )
        visit.user.answered(visit)

    def failed(self, attempt: int, kind: FailureKind, sent: Sent, hint_s: float | None) -> None:
        """The engine gave up on it; the governor may try another before it has ended."""
        visit = self._visits.get(attempt)
        if visit is None:
            return
        assert visit.station is not None
        if self.handoffs is not None:
            self.handoffs.hang_up(attempt)
        self._growing[visit.station.name].pop(attempt, None)
        visit.station = visit.first_token_at = None
        self.driver.post(Failed(attempt, kind, sent, hint_s))

    # ---- bookkeeping

    def _forget(self, visit: Visit) -> None:
        if visit.station is not None:
            self._growing[visit.station.name].pop(visit.attempt, None)
            visit.station = None
        del self._visits[visit.attempt]
        visit.attempt = 0

    def _judge_return(self, visit: Visit, *, kept: bool) -> None:
        visit.hinted = False
        self.recorder.returned(visit.first_at, kept=kept)

    def _progress(self, station: Station) -> None:
        """Tell once a second how far streams have come, as far as it matters (`add_station`)."""
        growing = self._growing[station.name]
        if not growing:
            return
        grown = [
            Growth(attempt, tokens)
            for attempt, reserved in growing.items()
            if (tokens := station.produced(attempt)) > reserved
        ]
        if grown:
            self.driver.post(EngineProgress(station.name, tuple(grown)))


def _marks_of(job: Job, asked: dict[int, PrefixMarks] | None) -> Callable[[], PrefixMarks]:
    """Return how its marks are made; a turn that names no session goes on from what its session has `asked` before."""
    if asked is None or not job.session:
        return partial(_marks, job, ())
    before, whole = asked.get(job.session, ()), _whole(job)
    if whole not in before:
        asked[job.session] = (*before[-1:], whole)
    return partial(_marks, job, before)


def _marks(job: Job, asked: PrefixMarks) -> PrefixMarks:
    """Return the marks of a prompt as a door would make them: at the end of each full unit, of what was `asked` before, and of the whole."""
    units = job.prefix_ids[: job.prompt_tokens // PREFIX_UNIT_TOKENS]
    marks = [(unit, PREFIX_UNIT_TOKENS * end) for end, unit in enumerate(units, 1)]
    marks += [each for each in asked if each[1] < job.prompt_tokens]
    return (*sorted(marks, key=itemgetter(1)), _whole(job))


def _whole(job: Job) -> tuple[int, int]:
    last = job.prefix_ids[: job.prompt_tokens // PREFIX_UNIT_TOKENS][-1:]
    return hash((last, job.prompt_tokens)), job.prompt_tokens
