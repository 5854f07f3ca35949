"""The external processor of a gateway: its engines' addresses resolved, its door the one that reads HTTP requests."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from millgate.gateway.settings import EngineAddress, ExtprocAddress
from millgate.http1.server import ByteBudget
from millgate.runtime.clock import MonotonicClock
from millgate.servers.extproc.attempt import ExtprocDesk
from millgate.servers.extproc.call import Destination
from millgate.servers.extproc.server import ExtprocServer
from millgate.servers.http import HttpDoor
from millgate.servers.http.door import ask_by_head
from millgate.servers.requests.routes import EngineRoute
from millgate.sockets.addresses import resolve

_NO_TLS: Final = "Envoy speaks plain HTTP to engines that the external processor names, and asks no proxy: {} has an https address or a proxy"


class ExtprocDoor:
    """Opens, drains and closes the external processor; `is_ready` says whether work should come."""

    def __init__(
        self, address: ExtprocAddress, door: HttpDoor, budget: ByteBudget, is_ready: Callable[[], bool]
    ) -> None:
        self._address = address
        self._desk = ExtprocDesk(
            door, address.door, {}, budget, door.entry.tenant, partial(ask_by_head, door), MonotonicClock.now
        )
        door.make_attempt = self._desk.make_attempt
        door.adjust = self._desk.adjust
        self._server = ExtprocServer(self._desk, is_ready)
        self.port = 0
        self.health_port: int | None = None

    @property
    def ongoing(self) -> int:
        """How many streams of Envoys are open."""
        return self._server.streams

    def counts(self) -> dict[str, int]:
        """Return its fields of `DoorSnapshot`."""
        running = self._desk.running
        return {
            "refused_streams": self._server.refused_streams,
            "lost_slots": running.lost,
            "unknown_entries": running.unknown,
        }

    async def listen(self, engines: Sequence[EngineAddress], routes: Sequence[EngineRoute]) -> None:
        """Find the engines and serve; OSError when a name is unknown or an address is taken or not ours."""
        self.adopt(await self.find(engines), routes)
        address = self._address
        self.port, self.health_port = await self._server.listen(
            address.host, address.port, address.health_port, address.ssl
        )

    async def find(self, engines: Sequence[EngineAddress]) -> list[tuple[EngineAddress, str]]:
        """Return each engine with its address, but those that are discovered nowhere; OSError for one that Envoy cannot be told of."""
        placed = [engine for engine in engines if engine.host]
        found = await asyncio.gather(*(_resolved(engine) for engine in placed))
        return list(zip(placed, found, strict=True))

    async def renew(
        self, engines: Sequence[EngineAddress], wanted: ExtprocAddress | None
    ) -> list[tuple[EngineAddress, str]]:
        """Find these engines, then show Envoys the certificate of the `wanted` address, if both are over TLS; an OSError changes nothing."""
        found = await self.find(engines)
        if wanted is not None and wanted.ssl is not None and self._address.ssl is not None:
            await self._server.secure(wanted.ssl)
        return found

    def adopt(self, found: Sequence[tuple[EngineAddress, str]], routes: Sequence[EngineRoute]) -> None:
        """Name these engines to Envoy from now on, at the addresses that were found, beside those of before."""
        known = {route.name: route for route in routes}
        told = {engine.name: Destination(address, known[engine.name]) for engine, address in found}
        self._desk.destinations = {**self._desk.destinations, **told}

    def forget_others(self, found: Sequence[tuple[EngineAddress, str]]) -> None:
        """Name no others any more: the core knows none."""
        known = self._desk.destinations
        self._desk.destinations = {engine.name: known[engine.name] for engine, _ in found}

    def drain(self) -> None:
        """Tell Envoys that no more work should come here."""
        self._server.drain()

    async def close(self) -> None:
        """Cut every stream."""
        await self._server.close()


async def _resolved(engine: EngineAddress) -> str:
    """Return `IP:port`, which is all that Envoy's ORIGINAL_DST cluster takes."""
    if engine.ssl is not None or engine.proxy is not None:
        raise OSError(_NO_TLS.format(engine.name))
    try:
        host = (await resolve(engine.host))[0]
    except OSError as error:
        message = f"engine {engine.name}: {engine.host} has no address to name to Envoy: {error.strerror}"
        raise OSError(message) from None
    return f"[{host}]:{engine.port}" if ":" in host else f"{host}:{engine.port}"
