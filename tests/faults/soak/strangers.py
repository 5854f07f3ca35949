"""Clients of the line door and of the admin door that have no token, each from an address of its own."""

import asyncio
import contextlib
import json
import random
import socket
import struct
from collections.abc import Iterator
from typing import Final

TOKEN: Final = "soak-" + "7" * 32
"""The right one, which none of them ever sends."""
_MOST_PAUSE_S: Final = 0.3
_ANSWERED_WITHIN_S: Final = 10.0
_PING: Final = b'{"v":0,"verb":"ping","job":"J","seq":1,"token":"%b"}\n'
_NUMBERS: Final = ("server.", "backend.", "cdr.")

FLOODS: Final = {
    "lines of one letter": b"x\n" * 60_000,
    "empty lines": b"\n" * 120_000,
    "objects without end": b"{" * 120_000 + b"\n",
    "pings without a token": _PING.replace(b',"token":"%b"', b"") * 2_000,
    "pings with a wrong token": _PING % b"wrong" * 2_000,
    "one line of a megabyte": b"x" * 1_000_000,
    "noise": random.Random(0).randbytes(100_000),
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 1_000,
}
"""What some send as fast as the gate takes it; each must be answered with one line at the most."""


class Stranger:
    """One address that connects again and again until it is over, and notes what it should not have been told."""

    def __init__(self, port: int, number: int, dice: random.Random) -> None:
        self._port = port
        self._address = f"127.0.1.{number % 250 + 1}"
        self._dice = dice
        self.findings: list[str] = []
        self.visits = 0

    async def run(self, over: asyncio.Event) -> None:
        """Do one wrong thing after the other."""
        while not over.is_set():
            with contextlib.suppress(ConnectionError):
                await self._visit(over)
                self.visits += 1
            await asyncio.sleep(self._dice.random() * _MOST_PAUSE_S)

    async def _visit(self, over: asyncio.Event) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, local_addr=(self._address, 0))
        if self._dice.random() < 0.5:
            _leave_by_reset(writer)
        try:
            await self._dice.choice((self._flood, self._flood, self._linger, self._dribble))(
                reader, writer, over
            )
        finally:
            writer.transport.abort()

    async def _flood(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, over: asyncio.Event
    ) -> None:
        """Send far too much, and read what is said to it: all, or none."""
        name = self._dice.choice(sorted(FLOODS))
        writer.write(FLOODS[name])
        if self._dice.random() < 0.7:
            try:
                said = await _all(reader)
            except TimeoutError:
                self.findings.append(f"{name}: the gate did not close within {_ANSWERED_WITHIN_S:g} s")
            else:
                self.findings += [f"{name}: {finding}" for finding in unfit(said)]
        else:
            await _rest(over, 1.0)

    async def _linger(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, over: asyncio.Event
    ) -> None:
        """Let a line be unfinished, and leave."""
        writer.write(b'{"v":0,"verb":"share","pad":"' + b"x" * self._dice.randrange(15_000))
        await _rest(over, 3.0 * self._dice.random())

    async def _dribble(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, over: asyncio.Event
    ) -> None:
        """Send a byte now and then."""
        for _ in range(20):
            writer.write(b"x")
            if await _rest(over, 0.1):
                return


_ADMIN_HEAD: Final = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
ADMIN_FLOODS: Final = {
    "fields": _ADMIN_HEAD + b"x-filler: aaaaaaaa\r\n" * 100_000,
    "one field": _ADMIN_HEAD + b"x: " + b"x" * 2_000_000,
    "cookies": _ADMIN_HEAD + b"Cookie: " + b"a=b;" * 200_000,
    "requests": (_ADMIN_HEAD + b"\r\n") * 20_000,
    "a form": b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9000000\r\n\r\n"
    + b"t=&" * 700_000,
    "noise": random.Random(1).randbytes(100_000),
}
"""What some send to the admin door; each must be cut, whatever was answered."""
_ADMIN_BEGINNINGS: Final = (
    b"",
    _ADMIN_HEAD,
    _ADMIN_HEAD + b"\r\n",
    b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\ntoken=",
    _ADMIN_HEAD.replace(b"/healthz", b"/api/state") + b"Authorization: Bearer wrong\r\n\r\n",
)


class AdminStranger(Stranger):
    """One address that floods the admin door, and keeps connections to it on which it says nothing, or not enough."""

    async def _visit(self, over: asyncio.Event) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, local_addr=(self._address, 0))
        try:
            if self._dice.random() < 0.3:
                name = self._dice.choice(sorted(ADMIN_FLOODS))
                writer.write(ADMIN_FLOODS[name])
                await self._be_cut(name, reader)
            else:
                writer.write(self._dice.choice(_ADMIN_BEGINNINGS))
                await _rest(over, 6.0 * self._dice.random())
        finally:
            writer.transport.abort()

    async def _be_cut(self, name: str, reader: asyncio.StreamReader) -> None:
        try:
            await _all(reader)
        except TimeoutError:
            self.findings.append(f"{name}: the admin door did not close within {_ANSWERED_WITHIN_S:g} s")


def unfit(said: bytes) -> Iterator[str]:
    """Yield what is wrong with the replies to somebody who has shown no token."""
    if said.count(b"\n") > 1:
        yield f"{said.count(bytes([10]))} lines came back"
    for line in said.splitlines(keepends=True):
        if line.endswith(b"\n"):
            shown = [each["kind"] for each in json.loads(line)["receipts"]]
            yield from (f"a stranger was told {kind}" for kind in shown if kind.startswith(_NUMBERS))


async def _all(reader: asyncio.StreamReader) -> bytes:
    said = bytearray()
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(_ANSWERED_WITHIN_S):
            while piece := await reader.read(65_536):
                said += piece
    return bytes(said)


async def _rest(over: asyncio.Event, within_s: float) -> bool:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(over.wait(), within_s)
    return over.is_set()


def _leave_by_reset(writer: asyncio.StreamWriter) -> None:
    """Let the close be a reset."""
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
