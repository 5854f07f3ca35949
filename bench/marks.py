"""`python -m bench.marks`: the CPU of the marks of one conversation's prefixes, and of its parsing, which is a part of that.

Twenty messages of 2 KB, one message of 100 KB, and a first question of 1 KB. Only a gate with several engines makes marks, once a
request. The least of all rounds is what the code costs where nothing else runs beside it.
"""

import argparse
import json
import time
from collections.abc import Callable

from millgate.dialects.conversation_bodies import CHAT
from millgate.dialects.conversations import prefix_marks, read_chat
from millgate.dialects.prefix_chain import mark_seed

REQUESTS = 500
"""Of one round: some 10 ms."""
_WORDS = "The quick brown fox jumps over the lazy dog, twice a day. "
SHAPES = {"twenty": (20, 2_000), "long": (1, 100_000), "first": (1, 1_000)}
"""Messages of a conversation, and bytes of each."""


def _body(messages: int, size_bytes: int) -> bytes:
    text = (_WORDS * (size_bytes // len(_WORDS) + 1))[:size_bytes]
    turns = [{"role": ("user", "assistant")[at % 2], "content": text} for at in range(messages)]
    return json.dumps({"model": "m", "messages": turns}, separators=(",", ":")).encode()


def _least_us(work: Callable[[], object], rounds: int) -> float:
    best_s = min(_round_s(work) for _ in range(rounds))
    return round(best_s / REQUESTS * 1e6, 2)


def _round_s(work: Callable[[], object]) -> float:
    began = time.process_time()
    for _ in range(REQUESTS):
        work()
    return time.process_time() - began


def figures(rounds: int) -> dict[str, float]:
    """Return microseconds of CPU by shape, of all and of the parsing in it."""
    seed = mark_seed(b"bench")
    found = {}
    for name, shape in SHAPES.items():
        body = _body(*shape)
        found[f"{name}_us"] = _least_us(lambda body=body: prefix_marks(read_chat, body, seed), rounds)  # type: ignore[misc]
        found[f"{name}_parsing_us"] = _least_us(lambda body=body: CHAT.decode(body), rounds)  # type: ignore[misc]
    return found


def main() -> None:
    """Print all figures as one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.marks", description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=25, help="rounds of each, of which the least counts (25)"
    )
    print(json.dumps(figures(parser.parse_args().rounds)))


if __name__ == "__main__":
    main()
