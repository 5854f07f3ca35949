"""Continuous batching in virtual time, as vLLM's V1 scheduler does it; no clock, no work per token.

At each step boundary: sequences that run come first, one token each; what is left of the step's token budget
goes to prompts in order of arrival, in chunks. Blocks of KV cache are taken on demand; when they run out the
youngest running sequence is preempted, loses its cache and waits at the front to be computed again. A prompt is
admitted when all of it fits beside a small watermark. What arrives or is aborted during a step counts from the
next boundary on. (`Scheduler` holds these rules, this module the time.)

Steps without a chunk need no look one by one. Between two changes of the batch every sequence gets one token a
step and the cache grows by one token per sequence a step. So a *segment* of many steps is one object. Its end
comes from the model's closed form, its blocks from `KvBlocks`. A segment lasts until a sequence finishes or
blocks run short, and is cut to the step in progress when a request arrives that could be admitted, or is aborted.
That gives what stepping one by one gives: counts exactly, times up to rounding.

Prior art: vLLM V1 (running first, one budget, recompute from the tail, whole prompts reserved, watermark). Left
out: priorities, speculative tokens, swapping, several partial prompts at once. With `BatchLimits.prefix_unit_tokens` what
sequences have in common is computed and stored once (`prefix_cache`).
"""

from collections.abc import Sequence
from math import inf

from millgate.engine.scheduler import Scheduler
from millgate.engine.sequences import BatchEvent, BatchLimits, BatchStatistics, EngineSequence
from millgate.engine.step_time import StepModel


class Batch:
    """One engine in virtual time. Times are seconds on the caller's clock and never go backward.

    Every verb takes the time at which it happens and first lets the steps that end by then go by; what happened
    meanwhile waits for the next `advance`.
    """

    def __init__(self, model: StepModel, limits: BatchLimits) -> None:
        self.limits = limits
        self._scheduler = Scheduler(limits)
        self._room_tokens = limits.blocks * limits.block_tokens
        self._model = model
        self._next_model = model
        self._starts_at = 0.0
        self._ends_at = inf
        self._planned_steps = 0
        self._peak_present = 0
        self._aborted = 0

    @property
    def next_event_at(self) -> float:
        """When to call `advance` next so that nothing is noticed late; infinity while idle."""
        events = self._scheduler.events
        return events[0].at_s if events else self._ends_at

    @property
    def running(self) -> int:
        """Sequences in the batch, as of the last verb."""
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        """Sequences in the queue, as of the last verb."""
        return self._scheduler.waiting

    def refusal(self, sequence: EngineSequence) -> str | None:
        """Say why this engine can never serve this sequence, naming field and limit; None when it can."""
        if sequence.prompt_tokens < 1:
            return f"prompt_tokens: must be at least 1, got {sequence.prompt_tokens}"
        if sequence.output_tokens < 1:
            return f"output_tokens: must be at least 1, got {sequence.output_tokens}"
        # The last token is never cached.
        most = sequence.prompt_tokens + sequence.output_tokens - 1
        if most > self._room_tokens:
            return (
                f"prompt_tokens + output_tokens - 1: must be at most {self._room_tokens} (the KV cache),"
                f" got {most}"
            )
        return None

    def add(self, sequence: EngineSequence, now: float) -> None:
        """Put a sequence at the end of the queue; ValueError when it can never run or its id is in use."""
        problem = self.refusal(sequence)
        if problem is not None:
            raise ValueError(problem)
        scheduler = self._scheduler
        if sequence.sequence_id in scheduler.sequences:
            raise ValueError(f"sequence_id: {sequence.sequence_id} is in use")
        self._run_to(now)
        cut = scheduler.enqueue(sequence)
        self._peak_present = max(self._peak_present, scheduler.present)
        if self._ends_at == inf:
            self._start(now)
        elif cut:
            self._cut(now)

    def abort(self, sequence_id: int, now: float) -> bool:
        """End a sequence: at once while it waits, at the end of the step in progress while it runs.

        False when it is not here (any more). No event follows.
        """
        self._run_to(now)
        progress = self._scheduler.sequences.get(sequence_id)
        if progress is None:
            return False
        self._aborted += 1
        self._scheduler.waste.depart(progress, self.steps_at(now))
        if self._scheduler.drop(progress):
            self._cut(now)
        return True

    def unpin(self, sequence_id: int, now: float) -> bool:
        """Free the blocks that an ended sequence has kept (`EngineSequence.pins_kv`); False when it keeps none."""
        self._run_to(now)
        if not self._scheduler.blocks.unpin(sequence_id):
            return False
        if self._ends_at == inf:
            self._start(now)
        else:
            self._cut(now)
        return True

    def depart(self, sequence_id: int, now: float) -> bool:
        """Mark that this sequence's client has left; it runs on, and its tokens count as wasted."""
        self._run_to(now)
        progress = self._scheduler.sequences.get(sequence_id)
        return progress is not None and self._scheduler.waste.depart(progress, self.steps_at(now))

    def change_model(self, model: StepModel, now: float) -> None:
        """Let steps take as long as `model` says, from the end of the step in progress on."""
        self._run_to(now)
        self._next_model = model
        self._cut(now)

    def advance(self, until: float) -> Sequence[BatchEvent]:
        """Let time go by to `until` and return what happened up to and with it, in order of time."""
        self._run_to(until)
        scheduler = self._scheduler
        events = scheduler.events
        if not events:
            return ()
        scheduler.events = []
        return events

    def steps_at(self, now: float) -> int:
        """Count the steps that are over by `now`; `now` must not be beyond `next_event_at`."""
        return self._scheduler.steps + self._whole_steps(now)

    def time_of_step(self, step: int) -> float:
        """When step number `step` ends: the end of the segment at the latest, where the batch may change."""
        ahead = step - self._scheduler.steps
        if ahead <= 0:
            return self._starts_at
        if ahead >= self._planned_steps:
            return self._ends_at
        return self._end_of(ahead)

    def produced_tokens(self, sequence_id: int, now: float) -> int:
        """Output tokens that a sequence has by `now`; KeyError when it is not here."""
        self._run_to(now)
        return self._scheduler.sequences[sequence_id].produced_by(self.steps_at(now))

    def statistics(self, now: float) -> BatchStatistics:
        """Return the engine's numbers at `now`, whole steps only."""
        self._run_to(now)
        scheduler = self._scheduler
        cache = scheduler.blocks.cache
        ahead = self._whole_steps(now)
        wasted_tokens, orphan_tokens = scheduler.waste.tokens(scheduler.steps + ahead)
        return BatchStatistics(
            running=len(scheduler.running),
            waiting=scheduler.waiting,
            peak_running=scheduler.peak_running,
            peak_present=self._peak_present,
            kv_used_blocks=scheduler.blocks.used + scheduler.blocks.demand(scheduler.steps, ahead),
            kv_total_blocks=scheduler.blocks.total,
            pinned=scheduler.blocks.pinned,
            steps=scheduler.steps + ahead,
            began=scheduler.began,
            finished=scheduler.finished,
            aborted=self._aborted,
            preemptions=scheduler.preemptions,
            prefilled_tokens=scheduler.prefilled_tokens,
            output_tokens=scheduler.output_tokens + ahead * scheduler.decodes,
            wasted_tokens=wasted_tokens,
            orphan_tokens=orphan_tokens,
            prefix_queried_tokens=0 if cache is None else cache.queried_tokens,
            prefix_hit_tokens=0 if cache is None else cache.hit_tokens,
        )

    def reset_peaks(self, now: float) -> None:
        """Let both peaks start again from what is here now."""
        self._run_to(now)
        self._scheduler.peak_running = len(self._scheduler.running)
        self._peak_present = self._scheduler.present

    def _run_to(self, now: float) -> None:
        while self._ends_at <= now:
            at = self._ends_at
            self._scheduler.complete(self._planned_steps, at)
            self._start(at)

    def _start(self, at: float) -> None:
        """Begin the next step or segment at this boundary."""
        scheduler = self._scheduler
        self._model = model = self._next_model
        self._starts_at = at
        chunks = scheduler.plan(at)
        if chunks:
            self._planned_steps = 1
            self._ends_at = at + model.step_s(scheduler.decodes, scheduler.kv_tokens, chunks)
        elif scheduler.decodes:
            self._planned_steps = scheduler.steps_ahead()
            self._ends_at = self._end_of(self._planned_steps)
        else:
            self._planned_steps = 0
            self._ends_at = inf

    def _end_of(self, steps: int) -> float:
        """When this many steps of the segment are over."""
        scheduler = self._scheduler
        return self._starts_at + self._model.decode_steps_s(scheduler.decodes, scheduler.kv_tokens, steps)

    def _cut(self, now: float) -> None:
        """End the segment with the step in progress, so that a change counts from its end on."""
        steps = self._whole_steps(now) + 1
        if steps < self._planned_steps:
            self._planned_steps = steps
            self._ends_at = self._end_of(steps)

    def _whole_steps(self, now: float) -> int:
        """Steps of the segment that are over by `now`; always fewer than planned."""
        if self._planned_steps <= 1:
            return 0
        scheduler = self._scheduler
        elapsed = max(0.0, now - self._starts_at)
        steps = self._model.decode_steps_within(scheduler.decodes, scheduler.kv_tokens, elapsed)
        return min(steps, self._planned_steps - 1)
