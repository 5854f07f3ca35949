"""The sweep over deadlines: it compares often, and never holds its own loop's standstill against anybody."""

import asyncio
import socket
import time

from gateway.harness import run
from millgate.http1.client.sweep import SWEEP_S, Sweep

STANDSTILL_S = 5 * SWEEP_S


class Stamped(asyncio.Protocol):
    """Notes when it has last heard something, as a connection does."""

    def __init__(self) -> None:
        self.sweep = Sweep(self._check, self._forgive)
        self.silences: list[float] = []
        self.stamp = 0.0

    def data_received(self, data: bytes) -> None:
        del data
        self.stamp = self.sweep.now

    def _check(self, now: float) -> None:
        self.silences.append(now - self.stamp)

    def _forgive(self, lost_s: float) -> None:
        self.stamp += lost_s


def test_what_came_before_or_while_the_loop_stood_still_came_in_time() -> None:
    async def body() -> None:
        connection = Stamped()
        ours, theirs = socket.socketpair()
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: connection, sock=ours)
        connection.sweep.start()
        try:
            for before, meanwhile in ((b"a", b""), (b"", b"b"), (b"a", b"b")):
                theirs.send(b"speaking" + before)
                await asyncio.sleep(0.01)
                if meanwhile:
                    theirs.send(meanwhile)
                time.sleep(STANDSTILL_S)  # noqa: ASYNC251 - the loop is to stand still
                await asyncio.sleep(SWEEP_S / 2)
        finally:
            connection.sweep.stop()
            transport.close()
            theirs.close()
        assert len(connection.silences) >= 3
        assert max(connection.silences) < STANDSTILL_S / 2

    run(body())


def test_a_loop_that_is_always_late_still_comes_to_its_deadlines() -> None:
    async def body() -> None:
        checked: list[float] = []
        sweep = Sweep(checked.append)
        sweep.start()
        for _ in range(6):
            time.sleep(2.5 * SWEEP_S)  # noqa: ASYNC251 - the loop is to be late
            await asyncio.sleep(0.002)
        sweep.stop()
        assert len(checked) >= 2

    run(body())
