"""A balancer before the gates: it looks at each one's readiness every second, as Envoy and Kubernetes are told to, and sends to those that are ready."""

import asyncio
from collections.abc import Sequence
from typing import Final

from lab.cluster.processes import Gate

_LOOK_S: Final = 1.0
_HEAD: Final = b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


class Balancer:
    """Knows which gates were ready at the last look; one that does not answer within a second is not. Use: `start`, `ports`, `stop`."""

    def __init__(self, gates: Sequence[Gate]) -> None:
        self._gates = gates
        self._is_out: set[Gate] = set()
        self._looks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Look from now on."""
        self._looks = [asyncio.create_task(self._look_at(gate)) for gate in self._gates]

    def stop(self) -> None:
        """Look no more."""
        for look in self._looks:
            look.cancel()

    def ports(self) -> list[int]:
        """Return where to send: the ready gates, or all of them where none is."""
        ready = [gate.port for gate in self._gates if gate not in self._is_out]
        return ready or [gate.port for gate in self._gates]

    async def _look_at(self, gate: Gate) -> None:
        while True:
            if await _is_ready(gate.admin_port):
                self._is_out.discard(gate)
                await asyncio.sleep(_LOOK_S)
            else:
                self._is_out.add(gate)
                await asyncio.sleep(_LOOK_S / 2.0)


async def _is_ready(port: int) -> bool:
    try:
        async with asyncio.timeout(_LOOK_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(_HEAD)
                return b" 200 " in await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
