"""Clients that ask again as soon as they have their answer: most at one replica, which changes, and with their tickets anywhere."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

HOT_SHARE, HOT_FOR_S = 0.7, 20.0
_PATIENCE_S = 30.0
_AFTER_FAILURE_S = 0.1


class Answer(NamedTuple):
    """What a client was told: the status, when to come back, the ticket that it has now."""

    status: int
    wait_s: float
    ticket: str


class Crowd:
    """So many clients over these ports; `hot_share` of the requests go to one port, the next one every 20 s.

    `good` are the times at which whole answers came, `statuses` counts all (0 is a connection that failed).
    """

    def __init__(
        self, ports: Callable[[], Sequence[int]], clients: int, max_tokens: int, seed: int, hot_share: float
    ) -> None:
        self._ports, self._clients, self._max_tokens = ports, clients, max_tokens
        self._dice, self._hot_share = Random(seed), hot_share
        self.good: list[float] = []
        self.statuses: dict[int, int] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Let them come."""
        self._tasks = [asyncio.create_task(self._client(number)) for number in range(self._clients)]

    async def stop(self) -> None:
        """Let all hang up."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def good_between(self, begin: float, end: float) -> float:
        """Return whole answers a second between two monotonic times."""
        return sum(begin <= at < end for at in self.good) / (end - begin)

    def _port(self, failed: int) -> int:
        """Return where to ask: not where a connection has failed just now, as a balancer would have it."""
        ports = [port for port in self._ports() if port != failed] or self._ports()
        hot = int(time.monotonic() / HOT_FOR_S) % len(ports)
        is_hot = self._dice.random() < self._hot_share
        return ports[hot if is_hot else self._dice.randrange(len(ports))]

    async def _client(self, number: int) -> None:
        asked, ticket, failed = 0, "1", 0
        while True:
            body, port = f"client {number} asks {asked}", self._port(failed)
            try:
                answer = await ask(port, body, self._max_tokens, ticket)
            except (OSError, EOFError, TimeoutError, ValueError, IndexError):
                answer = Answer(0, _AFTER_FAILURE_S, ticket)
            self.statuses[answer.status] = self.statuses.get(answer.status, 0) + 1
            ticket, failed = answer.ticket, 0 if answer.status else port
            if answer.status == 200:
                self.good.append(time.monotonic())
                asked, ticket = asked + 1, "1"
            await asyncio.sleep(answer.wait_s)


async def ask(port: int, text: str, max_tokens: int, ticket: str = "1") -> Answer:
    """Ask a replica once, on a connection of its own."""
    body = json.dumps(
        {"model": "any", "max_tokens": max_tokens, "messages": [{"role": "user", "content": text}]}
    ).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: gate\r\ncontent-type: application/json\r\n"
        f"x-millgate-ticket: {ticket}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    async with asyncio.timeout(_PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(head.encode() + body)
            answer = await reader.read()
        finally:
            writer.close()
    if not answer.rstrip().endswith(b"}"):
        raise EOFError
    fields = answer.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
    named = dict(field.lower().partition(": ")[::2] for field in fields[1:])
    own = next((field[19:] for field in fields if field.lower().startswith("x-millgate-ticket: ")), "1")
    millis = named.get("retry-after-ms")
    wait_s = float(millis) / 1000.0 if millis else float(named.get("retry-after", 0.0))
    return Answer(int(fields[0].split()[1]), wait_s, own)
