"""The KV memory of one engine: blocks of running sequences, prefixes that they share, and prompts kept for other engines.

The paged cache is kept as counts: how many blocks are taken, and how many decoding will take from here on. A decoding
sequence writes one token a step and so takes a new block every `block_tokens` steps. Sequences whose turn falls on the
same step (modulo `block_tokens`) are counted together in one *phase*. The demand of any number of steps ahead is then a
sum over at most `block_tokens` counts, whatever the number of sequences.
"""

from millgate.engine.prefix_cache import NO_HIT, PrefixCache, PrefixHit
from millgate.engine.sequences import BatchLimits, SequenceProgress


class KvBlocks:
    """Counts of blocks; `used` never exceeds `total` as long as the caller asks `steps_that_fit` first."""

    def __init__(self, total: int, block_tokens: int) -> None:
        self.total = total
        self.block_tokens = block_tokens
        self.used = 0
        self._growers = 0
        self._phases = [0] * block_tokens

    @property
    def free(self) -> int:
        """Blocks that no sequence holds."""
        return self.total - self.used

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold this many tokens of one sequence."""
        return -(-tokens // self.block_tokens)

    def join(self, step: int, queued_tokens: int) -> int:
        """Count in a sequence that decodes from `step` on with `queued_tokens` cached; return its phase."""
        phase = (step - queued_tokens) % self.block_tokens
        self._phases[phase] += 1
        self._growers += 1
        return phase

    def leave(self, phase: int) -> None:
        """Count out a sequence that stops decoding; its blocks are freed by the caller."""
        self._phases[phase] -= 1
        self._growers -= 1

    def demand(self, step: int, steps: int = 1) -> int:
        """Blocks that decoding takes during `steps` steps from `step` on."""
        if steps == 1:
            return self._phases[step % self.block_tokens]
        cycles, rest = divmod(steps, self.block_tokens)
        first = step % self.block_tokens
        last = first + rest
        blocks = cycles * self._growers + sum(self._phases[first:last], 0)
        if last > self.block_tokens:
            blocks += sum(self._phases[: last - self.block_tokens])
        return blocks

    def steps_that_fit(self, step: int, most: int) -> int:
        """Steps from `step` on, at most `most`, whose demand the free blocks cover."""
        free = self.total - self.used
        if free >= self._growers * (most // self.block_tokens + 1):
            return most
        cycles, rest = divmod(free, self._growers)
        steps = cycles * self.block_tokens
        while steps < most:
            rest -= self._phases[(step + steps) % self.block_tokens]
            if rest < 0:
                return steps
            steps += 1
        return most


class KvMemory(KvBlocks):
    """Blocks, with a prefix cache where the limits ask for one.

    A *pinned* sequence has ended and keeps its blocks until `unpin`: an engine that only prefills keeps a prompt's KV until
    the engine that decodes has read it.
    """

    def __init__(self, limits: BatchLimits) -> None:
        super().__init__(limits.blocks, limits.block_tokens)
        self.cache: PrefixCache | None = None
        if limits.prefix_unit_tokens:
            self.cache = PrefixCache(limits.prefix_unit_tokens, limits.block_tokens)
        self._pinned: dict[int, SequenceProgress] = {}

    @property
    def pinned(self) -> int:
        """Sequences that have ended and keep their blocks."""
        return len(self._pinned)

    def look_up(self, progress: SequenceProgress, spare_blocks: int) -> PrefixHit:
        """Return what the cache has of a sequence when so many blocks may be used."""
        if self.cache is None:
            return NO_HIT
        self.cache.keep_within(spare_blocks)
        return self.cache.find(progress.sequence, progress.target_tokens)

    def reuse(self, progress: SequenceProgress, hit: PrefixHit) -> int:
        """Let a sequence use what was found for it; return the tokens of it."""
        if self.cache is None:
            return 0
        is_first = progress.sequence.is_looked_up and not progress.has_begun
        return self.cache.join(progress.sequence, hit, is_first=is_first)

    def name(self, progress: SequenceProgress, begin_tokens: int, end_tokens: int) -> None:
        """Name what becomes full while a sequence grows from `begin_tokens` to `end_tokens`."""
        if self.cache is not None:
            self.cache.name(progress.sequence, begin_tokens, end_tokens)

    def settle(self) -> None:
        """Evict what was idle for what has been taken, before anything else becomes idle."""
        if self.cache is not None:
            self.cache.keep_within(self.free)

    def give_back(self, progress: SequenceProgress) -> None:
        """Free the blocks of a sequence; what it has named stays in the cache."""
        self.used -= self.blocks_for(progress.cached_tokens)
        if self.cache is not None:
            # Only an answer's units can be without a name by now.
            self.cache.name(progress.sequence, progress.target_tokens, progress.cached_tokens)
            self.used += self.cache.leave(progress.sequence)

    def pin(self, progress: SequenceProgress) -> None:
        """Keep the blocks of a sequence that ends."""
        self._pinned[progress.sequence.sequence_id] = progress

    def unpin(self, sequence_id: int) -> bool:
        """Free the blocks of a pinned sequence; False when there is none of this id."""
        progress = self._pinned.pop(sequence_id, None)
        if progress is None:
            return False
        self.settle()
        self.give_back(progress)
        return True
