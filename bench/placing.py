"""`python -m bench.placing`: the CPU of the decision about a long prompt among 1, 8 and 64 engines, by how much the index of prefixes knows.

Every conversation has twenty messages of 2 KB after a system prompt that all share. A *turn* goes on from one that an engine holds. A
*sibling* is a new conversation with that system prompt, a *stranger* has one of its own. `whole` reads the body and makes its marks too;
the others are handed them. What is timed is `Governor.handle` of the arrival, all that it writes included, never the answer. A *place* is the
part of it that depends on engines and marks: what is held of the prompt is looked up and the engines are priced, nothing is written. The index is
full at 200,000 marks: each new one then drops another. The least of all rounds is what the code costs where nothing else runs beside it.
`mb` is the memory of a full index, by the marks of a prompt.
"""

import argparse
import gc
import json
import random
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial

from millgate.core.events import Arrived, Finished, FirstToken, PrefixMarks, Released
from millgate.core.governor import Governor
from millgate.core.governor.assess import assess
from millgate.core.governor.placement import roomy_engine
from millgate.core.routing.prefix_index import MOST_MARKS, PrefixIndex
from millgate.core.settings import EngineSettings, LaneSettings, Settings
from millgate.dialects.conversations import prefix_marks, read_chat
from millgate.dialects.prefix_chain import mark_seed
from millgate.wiring.governor import build_governor

ENGINES = (1, 8, 64)
INDEX_MARKS = (MOST_MARKS // 10, MOST_MARKS)
"""The smaller one grows by as much again while it is measured."""
MESSAGES, MESSAGE_BYTES = 20, 2_000
REQUESTS = 100
"""Of one round: a few milliseconds."""
_SEED = mark_seed(b"bench")
_STREAMS = 2 * REQUESTS
_KV_TOKENS = 1_000_000_000
"""Memory for all conversations on one engine: what bounds the index here is its marks."""


def _body(system: str, name: int, messages: int) -> bytes:
    turns = [
        {"role": ("user", "assistant")[at % 2], "content": f"{name} {at} " + "word " * (MESSAGE_BYTES // 5)}
        for at in range(messages)
    ]
    return json.dumps({"model": "m", "messages": [{"role": "system", "content": system}, *turns]}).encode()


class Fleet:
    """A governor over so many engines that hold conversations of which the index has so many marks."""

    def __init__(self, engines: int, index_marks: int) -> None:
        each = [EngineSettings(str(number), _STREAMS, kv_tokens=_KV_TOKENS) for number in range(engines)]
        lane = LaneSettings("lane", deadline_s=600.0)
        self._gate: Governor = build_governor(Settings((lane,), tuple(each)), 0.0)
        self._now, self._attempts = 0.0, 0
        self._conversations = 5 * index_marks // (4 * MESSAGES)
        self._strangers = self._conversations
        self._chance = random.Random(index_marks + engines)
        for first in range(0, self._conversations, REQUESTS):
            names = range(first, first + REQUESTS)
            self._answered_us([_body("shared", name, MESSAGES - 1) for name in names])
        gc.collect()
        gc.freeze()

    def turns_us(self, *, whole: bool) -> float:
        """Return microseconds of CPU for the next turn of conversations drawn by chance."""
        names = self._chance.sample(range(self._conversations), REQUESTS)
        return self._answered_us([_body("shared", name, MESSAGES) for name in names], whole=whole)

    def place_us(self) -> float:
        """Return microseconds of CPU for finding where the next turn of a conversation drawn by chance would go, others just placed."""
        knowledge, spent_s = self._gate._knowledge, 0.0  # noqa: SLF001 - the part of a decision is not offered by itself
        placement = knowledge.engines.placement
        for name in self._chance.sample(range(self._conversations), REQUESTS):
            body = _body("shared", name, MESSAGES)
            (arrival,) = self._arrivals([body], whole=False)
            request = assess(knowledge, arrival, self._now).request
            began = time.process_time()
            held = placement.held(request.marks, request.prompt_tokens)
            roomy_engine(placement, request, held, self._now)
            spent_s += time.process_time() - began
            self._answered_us([body])
        return spent_s / REQUESTS * 1e6

    def new_us(self, system: str) -> float:
        """Return microseconds of CPU for the first request of new conversations; without a `system` prompt each has its own."""
        names = range(self._strangers, self._strangers + REQUESTS)
        self._strangers += REQUESTS
        return self._answered_us([_body(system or f"own {name}", name, MESSAGES) for name in names])

    def _answered_us(self, bodies: list[bytes], *, whole: bool = False) -> float:
        """Return microseconds of CPU for each arrival; all are answered afterwards, untimed."""
        arrivals = list(self._arrivals(bodies, whole=whole))
        began = time.process_time()
        decisions = [self._gate.handle(arrival, self._now) for arrival in arrivals]
        spent_s = time.process_time() - began
        assert all(type(decision).__name__ == "Admit" for (decision,) in decisions)
        for arrival in arrivals:
            self._now += 0.001
            for event in (FirstToken, Finished, Released):
                self._gate.handle(event(arrival.attempt), self._now)
        return spent_s / len(arrivals) * 1e6

    def _arrivals(self, bodies: list[bytes], *, whole: bool) -> Iterator[Arrived]:
        for body in bodies:
            self._attempts += 1
            marks: Callable[[], PrefixMarks] = partial(prefix_marks, read_chat, body, _SEED)
            if not whole:
                marks = partial(tuple, marks())
            yield Arrived(
                self._attempts, prompt_bytes=len(body), body_bytes=len(body), max_tokens=64, marks=marks
            )


def figures(rounds: int) -> dict[str, float]:
    """Return microseconds of CPU for each decision, by its kind, the engines and the marks in the index."""
    found = {}
    for index_marks in INDEX_MARKS:
        for engines in ENGINES:
            fleet = Fleet(engines, index_marks)
            kinds: dict[str, Callable[[], float]] = {
                "place": fleet.place_us,
                "turn": partial(fleet.turns_us, whole=False),
                "whole_turn": partial(fleet.turns_us, whole=True),
                "sibling": partial(fleet.new_us, "shared"),
                "stranger": partial(fleet.new_us, ""),
            }
            for kind, measured_us in kinds.items():
                name = f"{kind}_{engines}_engines_{index_marks}_marks_us"
                found[name] = round(min(measured_us() for _ in range(rounds)), 1)
    return found


def index_mb(marks_each: int) -> float:
    """Return the megabytes of an index that is full of prompts with so many marks of their own."""
    lots = random.Random(marks_each)
    tracemalloc.start()
    index = PrefixIndex()
    engine = index.enrol("0", None)
    for _ in range(MOST_MARKS // marks_each):
        marks = [(lots.getrandbits(63), MESSAGE_BYTES * (at + 1)) for at in range(marks_each)]
        index.placed(engine, tuple(marks), marks_each * MESSAGE_BYTES // 4)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return round(taken / 1e6, 1)


def main() -> None:
    """Print all figures as one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.placing", description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=10, help="rounds of each, of which the least counts (10)"
    )
    found = figures(parser.parse_args().rounds)
    print(json.dumps(found | {f"{each}_marks_each_mb": index_mb(each) for each in (1, MESSAGES)}))


if __name__ == "__main__":
    main()
