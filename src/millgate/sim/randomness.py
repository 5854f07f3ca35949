"""Dice with names: one independent stream per purpose, all from one seed.

Two policies compared under one seed meet the same arrivals, lengths and tempers (common random numbers). For
a stream belongs to its purpose and not to the order in which things happen to be drawn.
"""

from collections.abc import Callable
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

# Drawing one by one costs a numpy call each; a block of this size makes it a list access.
_BLOCK = 1024

Sample = Callable[[np.random.Generator, int], NDArray[np.float64]]
"""Draws that many independent numbers of one law."""


class Streams:
    """Independent generators by purpose and number; equal seed and purpose give equal streams."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def generator(self, purpose: str, number: int = 0) -> np.random.Generator:
        """Return the generator of this purpose, from its beginning."""
        key = (crc32(purpose.encode()), number)
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence(self.seed, spawn_key=key)))

    def draws(self, purpose: str, sample: Sample, number: int = 0) -> "Draws":
        """Return numbers of one law, one by one, from the stream of this purpose."""
        return Draws(sample, self.generator(purpose, number))


class Draws:
    """Numbers of one law, handed out one by one and drawn in blocks."""

    def __init__(self, sample: Sample, generator: np.random.Generator) -> None:
        self._sample = sample
        self._generator = generator
        self._block: list[float] = []

    def next(self) -> float:
        """Return the next number."""
        if not self._block:
            self._block = self._sample(self._generator, _BLOCK)[::-1].tolist()
        return self._block.pop()
