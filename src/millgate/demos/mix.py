"""What the users of a demo ask for: Poisson arrivals with sizes from one seed, and the bodies that carry them."""

import json
import math
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from millgate.demos.users import Wish

BYTES_PER_TOKEN = 4
"""How the embedded engine counts the tokens of a text."""
WORD = "word"
"""Exactly one token of that count."""
NUMBER_TOKENS = 3
"""Every prompt begins with its own twelve-digit number: equal prompts would be each other's retries to a gate."""


class Mix(NamedTuple):
    """A mix of sizes: log-normal around these means, in tokens, within these bounds."""

    mean_prompt_tokens: float = 600.0
    mean_output_tokens: float = 150.0
    spread: float = 0.6
    most_prompt_tokens: int = 4000
    most_output_tokens: int = 1000


def sizes(mix: Mix, dice: random.Random) -> Iterator[tuple[int, int]]:
    """Draw prompt and output tokens for ever. `spread` is sigma: 0.6 is a coefficient of variation of 0.66."""
    shift = mix.spread**2 / 2
    while True:
        prompt = dice.lognormvariate(math.log(mix.mean_prompt_tokens) - shift, mix.spread)
        output = dice.lognormvariate(math.log(mix.mean_output_tokens) - shift, mix.spread)
        yield (
            min(mix.most_prompt_tokens, max(NUMBER_TOKENS + 1, round(prompt))),
            min(mix.most_output_tokens, max(1, round(output))),
        )


def poisson_wishes(mix: Mix, *, rate_per_s: float, duration_s: float, seed: int) -> Iterator[Wish]:
    """Draw the arrivals of `duration_s` at this mean rate; the same seed gives the same wishes."""
    clock, at_s = random.Random(seed), 0.0
    for prompt_tokens, output_tokens in sizes(mix, random.Random(seed + 1)):
        at_s += clock.expovariate(rate_per_s)
        if at_s >= duration_s:
            return
        yield Wish(at_s, prompt_tokens, output_tokens)


class Encoder:
    """Writes request bodies that the embedded engine reads as so many tokens; the gate sees only their bytes.

    The true length of the answer rides in a field of its own, which no gate reads.
    """

    def __init__(self, *, tokens_per_event: int, max_tokens: int | None) -> None:
        fields: dict[str, Any] = {
            "model": "demo",
            "stream": True,
            "millgate_tokens_per_event": tokens_per_event,
        }
        if max_tokens is not None:
            fields["max_tokens"] = max_tokens
        self._tail = json.dumps(fields, separators=(",", ":"))[1:]

    def __call__(self, number: int, wish: Wish) -> bytes:
        """Write the body of one request."""
        text = f"{number:0{NUMBER_TOKENS * BYTES_PER_TOKEN}d}" + WORD * (wish.prompt_tokens - NUMBER_TOKENS)
        return (
            f'{{"messages":[{{"role":"user","content":"{text}"}}],'
            f'"millgate_output_tokens":{wish.output_tokens},{self._tail}'
        ).encode("ascii")
