"""A burst of real SDK calls at a real gateway with a small engine: with settings everybody is answered, cheaply."""

import asyncio
from typing import Any

import openai

from gateway.harness import Asked, answer, run, standing
from millgate.client import for_httpx2
from millgate.core.settings import LaneSettings

CALLS, CAPACITY, WORK_S = 60, 5, 0.2


async def burst(url: str, calls: int, http_client: Any) -> tuple[int, int]:
    """Return how many of these calls were answered and how many were not."""
    client = openai.AsyncOpenAI(base_url=url + "/v1", api_key="k", http_client=http_client)

    async def one(number: int) -> bool:
        messages: list[Any] = [{"role": "user", "content": f"question {number}"}]
        try:
            await client.chat.completions.create(model="m", messages=messages)
        except openai.APIStatusError:
            return False
        return True

    async with client:
        answers = await asyncio.gather(*(one(number) for number in range(calls)))
    return sum(answers), calls - sum(answers)


def test_a_burst_is_answered_whole_with_few_attempts_beside_a_stock_client() -> None:
    async def script(asked: Asked) -> None:
        await asyncio.sleep(WORK_S)
        asked.reply(answer())

    async def attempts(http_client: Any) -> tuple[int, int]:
        lane = LaneSettings("interactive", max_queue=0)
        async with standing(script, max_inflight=CAPACITY, lane=lane) as stand:
            answered, _ = await burst(f"http://127.0.0.1:{stand.gateway.port}", CALLS, http_client)
            return answered, stand.lane.arrived

    async def body() -> None:
        answered, arrived = await attempts(for_httpx2.async_client())
        assert answered == CALLS
        assert arrived <= 1.25 * CALLS
        stock_answered, stock_arrived = await attempts(None)
        assert stock_arrived > arrived
        assert stock_answered <= CALLS

    run(body())
