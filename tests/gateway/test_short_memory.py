"""Long prompts before one embedded engine that holds few of them: what runs, what is live, and what waits for what."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from gateway.harness import run
from gateway.test_two_engines import asking
from gateway.two_engines import TwoEngines, ask, gating
from millgate.core.settings import EngineSettings, LaneSettings, ServicePrior, Settings
from millgate.core.words import Outcome
from millgate.servers.emulator import EmulatorSettings, start_engine

# Two hundred microseconds a token, and memory for four prompts of 6,000 tokens: what is evicted costs too much to be read again.
PRIOR = ServicePrior(0.05, 2e-4, 0.02, 1e-3, certain=True)
MEMORY = EngineSettings("engine", 64, 26_000, prior=PRIOR)


def question(number: int, words: int = 2_400) -> bytes:
    """Return a request of some 6,000 tokens that begins as no other does."""
    return ask(" ".join(f"{number}-{word:06}" for word in range(words)), max_tokens=4)


@contextlib.asynccontextmanager
async def short_of_memory(deadline_s: float = 30.0) -> AsyncIterator[TwoEngines]:
    """Serve a gateway in front of one engine with that memory."""
    settings = EmulatorSettings(
        port=0, time_scale=10.0, enable_prefix_caching=True, num_gpu_blocks_override=1_800
    )
    engine = await start_engine(settings)
    lane = LaneSettings("interactive", ttft_slo_s=deadline_s, deadline_s=deadline_s)
    try:
        async with gating([("engine", engine.port)], Settings((lane,), (MEMORY,))) as gate:
            yield gate
    finally:
        await engine.stop()


def test_people_with_single_long_questions_wait_for_each_other_and_none_is_sent_away() -> None:
    async def story() -> None:
        async with short_of_memory() as gate:
            found = await asyncio.gather(*[asking(gate, question(number)) for number in range(10)])
            assert [each.status for each in found] == [200] * 10
            await gate.idle()
            snapshot = gate.gateway.driver.snapshot()
            assert dict(snapshot.lanes[0].outcomes)[Outcome.GOOD] == 10
            assert snapshot.lanes[0].yields == ()
            assert snapshot.working_set_share == 0.0

    run(story())
