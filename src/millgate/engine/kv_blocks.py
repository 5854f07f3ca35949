"""The paged KV cache as counts: how many blocks are taken, and how many decoding will take from here on.

A decoding sequence writes one token a step and so takes a new block every `block_tokens` steps. Sequences whose
turn falls on the same step (modulo `block_tokens`) are counted together in one *phase*. The demand of any
number of steps ahead is then a sum over at most `block_tokens` counts, whatever the number of sequences.
"""


class KvBlocks:
    """Counts of blocks; `used` never exceeds `total` as long as the caller asks `steps_that_fit` first."""

    __slots__ = ("_growers", "_phases", "block_tokens", "total", "used")

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
