"""Connecting to a host by whichever of its addresses answers, and by those of before while no name server does.

A name is looked up for every connection, so that a change of its addresses is seen at once. Name servers fail more often than
engines do: then the last answer holds. Of several addresses the next one is tried when one has failed, or has not answered for
a moment (RFC 8305), and what was of no use is tried last for a while: a name with an IPv6 address that leads nowhere is common.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from math import inf
from ssl import SSLError
from typing import Any, Final, cast

from millgate.sockets.listening import is_ip

Resolve = Callable[[str], Awaitable[tuple[str, ...]]]
"""Returns the addresses of a host name in the order in which to try them; raises OSError."""

NEXT_AFTER_S: Final = 0.25
"""How long one address is tried alone: the Connection Attempt Delay of RFC 8305, section 5."""
LOOK_UP_S: Final = 0.5
"""How long a connection waits for a name server where there is an answer of before."""
LOOK_AGAIN_S: Final = 5.0
"""How often a name is looked up of which connections are used again and again, as one with `discover: dns` is."""
LEFT_AFTER_S: Final = 60.0
"""How long an address is still the host's that no answer holds any more: some names have other ones of many in each answer."""
SHUNNED_S: Final = 60.0
"""How long an address that was of no use is tried last."""


async def resolve(host: str) -> tuple[str, ...]:
    """Return the A and AAAA records of this name in the system's order; raises OSError."""
    loop = asyncio.get_running_loop()
    try:
        answers = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise socket.gaierror(socket.EAI_NONAME, "a label of it is empty or too long") from None
    return tuple(dict.fromkeys(str(address[0]) for _family, _kind, _protocol, _name, address in answers))


class HostAddresses:
    """Connects to `host:port`; build it anywhere, use it on one running loop."""

    def __init__(self, host: str, port: int, look_up: Resolve = resolve) -> None:
        self._host = host
        self._port = port
        self._look_up = look_up
        self._known: tuple[str, ...] = (host,) if is_ip(host) else ()
        self._is_fixed = bool(self._known)
        self._looking: asyncio.Task[None] | None = None
        self._asked_at = self._told_at = 0.0
        self._last_told: dict[str, float] = {}
        self._failure: Exception = OSError("its name has no address")
        self._shunned: dict[str, float] = {}

    async def connect(self, make: Callable[[], asyncio.Protocol], **tls: Any) -> None:
        """Make one connection, over TLS as `tls` says; raises what the last address, or the look-up, failed with."""
        if not self._is_fixed:
            await self._find()
        if len(self._known) == 1:
            await asyncio.get_running_loop().create_connection(make, self._known[0], self._port, **tls)
        else:
            await self._race(_Race(make), tls)

    def has(self, address: str, now: float) -> bool:
        """Return whether the name has had this address within the last minute for which that is known; looks it up again now and then."""
        if self._is_fixed:
            return True
        if now - self._asked_at > LOOK_AGAIN_S:
            self._begin(now)
        return self._told_at - self._last_told.get(address, -inf) < LEFT_AFTER_S

    async def _find(self) -> None:
        """Look the name up, one look for all that wait; late or failed it leaves the addresses of before."""
        now = asyncio.get_running_loop().time()
        looking = self._begin(now)
        left_s = max(0.0, self._asked_at + LOOK_UP_S - now)
        await asyncio.wait((looking,), timeout=left_s if self._known else None)
        if not self._known:
            raise self._failure

    def _begin(self, now: float) -> asyncio.Task[None]:
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look())
            self._asked_at = now
        return self._looking

    async def _look(self) -> None:
        try:
            if found := await self._look_up(self._host):
                self._known, self._told_at = found, asyncio.get_running_loop().time()
                told = self._last_told | dict.fromkeys(found, self._told_at)
                self._last_told = {
                    each: at for each, at in told.items() if self._told_at - at < 2 * LEFT_AFTER_S
                }
        except OSError as failure:
            self._failure = failure
        finally:
            self._looking = None

    async def _race(self, race: "_Race", tls: dict[str, Any]) -> None:
        """Connect to the first address that answers."""
        loop = asyncio.get_running_loop()
        waiting = sorted(self._known, key=lambda each: self._shunned.get(each, 0.0) > loop.time())
        tries: dict[asyncio.Task[object], str] = {}
        failure: BaseException | None = self._failure
        try:
            while failure is not None and (waiting or tries):
                if waiting:
                    address = waiting.pop(0)
                    making = loop.create_connection(lambda: race, address, self._port, **tls)
                    tries[loop.create_task(making)] = address
                patience_s = NEXT_AFTER_S if waiting else None
                done, _ = await asyncio.wait(tries, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    address, why = tries.pop(each), each.exception()
                    if why is not None:
                        self._shun(address)
                    # Where one address refuses a connection, a certificate of another that is refused is what to mend.
                    if why is None or not isinstance(failure, SSLError):
                        failure = None if failure is None else why
        finally:
            for each, address in tries.items():
                each.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
                each.cancel()
                if failure is None:
                    self._shun(address)
        if failure is not None:
            raise failure

    def _shun(self, address: str) -> None:
        now = asyncio.get_running_loop().time()
        self._shunned = {each: until for each, until in self._shunned.items() if until > now}
        self._shunned[address] = now + SHUNNED_S


class _Race(asyncio.Protocol):
    """The protocol of every try. The first that is connected gets the one that `make` returns in its place, a later one is closed."""

    def __init__(self, make: Callable[[], asyncio.Protocol]) -> None:
        self._make: Callable[[], asyncio.Protocol] | None = make

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the first transport, and close a later one."""
        own, make, self._make = cast("asyncio.Transport", transport), self._make, None  # uvloop's own class
        if make is None:
            own.abort()
            return
        protocol = make()
        own.set_protocol(protocol)
        protocol.connection_made(own)
