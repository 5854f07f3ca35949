"""Users who ask one after the other: what an engine alone can do."""

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import Final

from lab.demos.patient_users import PatientUser, UserManners
from millgate.demos.connection import Endpoint
from millgate.demos.processes import ChildError
from millgate.demos.stage import EngineSetup
from millgate.demos.users import Encode, Mix, Story, UserEnding, Wish, sizes
from millgate.engine.profile import find_profile, scaled

LEAST_WARM_ANSWERS: Final = 2.0
LEAST_MEASURED_ANSWERS: Final = 4.0
"""A batch is full of answers at every stage after two mean ones; in fewer than four more hardly any has ended."""


async def closed_loop(
    endpoint: Endpoint,
    wishes: Iterator[Wish],
    encode: Encode,
    *,
    users: int,
    warmup_s: float,
    measured_s: float,
    on_story: Callable[[Story], None],
) -> float:
    """Keep so many users asking one after the other, and return whole answers a second after the warm-up; ChildError without one.

    Their patience outlasts the run, so that nothing but the engine limits them.
    """
    loop = asyncio.get_running_loop()
    measured_from = loop.time() + warmup_s
    ends_at = measured_from + measured_s
    manners = UserManners(patience_s=warmup_s + measured_s, refreshes=0, returns=0)
    whole: list[float] = []
    numbered = enumerate(wishes)

    async def keep_asking() -> None:
        for number, wish in numbered:
            story = await PatientUser(endpoint, manners).live(encode(number, wish))
            if story.ending is not UserEnding.WHOLE:
                raise ChildError(f"the engine alone did not answer whole: {story.ending}")
            on_story(story)
            if measured_from <= loop.time() < ends_at:
                whole.append(loop.time())

    asking = [asyncio.create_task(keep_asking()) for _ in range(users)]
    done, pending = await asyncio.wait(
        asking, timeout=warmup_s + measured_s, return_when=asyncio.FIRST_EXCEPTION
    )
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    # All are asked before one is raised: Python prints a traceback of each that is not.
    for error in [task.exception() for task in done]:
        if error is not None:
            raise error
    if not whole:
        raise ChildError(f"the engine alone ended no answer in {measured_s:.1f} s")
    return len(whole) / measured_s


def batched_answer_s(setup: EngineSetup, prompt_tokens: float, output_tokens: float) -> float:
    """Return how long an engine whose batch is full takes for an answer of this length, in real seconds."""
    prior = scaled(find_profile(setup.profile), setup.time_scale).prior()
    pace_s = prior.tpot_base_s + setup.max_num_seqs * prior.tpot_per_stream_s
    return prior.ttft_base_s + prior.ttft_per_token_s * prompt_tokens + output_tokens * pace_s


def closed_wishes(mix: Mix, seed: int) -> Iterator[Wish]:
    """Draw wishes without a time, for users that ask one after the other."""
    for prompt_tokens, output_tokens in sizes(mix, random.Random(seed)):
        yield Wish(0.0, prompt_tokens, output_tokens)
