"""Makes a connection, straight or through a proxy, without a task: each step is taken at once, because a turn of a busy loop takes milliseconds.

A task begins, and goes on after each wait, one turn of its loop later than it could. With a thousand streams a turn
is some hundred events long, and a new stream would wait for three of them before its request is sent.
"""

import asyncio
import re
import ssl as tls
from base64 import b64encode
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, Self, cast
from urllib.parse import unquote_to_bytes

from millgate.http1.client.answer import ProtocolViolationError, UnfinishedHead
from millgate.http1.client.connection import UpstreamCall
from millgate.http1.wire.fields import HEAD_END
from millgate.sockets.addresses import HostAddresses

_MOST_HEAD_BYTES: Final = 64 * 1024
_STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d\d\d)[ \r]")
_MEANINGS: Final = {
    b"403": ": it does not allow this address",
    b"407": ": its user or password is missing or wrong",
    **dict.fromkeys((b"502", b"503", b"504"), ": it does not reach this address"),
}


def reason_of(error: BaseException) -> str:
    """Return in words why there is no connection."""
    late = isinstance(error, asyncio.CancelledError)
    return "no answer in time" if late else str(error) or type(error).__name__


class Connecting:
    """Drives the loop's own coroutine for `call`, to be given up at `by`; `failed` hears why there is no connection.

    `failed` is never called before `start` has returned, and neither after `stop`.
    """

    def __init__(
        self,
        call: UpstreamCall,
        by: float,
        coroutine: Coroutine[Any, Any, Any],
        failed: Callable[["Connecting", str], None],
    ) -> None:
        self.call = call
        self.by = by
        self._coroutine = coroutine
        self._failed = failed
        self._awaited: asyncio.Future[Any] | None = None
        self._started = False
        self._stopped = self._late = False

    def start(self) -> None:
        """Take the first step now."""
        self._step()
        self._started = True

    def stop(self) -> None:
        """Give it up as a task is given up: what it waits for is cancelled, and it closes what it has opened."""
        self._stopped = True
        self.expire()

    def expire(self) -> None:
        """Have it fail for its time, in its own words: whatever it waits for is cancelled."""
        self._late = True
        if self._awaited is not None:
            self._awaited.cancel()

    def _step(self, _awaited: object = None) -> None:
        """Go on to the next wait."""
        try:
            self._awaited = awaited = self._coroutine.send(None)
        except StopIteration:
            self._awaited = None
            if self._late:
                self._end(reason_of(asyncio.CancelledError()))
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - a name that cannot be one is no OSError
            self._awaited = None
            reason = reason_of(error)
            if self._started:
                self._end(reason)
            else:
                asyncio.get_running_loop().call_soon(self._end, reason)
        else:
            if awaited is None:
                asyncio.get_running_loop().call_soon(self._step)
            else:
                awaited.add_done_callback(self._step)
                if self._late:
                    awaited.cancel()

    def _end(self, reason: str) -> None:
        if not self._stopped:
            self._failed(self, reason)


@dataclass(frozen=True, slots=True)
class Proxy:
    """Where an HTTP proxy is, and the value of `Proxy-Authorization` that it gets, which is never shown."""

    host: str
    port: int
    authorization: bytes | None = field(default=None, repr=False)

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Read `http://[user:password@]host:port`, as the configuration has checked it; the login may have `%` escapes."""
        login, at, place = url.removeprefix("http://").rstrip("/").rpartition("@")
        host, _, port = place.rpartition(":")
        pair = b":".join(map(unquote_to_bytes, login.partition(":")[::2]))
        return cls(host.strip("[]"), int(port), b"Basic " + b64encode(pair) if at else None)


async def connect_through(
    proxy: Proxy,
    addresses: HostAddresses,
    target: bytes,
    make: Callable[[], asyncio.Protocol],
    ssl: tls.SSLContext | None,
    server_hostname: str | None,
) -> None:
    """Make one connection to `target`, the engine's `host:port`, by CONNECT (RFC 9110, section 9.3.6) to the proxy at these addresses.

    The proxy looks the engine's name up. TLS is spoken with the engine, and verified as without a proxy.

    ConnectionError says which step has failed, also where that was cancelled because its time was over.
    """
    asking = _Asking(proxy, target)
    try:
        await addresses.connect(lambda: cast("asyncio.Protocol", asking))
        own = raw = await asking.answered
        protocol = make()
        if ssl is None:
            raw.set_protocol(protocol)
        else:
            loop = asyncio.get_running_loop()
            secure = await loop.start_tls(raw, protocol, ssl, server_hostname=server_hostname)
            own = cast("asyncio.Transport", secure)
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - as in `Connecting`
        raise asking.failure(reason_of(error)) from None
    if raw.is_closing():  # a loss that the protocol was told of too early
        raise asking.failure("the connection was closed at once")
    protocol.connection_made(own)
    raw.resume_reading()


class _Asking:
    """Asks a proxy for a tunnel: `answered` is the connection within it, of which nothing is read yet.

    An `asyncio.Protocol` by its methods alone, so that it can be compiled.
    """

    def __init__(self, proxy: Proxy, target: bytes) -> None:
        self.answered: asyncio.Future[asyncio.Transport] = asyncio.get_running_loop().create_future()
        self._name = f"the proxy {proxy.host}:{proxy.port}"
        self._step = "cannot be reached"
        login = b"" if proxy.authorization is None else b"proxy-authorization: %b\r\n" % proxy.authorization
        self._request = b"CONNECT %b HTTP/1.1\r\nhost: %b\r\n%b\r\n" % (target, target, login)
        self._transport: asyncio.Transport | None = None
        self._pieces = UnfinishedHead()

    def failure(self, reason: str) -> ConnectionError:
        """Close what there is, and return what to raise: the step that has failed, and why."""
        if self._transport is not None:
            self._transport.abort()
        return ConnectionError(f"{self._name} {self._step}: {reason}")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._step = "opens no tunnel"
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Read the head of the answer, and no further."""
        try:
            if raw := self._pieces.joined(data, _MOST_HEAD_BYTES):
                self._end(_complaint(raw))
        except ProtocolViolationError as violation:
            self._end(str(violation))

    def eof_received(self) -> None:
        """Do nothing: `connection_lost` follows."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Complain unless there was an answer."""
        self._end(f"it closed the connection ({exc or 'without an answer'})")

    def _end(self, complaint: str) -> None:
        if self.answered.done() or self._transport is None:
            return
        if complaint:
            self.answered.set_exception(ConnectionError(complaint))
            self.answered.exception()  # or the loop reports it where the call has been given up
        else:
            self._step = "opened a tunnel that failed"
            self._transport.pause_reading()
            self.answered.set_result(self._transport)


def _complaint(raw: bytes) -> str:
    """Return what is wrong with a proxy's answer that begins with these bytes, empty where it is a tunnel.

    Of a tunnel's head Content-Length and Transfer-Encoding mean nothing, and the engine does not speak first.
    """
    found, end = _STATUS.match(raw), raw.find(HEAD_END)
    if found is None:
        return "it answers no HTTP/1.1"
    if not 0 <= end <= _MOST_HEAD_BYTES:
        return f"the head of its answer is longer than {_MOST_HEAD_BYTES} bytes"
    status: bytes = found[1]
    if not status.startswith(b"2"):
        return f"it answers {status.decode()}{_MEANINGS.get(status, '')}"
    return "bytes follow its answer" if len(raw) > end + len(HEAD_END) else ""
