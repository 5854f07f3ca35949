"""What a type checker must see of Millgate's public face; run it through mypy --strict or pyright."""

from collections.abc import AsyncIterator
from typing import assert_type

import httpx
import httpx2

import millgate
from millgate.client import HostSettings, Limits, for_httpx, for_httpx2
from millgate.client.line import AsyncLineClient, LineClient, SentJob

gate = millgate.Gate(max_inflight=2)


@gate
def plain(number: int, *, loud: bool = False) -> str:
    """Keep parameters and result."""
    return str(number) * (2 if loud else 1)


@gate.limit(tokens=lambda text: len(text))  # noqa: PLW0108 - as people write it
async def coroutine(text: str) -> int:
    """Stay a coroutine function."""
    return len(text)


@gate.limit(tokens=5)
async def stream(count: int) -> AsyncIterator[int]:
    """Stay an async generator."""
    for number in range(count):
        yield number


async def use() -> None:
    """Use everything once."""
    assert_type(plain(1, loud=True), str)
    assert_type(await coroutine("a"), int)
    async for item in stream(3):
        assert_type(item, int)
    async with gate.slot(tokens=3) as slot:
        assert_type(slot.waited_s, float)
    manners = HostSettings(limits=Limits(rpm=60))
    assert_type(for_httpx.client(manners), httpx.Client)
    assert_type(for_httpx.async_client(), httpx.AsyncClient)
    assert_type(for_httpx2.client(), httpx2.Client)
    assert_type(for_httpx2.async_client(manners, timeout=3.0), httpx2.AsyncClient)
    with LineClient() as line:
        assert_type(line.send(b"{}"), SentJob)
    async with AsyncLineClient("host:7777", token="t") as async_line:
        assert_type(await async_line.send(b"{}"), SentJob)
