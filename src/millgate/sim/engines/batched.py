"""An engine with continuous batching: `engine.batching` on the loop's time, with an engine's bad manners.

`abort_lag_s` is how long it goes on after a hang-up before it notices; `ignores_hangups` lets it go on to the
end. While it stalls its own time stands still, so that whatever was due comes that much later.
"""

from math import inf

from millgate.core.words import FailureKind, Sent
from millgate.engine.batching import Batch
from millgate.engine.sequences import BatchLimits, EngineSequence, EventKind
from millgate.engine.step_time import StepModel
from millgate.sim.engines.contract import EngineTotals, GaugeReading, Reports, added_up
from millgate.sim.jobs import Job
from millgate.sim.loop import ENGINES, Loop
from millgate.sim.randomness import Draws


class BatchedStation:
    """One simulated inference server; times are virtual seconds."""

    def __init__(
        self,
        name: str,
        loop: Loop,
        reports: Reports,
        model: StepModel,
        limits: BatchLimits,
        *,
        abort_lag_s: float = 0.1,
        ignores_hangups: bool = False,
        dice: Draws | None = None,
    ) -> None:
        self.name = name
        self._loop = loop
        self._reports = reports
        self._model = model
        self._limits = limits
        self._abort_lag_s = abort_lag_s
        self._ignores_hangups = ignores_hangups
        self._dice = dice
        self.refused_share = 0.0
        """Of what it is sent, by chance: a storm of refusals."""
        self._batch = Batch(model, limits)
        self._before = EngineTotals(0, 0, 0)
        self._present: set[int] = set()
        self._lost_s = 0.0
        self._stalled_at: float | None = None
        self._resumes_at = 0.0
        self._dead = False
        self._wake_at = inf

    # ---- what the world asks

    def start(self, attempt: int, job: Job) -> None:
        """Put this attempt into the engine's queue, or fail it when the engine is dead, refuses it or can never run it."""
        if self.refused_share > 0.0 and self._dice is not None and self._dice.next() < self.refused_share:
            self._reports.failed(attempt, FailureKind.STATUS, Sent.REQUEST, None)
        else:
            self.put(EngineSequence(attempt, job.prompt_tokens, job.output_tokens, job.prefix_ids))

    def put(self, sequence: EngineSequence) -> None:
        """Start a sequence that is numbered as its attempt."""
        attempt = sequence.sequence_id
        if self._dead:
            self._reports.failed(attempt, FailureKind.CONNECT, Sent.NONE, None)
            return
        if self._batch.refusal(sequence) is not None:
            self._reports.failed(attempt, FailureKind.STATUS, Sent.REQUEST, None)
            return
        self._batch.add(sequence, self._own_time())
        self._present.add(attempt)
        self._arm()

    def unpin(self, attempt: int) -> None:
        """Let go of the blocks that an attempt has left for another engine to read."""
        if self._batch.unpin(attempt, self._own_time()):
            self._arm()

    def hang_up(self, attempt: int) -> None:
        """Notice after the abort lag that the client has left, or never."""
        if attempt not in self._present:
            return
        if self._ignores_hangups:
            self._batch.depart(attempt, self._own_time())
        elif self._abort_lag_s > 0.0:
            self._loop.at(self._loop.now + self._abort_lag_s, self._abort, attempt, ENGINES)
        else:
            self._abort(attempt)

    def produced(self, attempt: int) -> int:
        """Output tokens made so far."""
        if attempt not in self._present:
            return 0
        return self._batch.produced_tokens(attempt, self._own_time())

    def read(self) -> GaugeReading:
        """Return running, waiting and the share of KV blocks in use."""
        if self._dead:
            return GaugeReading(0, 0, 0.0)
        numbers = self._batch.statistics(self._own_time())
        return GaugeReading(numbers.running, numbers.waiting, numbers.kv_share)

    def totals(self) -> EngineTotals:
        """Return tokens computed, those of lives before a crash included."""
        numbers = self._batch.statistics(self._own_time())
        prefixes = numbers.prefix_queried_tokens, numbers.prefix_hit_tokens
        now = EngineTotals(numbers.prefilled_tokens, numbers.output_tokens, numbers.preemptions, *prefixes)
        return added_up([self._before, now])

    # ---- what troubles do to it

    def change_model(self, model: StepModel) -> None:
        """Take as long for each step as this model says, from the next step on, and after a restart too."""
        self._model = model
        self._batch.change_model(model, self._own_time())
        self._arm()

    def stall(self, for_s: float) -> None:
        """Stand still for this long; stalls that overlap end with the last of them."""
        if self._dead:
            return
        if self._stalled_at is None:
            self._stalled_at = self._resumes_at = self._loop.now
            self._wake_at = inf
        self._resumes_at = max(self._resumes_at, self._loop.now + for_s)
        self._loop.at(self._loop.now + for_s, self._resume, None, ENGINES)

    def crash(self) -> None:
        """Lose everything that runs or waits here and take nothing until `restart`."""
        self._before = self.totals()
        lost = sorted(self._present)
        self._present.clear()
        self._batch = Batch(self._model, self._limits)
        self._dead = True
        self._lost_s = 0.0
        self._stalled_at = None
        self._wake_at = inf
        for attempt in lost:
            self._reports.failed(attempt, FailureKind.BROKEN, Sent.BYTES, None)

    def restart(self) -> None:
        """Come back empty."""
        self._dead = False

    # ---- its own time

    def _own_time(self) -> float:
        at = self._loop.now if self._stalled_at is None else self._stalled_at
        return at - self._lost_s

    def _resume(self, _nothing: None) -> None:
        if self._stalled_at is None or self._loop.now < self._resumes_at:
            return
        self._lost_s += self._loop.now - self._stalled_at
        self._stalled_at = None
        self._arm()

    def _abort(self, attempt: int) -> None:
        if attempt in self._present:
            self._present.discard(attempt)
            self._batch.abort(attempt, self._own_time())
            self._arm()

    def _arm(self) -> None:
        """Be woken when the batch may change next; an alarm that is set for later is simply outrun."""
        if self._stalled_at is not None:
            return
        at = self._batch.next_event_at + self._lost_s
        if at < self._wake_at:
            self._wake_at = at = max(at, self._loop.now)
            self._loop.at(at, self._wake, at, ENGINES)

    def _wake(self, set_for: float) -> None:
        if set_for != self._wake_at or self._stalled_at is not None:
            return
        self._wake_at = inf
        # Own time is a difference: without the second term rounding could leave the event just ahead for ever.
        until = max(self._own_time(), self._batch.next_event_at) if self._lost_s else self._loop.now
        for event in self._batch.advance(until):
            if event.kind is EventKind.FIRST_TOKEN:
                self._reports.first_token(event.sequence_id)
            elif event.kind is EventKind.FINISHED:
                self._present.discard(event.sequence_id)
                cached_tokens = event.hit_tokens if self._limits.prefix_unit_tokens else None
                self._reports.finished(event.sequence_id, event.produced_tokens, cached_tokens)
        self._arm()
