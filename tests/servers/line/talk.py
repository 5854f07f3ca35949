"""A gateway with a line door in front of a scripted engine, and raw line clients."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.harness import Asked, FakeEngine, Script, answer, answer_whole, until
from millgate.core.settings import EngineSettings, LaneSettings, Settings
from millgate.core.snapshot import Snapshot
from millgate.core.words import DeadlineFrom
from millgate.dialects.line import LineReply, read_reply
from millgate.gateway import EngineAddress, Gateway, GatewaySettings
from millgate.gateway.settings import LineAddress
from millgate.servers.http import DoorSettings
from millgate.servers.line import LineDoor, LineLimits, LineSettings
from millgate.wiring.governor import build_governor


@dataclass
class Peer:
    """One raw client of the line door."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(data)

    async def reply(self) -> LineReply:
        """Return the next reply."""
        line = await asyncio.wait_for(self.reader.readline(), 10)
        assert line, "the server has closed the connection"
        return read_reply(line)

    async def final(self) -> LineReply:
        """Return the next reply that ends or yields a job."""
        while True:
            reply = await self.reply()
            if reply.receipt("conn.outcome") is not None:
                return reply

    async def until_closed(self) -> list[LineReply]:
        """Return what is said until the server closes."""
        data = await asyncio.wait_for(self.reader.read(), 10)
        return [read_reply(line) for line in data.splitlines()]

    def leave(self) -> None:
        """Reset the connection."""
        self.writer.transport.abort()


@dataclass
class LineStand:
    """A gateway, its engine and its peers."""

    gateway: Gateway
    engine: FakeEngine
    peers: list[Peer] = field(default_factory=list)

    @property
    def door(self) -> LineDoor:
        """The line door."""
        assert self.gateway.line is not None
        return self.gateway.line

    @property
    def snapshot(self) -> Snapshot:
        """The core's numbers now."""
        return self.gateway.driver.snapshot()

    async def peer(self, **more: Any) -> Peer:
        """Connect a new client."""
        peer = Peer(
            *await asyncio.open_connection("127.0.0.1", self.gateway.line_port, limit=1 << 20, **more)
        )
        self.peers.append(peer)
        return peer

    async def settle(self) -> None:
        """Wait until nothing is in flight, and check the books (INV-1, INV-3, INV-5)."""
        await until(lambda: sum(each.running + each.departing for each in self.snapshot.engines) == 0)
        for lane in self.snapshot.lanes:
            assert sum(count for _, count in lane.outcomes) == lane.arrived
        await until(lambda: self.gateway.server.budget.held_bytes == 0)


class Gate:
    """An engine that answers when told, and knows how many it ran at once."""

    def __init__(self, work_s: float | None = None, content: str = "hello") -> None:
        self.go = asyncio.Event()
        self.content = content
        self.work_s = work_s
        self.running = self.most = self.served = 0

    async def __call__(self, asked: Asked) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await (asyncio.sleep(self.work_s) if self.work_s is not None else self.go.wait())
            asked.reply(answer(self.content))
            self.served += 1
        finally:
            self.running -= 1


@contextlib.asynccontextmanager
async def line_standing(
    script: Script = answer_whole,
    *,
    max_inflight: int = 1,
    limits: LineLimits | None = None,
    models: frozenset[str] | None = None,
    **more: Any,
) -> AsyncIterator[LineStand]:
    """Serve a gateway with a line door until the block ends; `more` are fields of LineAddress or LineSettings."""
    engine = FakeEngine(script)
    await engine.start()
    line_lane = LaneSettings("line", ttft_slo_s=600, deadline_s=600, deadline_from=DeadlineFrom.ATTEMPT)
    core = Settings(
        lanes=(LaneSettings("interactive"), line_lane), engines=(EngineSettings("engine", max_inflight),)
    )
    told = {name: more.pop(name) for name in ("path", "token") if name in more}
    door = LineSettings(limits=limits or LineLimits(), **told)
    settings = GatewaySettings(
        engines=(EngineAddress("engine", "127.0.0.1", engine.port),),
        port=0,
        line=replace(LineAddress(port=0, door=door), **more),
        door=DoorSettings(models=models),
        drain_grace_s=5.0,
    )
    stand = LineStand(Gateway(build_governor(core, time.monotonic()), settings), engine)
    await stand.gateway.start()
    try:
        yield stand
    finally:
        for peer in stand.peers:
            peer.leave()
        await stand.gateway.stop()
        await engine.stop()
