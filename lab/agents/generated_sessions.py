"""Sessions of coding agents from laws, so that worlds with prefixes run with no data at hand.

Each session begins with a first prompt; every turn adds its answer and what a tool returned, until the context is full.
The laws go through the quantiles of 360 recorded sessions (callanjfox/kv-cache-tester, Apache-2.0; 23,669 turns). They are p10, p50,
p90 and p99 of a first prompt 15,591, 24,792, 229,829, 576,445 tokens; of what is added 0, 278, 2,770, 16,208; of an answer
106, 213, 881, 3,625, of think times 4, 10, 171, 3,058 s. Here a first prompt has at most 60,000 tokens: the longer ones are
resumed work.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from millgate.sim.jobs import PREFIX_UNIT_TOKENS, Job
from millgate.sim.laws import Law, quantiles
from millgate.sim.randomness import Streams
from millgate.sim.traces.sources import MOST_UNITS, AgentSession, SessionTurn

LONGEST_THINK_S = 300.0
"""After a longer pause no cache is expected to remember."""


@dataclass(frozen=True, slots=True)
class AgentLaws:
    """What sessions are made of; tokens and seconds."""

    first_tokens: Law
    added_tokens: Law
    output_tokens: Law
    think_s: Law
    full_tokens: int = 200_000


AGENTS = AgentLaws(
    first_tokens=quantiles(((0.0, 9_700.0), (0.1, 15_591.0), (0.5, 24_792.0), (1.0, 60_000.0))),
    added_tokens=quantiles(((0.0, 1.0), (0.5, 278.0), (0.9, 2_770.0), (0.99, 16_208.0), (1.0, 32_000.0))),
    output_tokens=quantiles(
        ((0.0, 20.0), (0.1, 106.0), (0.5, 213.0), (0.9, 881.0), (0.99, 3_625.0), (1.0, 8_000.0))
    ),
    think_s=quantiles(((0.0, 1.0), (0.1, 4.0), (0.5, 10.0), (0.9, 171.0), (1.0, LONGEST_THINK_S))),
)


PEOPLE = AgentLaws(
    first_tokens=quantiles(((0.0, 3_000.0), (0.5, 6_000.0), (1.0, 9_000.0))),
    added_tokens=quantiles(((0.0, 20.0), (0.5, 300.0), (1.0, 900.0))),
    output_tokens=quantiles(((0.0, 20.0), (0.5, 200.0), (1.0, 600.0))),
    think_s=quantiles(((0.0, 12.0), (0.5, 60.0), (1.0, 180.0))),
    full_tokens=15_000,
)
"""People who chat about a document: nothing recorded. They read an answer and write for about a minute."""


def drawn_sessions(streams: Streams, laws: AgentLaws = AGENTS) -> Iterator[AgentSession]:
    """Yield sessions for ever."""
    first = streams.draws("first prompt", laws.first_tokens.sample)
    added = streams.draws("added tokens", laws.added_tokens.sample)
    output = streams.draws("answers", laws.output_tokens.sample)
    think = streams.draws("think times", laws.think_s.sample)
    number = 0
    while True:
        number += 1
        turns = []
        context = round(first.next())
        while True:
            answer = max(1, round(output.next()))
            if context + answer > laws.full_tokens:
                break
            turns.append(SessionTurn(_job(number, context, answer), think.next()))
            context += answer + max(1, round(added.next()))
        yield AgentSession(number, tuple(turns))


def _job(session: int, prompt_tokens: int, output_tokens: int) -> Job:
    first_id = session * MOST_UNITS
    units = (prompt_tokens + output_tokens) // PREFIX_UNIT_TOKENS
    return Job(
        0.0,
        prompt_tokens,
        output_tokens,
        prefix_ids=tuple(range(first_id, first_id + units)),
        session=session,
    )
