"""Deterministic changes to payloads, as both fuzzers make them."""

import random
from collections.abc import Sequence

MOST_BYTES = 60_000


def mutated(
    seed: bytes, dice: random.Random, seeds: Sequence[bytes], tokens: Sequence[bytes], most_changes: int = 5
) -> bytes:
    """Return the payload after one to so many changes."""
    data = bytearray(seed)
    for _ in range(dice.randint(1, most_changes)):
        at = dice.randint(0, len(data))
        match dice.randrange(7):
            case 0:
                data[at:at] = dice.choice(tokens)
            case 1:
                del data[at : at + dice.randint(1, 8)]
            case 2 if data:
                data[min(at, len(data) - 1)] = dice.randrange(256)
            case 3:
                data[at:at] = data[at : at + dice.randint(1, 60)]
            case 4:
                other = dice.choice(seeds)
                data[at:] = other[dice.randint(0, len(other)) :]
            case 5:
                data += dice.choice(seeds)
            case _:
                del data[at:]
    return bytes(data[:MOST_BYTES])
