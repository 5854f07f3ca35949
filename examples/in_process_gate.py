"""A gate inside a program: four at once; other callers wait or are told when to come back."""

import asyncio

import millgate

gate = millgate.Gate(max_inflight=4, max_tokens=8_000, max_wait_s=2.0, expected_s=0.05)


async def answer(question: str) -> str:
    """Stand for a model that takes fifty milliseconds."""
    async with gate.slot(tokens=100 * len(question)):
        await asyncio.sleep(0.05)
        return question.upper()


@gate.limit(tokens=len)
def summarise(text: str) -> str:
    """Be limited without knowing it: a decorated function in a plain thread."""
    return text[:10]


async def main() -> None:
    """Ask twenty questions at once, then one that cannot be taken."""
    answers = await asyncio.gather(*(answer(f"question {number}") for number in range(20)))
    print(f"{len(answers)} answered, the last is {answers[-1]!r}")
    print(await asyncio.to_thread(summarise, "a long text to be cut short"))
    gate.drain()
    try:
        await answer("too late")
    except millgate.Yielded as refused:
        print(f"refused: {refused.reason}, retry: {refused.retry}")


if __name__ == "__main__":
    asyncio.run(main())
