"""Which sequence gets which tokens in the next step: vLLM's V1 rules, counted in steps.

`plan` is called at a step boundary and says what the next step holds; `complete` tells how many steps went by.
Decoding sequences are kept by the step at which they finish, prompts in a queue, running ones in an ordered dictionary
whose end is the youngest. Nothing here walks over all sequences.
"""

from collections.abc import Sequence

from millgate.engine.kv_memory import KvMemory
from millgate.engine.prefix_cache import PrefixHit
from millgate.engine.queues import FinishOrder, WaitingQueue, Waste
from millgate.engine.sequences import (
    BatchEvent,
    BatchLimits,
    EngineSequence,
    EventKind,
    SequenceProgress,
    SequenceState,
)
from millgate.engine.step_time import PromptChunk


class Scheduler:
    """Waiting and running sequences, their blocks, and the rules; `steps` counts the steps that are over."""

    def __init__(self, limits: BatchLimits) -> None:
        self.limits = limits
        self.blocks = KvMemory(limits)
        self.waste = Waste()
        self.sequences: dict[int, SequenceProgress] = {}
        self.running: dict[int, SequenceProgress] = {}
        self.events: list[BatchEvent] = []
        self.steps = 0
        self.decodes = 0
        self.kv_tokens = 0
        self.peak_running = 0
        self.began = 0
        self.finished = 0
        self.preemptions = 0
        self.prefilled_tokens = 0
        self.output_tokens = 0
        self._queue = WaitingQueue()
        self._chunks: list[tuple[SequenceProgress, int]] = []
        self._partial: SequenceProgress | None = None
        self._finishing = FinishOrder()
        self._leaving: list[SequenceProgress] = []
        self._preempted = False
        self._watermark_blocks = int(limits.watermark_share * limits.blocks)

    @property
    def waiting(self) -> int:
        """Sequences in the queue."""
        return self._queue.count

    @property
    def present(self) -> int:
        """Sequences that run or wait, those included that leave at the next boundary."""
        return len(self.running) + self.waiting

    def enqueue(self, sequence: EngineSequence) -> bool:
        """Put a new sequence at the end of the queue; True when it could be admitted at the next boundary.

        A sequence that waits through a step without chunks is blocked until another leaves: blocks only get fewer.
        """
        progress = self.sequences[sequence.sequence_id] = SequenceProgress(sequence)
        queue = self._queue
        queue.add(progress)
        return queue.count == 1 and len(self.running) < self.limits.max_num_seqs

    def drop(self, progress: SequenceProgress) -> bool:
        """End a sequence for good, a running one at the next boundary; True when that may let another in."""
        del self.sequences[progress.sequence.sequence_id]
        if progress.state is not SequenceState.WAITING:
            progress.state = SequenceState.LEAVING
            self._leaving.append(progress)
            return True
        was_first = self._queue.drop(progress)
        self.waste.settle(progress)
        return was_first and self.waiting > 0 and len(self.running) < self.limits.max_num_seqs

    def plan(self, at_s: float) -> Sequence[PromptChunk]:
        """Decide the next step: preempt what has no room, continue the partial prompt, admit others."""
        blocks = self.blocks
        self._preempted = False
        if blocks.total - blocks.used < self.decodes:
            while blocks.demand(self.steps) > blocks.free:
                self._preempt_youngest(at_s)
        if self._partial is None and not self._queue.count:
            return ()
        budget = self.limits.max_num_batched_tokens - self.decodes
        if self._partial is not None and budget > 0:
            budget -= self._continue(self._partial, budget, at_s)
        if self._queue.count and budget > 0 and not self._preempted:
            self._admit(budget)
        return [PromptChunk(progress.cached_tokens, tokens) for progress, tokens in self._chunks]

    def steps_ahead(self) -> int:
        """Steps without chunks that go by before the batch changes of itself: at least 1, given decodes."""
        if self._preempted:
            return 1
        return self.blocks.steps_that_fit(self.steps, self._finishing.next_step() - self.steps)

    def complete(self, steps: int, at_s: float) -> None:
        """Let `steps` planned steps go by: tokens are made, prompts get ahead, sequences finish and leave."""
        if self.decodes:
            grown = steps * self.decodes
            self.blocks.used += self.blocks.demand(self.steps, steps)
            self.kv_tokens += grown
            self.output_tokens += grown
        self.blocks.settle()
        self.steps += steps
        while (progress := self._finishing.take(self.steps)) is not None:
            self._finish(progress, at_s)
        if self._chunks:
            for prefilled, tokens in self._chunks:
                self._advance_prompt(prefilled, tokens, at_s)
            self._chunks.clear()
        if self._leaving:
            self._see_off()

    def _advance_prompt(self, progress: SequenceProgress, tokens: int, at_s: float) -> None:
        """Count a chunk as cached; the chunk that completes the prompt makes a token."""
        progress.cached_tokens += tokens
        self.prefilled_tokens += tokens
        if progress.cached_tokens < progress.target_tokens:
            self._partial = progress
            return
        if progress is self._partial:
            self._partial = None
        kind = EventKind.RESUMED if progress.produced_tokens else EventKind.FIRST_TOKEN
        progress.produced_tokens += 1
        self.output_tokens += 1
        if progress.state is SequenceState.LEAVING:
            return
        self._tell(at_s, progress, kind)
        if progress.produced_tokens < progress.sequence.output_tokens:
            self._join(progress)
        else:
            self._finish(progress, at_s)

    def _join(self, progress: SequenceProgress) -> None:
        """Let a prefilled sequence decode from the next step on."""
        progress.state = SequenceState.DECODING
        progress.joined_step = step = self.steps
        progress.finish_step = step + progress.sequence.output_tokens - progress.produced_tokens
        progress.phase = self.blocks.join(step, progress.cached_tokens)
        self.decodes += 1
        self.kv_tokens += progress.cached_tokens
        self._finishing.add(progress)

    def _finish(self, progress: SequenceProgress, at_s: float) -> None:
        self._stop(progress)
        if progress.sequence.pins_kv:
            self.blocks.pin(progress)
        else:
            self.blocks.give_back(progress)
        progress.state = SequenceState.OVER
        sequence_id = progress.sequence.sequence_id
        del self.running[sequence_id], self.sequences[sequence_id]
        self.finished += 1
        self._tell(at_s, progress, EventKind.FINISHED)
        if progress.departed_at_tokens >= 0:
            self.waste.settle(progress)

    def _see_off(self) -> None:
        """Take out the sequences that were aborted during the last step."""
        for progress in self._leaving:
            self._release(progress)
            progress.state = SequenceState.OVER
            del self.running[progress.sequence.sequence_id]
            self.waste.settle(progress)
        self._leaving.clear()

    def _release(self, progress: SequenceProgress) -> None:
        self._stop(progress)
        self.blocks.give_back(progress)

    def _stop(self, progress: SequenceProgress) -> None:
        """Let a running sequence decode or prefill no further."""
        if progress.phase >= 0:
            made = self.steps - progress.joined_step
            progress.produced_tokens += made
            progress.cached_tokens += made
            self.blocks.leave(progress.phase)
            progress.phase = -1
            self.decodes -= 1
            self.kv_tokens -= progress.cached_tokens
        elif progress is self._partial:
            self._partial = None

    def _preempt_youngest(self, at_s: float) -> None:
        """Send the youngest running sequence back to the front of the queue, its cache lost."""
        _, progress = self.running.popitem()
        self._release(progress)
        progress.state = SequenceState.WAITING
        progress.cached_tokens = 0
        progress.target_tokens = progress.sequence.prompt_tokens + progress.produced_tokens
        self._queue.put_back(progress)
        self.preemptions += 1
        self._preempted = True
        self._tell(at_s, progress, EventKind.PREEMPTED)

    def _continue(self, partial: SequenceProgress, budget: int, at_s: float) -> int:
        """Give the partial prompt its next chunk, or preempt it for want of blocks; return tokens used.

        It is the youngest running sequence: no sequence was admitted behind it, for it took the whole budget.
        """
        tokens = min(partial.target_tokens - partial.cached_tokens, budget)
        blocks = self.blocks
        needed = blocks.blocks_for(partial.cached_tokens + tokens) - blocks.blocks_for(partial.cached_tokens)
        if needed > blocks.free - blocks.demand(self.steps):
            self._preempt_youngest(at_s)
            return 0
        blocks.used += needed
        self._schedule(partial, tokens)
        return tokens

    def _schedule(self, progress: SequenceProgress, tokens: int) -> None:
        """Put the next `tokens` of a prompt into the step that is planned."""
        self._chunks.append((progress, tokens))
        self.blocks.name(progress, progress.cached_tokens, progress.cached_tokens + tokens)

    def _admit(self, budget: int) -> None:
        """Let waiting sequences run, first come first, while budget, sequences and blocks last."""
        queue, running, blocks = self._queue, self.running, self.blocks
        spare = blocks.free - blocks.demand(self.steps)
        while budget > 0 and len(running) < self.limits.max_num_seqs:
            progress = queue.first()
            if progress is None:
                return
            hit = blocks.look_up(progress, spare)
            # What running sequences use of what was found costs nothing more.
            shared = 0 if blocks.cache is None else hit.in_use * blocks.cache.unit_blocks
            taken = blocks.blocks_for(progress.target_tokens) - shared
            if taken + (self._watermark_blocks if running else 0) > spare:
                return
            queue.take()
            self._begin(progress, hit)
            tokens = progress.target_tokens - progress.cached_tokens
            if tokens > budget:
                tokens = budget
                taken = blocks.blocks_for(progress.cached_tokens + tokens) - shared
            blocks.used += taken
            spare -= taken
            budget -= tokens
            self._schedule(progress, tokens)

    def _begin(self, progress: SequenceProgress, hit: PrefixHit) -> None:
        """Move one sequence from waiting to running, with what the prefix cache has of it."""
        sequence = progress.sequence
        self.running[sequence.sequence_id] = progress
        self.peak_running = max(self.peak_running, len(self.running))
        progress.state = SequenceState.PREFILLING
        progress.cached_tokens = self.blocks.reuse(progress, hit)
        if not progress.has_begun:
            if sequence.is_handed_over:
                self._take_over(progress)
            progress.has_begun = True
            progress.hit_tokens = progress.cached_tokens
            self.began += 1

    def _take_over(self, progress: SequenceProgress) -> None:
        """Begin with the KV of the whole prompt, which another engine has computed; the last token is computed here."""
        found, progress.cached_tokens = progress.cached_tokens, progress.target_tokens - 1
        self.blocks.name(progress, found, progress.cached_tokens)

    def _tell(self, at_s: float, progress: SequenceProgress, kind: EventKind) -> None:
        sequence_id = progress.sequence.sequence_id
        self.events.append(
            BatchEvent(at_s, sequence_id, kind, self.steps, progress.produced_tokens, progress.hit_tokens)
        )
