"""The OpenAI SDK with manners: a burst waits at home, hints are kept, retries do not multiply.

MILLGATE_URL=http://127.0.0.1:8080 python examples/openai_with_manners.py
"""

import asyncio
import os

import openai

from millgate.client import HostSettings, Limits, for_httpx2


async def main() -> None:
    """Ask twenty questions at once."""
    url = os.environ.get("MILLGATE_URL", "http://127.0.0.1:8080")
    manners = HostSettings(max_inflight=100, limits=Limits(rpm=6_000))
    async with for_httpx2.async_client(manners) as http_client:
        client = openai.AsyncOpenAI(base_url=url + "/v1", api_key="unused", http_client=http_client)

        async def ask(number: int) -> str:
            answer = await client.chat.completions.create(
                model="any", messages=[{"role": "user", "content": f"question {number}"}], max_tokens=5
            )
            return answer.choices[0].message.content or ""

        answers = await asyncio.gather(*(ask(number) for number in range(20)))
    print(f"{sum(map(bool, answers))} answered")


if __name__ == "__main__":
    asyncio.run(main())
