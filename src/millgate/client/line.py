"""A client of the line door: uploads in checked chunks, comes back when told to, synchronous and asyncio.

    with LineClient("127.0.0.1:7777") as client:
        sent = client.send(b'{"model": "m", "messages": [...]}', want_result=True)

The dialogue of one job is a generator without I/O, so both clients are the same client. A job that is refused comes
back with its last chunk on the same connection: the server still has the rest, and knows the job by its age.
"""

import asyncio
import hashlib
import random
import socket
import ssl as tls
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final, NamedTuple, Self, TypedDict, Unpack

from millgate.dialects.line import NO_JOB, PORT, FrameError, LineReply, Status, read_reply, write_request
from millgate.dialects.line_requests import LineChunk, LineRequest, Manifest, Verb

CHUNK_BYTES: Final = 48 * 1024
"""64 KiB in base64: a quarter of the longest line that the published daemon takes."""
_MOST_LINE_BYTES: Final = 1024 * 1024
_NO_HINT_S: Final = 0.5
"""The published daemon's constant, for a server that yields without a hint."""
_LONGEST_HINT_S: Final = 60.0
_PING: Final = "J_ping"


class LineError(Exception):
    """The exchange has failed: connection, protocol, or a payload that the server does not take."""


class YieldedError(LineError):
    """The server has no slot, after every allowed retry, or no room; `hint_s` is when it says to come back."""

    def __init__(self, hint_s: float) -> None:
        super().__init__(f"the server is busy; it says to come back in {hint_s:.1f} s")
        self.hint_s = hint_s


class AbortedError(LineError):
    """The server has ended the job or the connection for good; `need` says why, `message` says more if it can."""

    def __init__(self, need: str, message: str = "", request_id: str = "") -> None:
        more = [message] if message else []
        more += [f"request id {request_id}"] if request_id else []
        super().__init__("; ".join((f"the server has aborted: {need or 'no reason given'}", *more)))
        self.need = need
        self.message = message
        self.request_id = request_id


class _SentAwayError(Exception):
    """The server closes this connection; another may be tried after so many seconds."""


class SentJob(NamedTuple):
    """One executed job: the answer if it was wanted, how often it was refused, how long the engine took."""

    result: bytes | None
    content_type: str
    yields: int
    backend_ms: int
    reply: LineReply


class Pinged(NamedTuple):
    """How the server stands."""

    ready: bool
    inflight: int
    cap: int
    reply: LineReply


class Write(NamedTuple):
    """Send this line."""

    line: bytes


class Read(NamedTuple):
    """Wait for the next reply."""


class Pause(NamedTuple):
    """Do nothing for so long."""

    seconds: float


class Reconnect(NamedTuple):
    """Go on with a new connection."""


class Told(NamedTuple):
    """What an observer may want to see: every reply, and how much of the payload has been taken."""

    reply: LineReply
    taken_bytes: int


Step = Write | Read | Pause | Reconnect
Heard = LineReply | LineError | None
"""What a step has brought: the reply that was read, why there is no new connection, or nothing."""
Dialogue = Generator[Step, Heard, Any]
Watch = Callable[[Told], None]


class _Manner(TypedDict, total=False):
    content_type: str
    chunk_bytes: int
    want_result: bool
    session: str


class Sending(_Manner, total=False):
    """How a payload is sent, where it is not the usual way: `job` names it."""

    job: str


class _Job(NamedTuple):
    """One payload to be sent, and how."""

    payload: bytes
    name: str
    retries: int
    token: str
    watch: Watch | None
    content_type: str = "application/json"
    chunk_bytes: int = CHUNK_BYTES
    want_result: bool = False
    session: str = ""

    def manifest(self) -> Manifest:
        chunks = max(1, -(-len(self.payload) // self.chunk_bytes))
        digest = hashlib.sha256(self.payload).hexdigest()
        sizes = (len(self.payload), self.chunk_bytes, chunks)
        return Manifest("payload", self.content_type, "", "", *sizes, digest, self.want_result, self.session)

    def chunks(self) -> Iterator[LineChunk]:
        for index, offset in enumerate(range(0, len(self.payload), self.chunk_bytes)):
            piece = self.payload[offset : offset + self.chunk_bytes]
            yield LineChunk(
                "payload", index, offset, hashlib.sha256(piece).hexdigest(), b64encode(piece).decode()
            )


class _Upload:
    """The dialogue of one job."""

    def __init__(self, job: _Job) -> None:
        self._job = job
        self._seq = 0
        self._taken = 0
        self._yields = 0
        self._result: bytearray | None = None
        self._manifest: Manifest | None = None

    def run(self) -> Dialogue:
        """Lead the dialogue and return what became of the job; a server that sends the connection away has not run it."""
        while True:
            try:
                return (yield from self._once())
            except _SentAwayError as away:
                yield from self._reconnect(away.args[0])

    def _reconnect(self, pause_s: float) -> Dialogue:
        """Come back on a new connection; while nothing listens, as before the next gate has started, each try counts as a retry."""
        yield Pause(pause_s)
        while isinstance(failure := (yield Reconnect()), LineError):
            self._yields += 1
            if self._yields > self._job.retries:
                raise failure
            yield Pause(pause_s)

    def _once(self) -> Dialogue:
        job, self._taken = self._job, 0
        yield from self._until_taken(manifest=job.manifest())
        last: LineChunk | None = None
        for chunk in job.chunks():
            if last is not None:
                yield from self._until_taken(chunk=last)
                self._taken += min(job.chunk_bytes, len(job.payload))
            last = chunk
        assert last is not None
        return (yield from self._finish(last))

    def _until_taken(self, *, manifest: Manifest | None = None, chunk: LineChunk | None = None) -> Dialogue:
        """Send a frame until the server has it; it may be without memory for a while."""
        while True:
            yield self._frame(manifest, chunk)
            reply = yield from self._read()
            if reply.status is not Status.YIELD:
                return
            yield Pause(self._pause_s(reply))

    def _finish(self, last: LineChunk) -> Dialogue:
        """Send the last chunk until the job has been executed; `clarify/ok` means that it still works."""
        yield self._frame(None, last)
        while True:
            reply = yield from self._read()
            if reply.status is Status.DONE:
                return self._sent(reply)
            if reply.status is Status.YIELD:
                self._result = self._manifest = None
                yield Pause(self._pause_s(reply))
                yield self._frame(None, last)
            elif reply.verb is Verb.RESULT:
                self._take_result(reply)

    def _read(self) -> Generator[Step, Heard, LineReply]:
        """Return the next reply about this job; raises LineError for what ends it."""
        while True:
            reply = yield Read()
            assert isinstance(reply, LineReply)
            if self._job.watch is not None:
                self._job.watch(Told(reply, self._taken))
            if reply.job not in {self._job.name, NO_JOB}:
                continue  # about a job that was given up
            if reply.status is Status.ABORT:
                if reply.retry_hint_ms:
                    raise YieldedError(reply.retry_hint_ms / 1000)
                raise AbortedError(reply.need, reply.message, reply.request_id)
            if reply.status is Status.NEED:
                words = ": ".join(filter(None, (reply.need, reply.message)))
                raise LineError(f"the server does not take what was sent: {words}")
            if reply.job == self._job.name:
                return reply
            if reply.status is Status.YIELD:
                raise _SentAwayError(self._pause_s(reply))

    def _frame(self, manifest: Manifest | None, chunk: LineChunk | None) -> Write:
        self._seq += 1
        job = self._job
        return Write(
            write_request(LineRequest(Verb.SHARE, job.name, self._seq, 0, manifest, chunk, job.token))
        )

    def _pause_s(self, reply: LineReply) -> float:
        hint_s = reply.retry_hint_ms / 1000 if reply.retry_hint_ms else _NO_HINT_S * random.random()  # noqa: S311 - no secret
        self._yields += 1
        if self._yields > self._job.retries:
            raise YieldedError(hint_s)
        return min(hint_s, _LONGEST_HINT_S)

    def _take_result(self, reply: LineReply) -> None:
        if reply.manifest is not None:
            self._manifest, self._result = reply.manifest, bytearray()
        elif reply.chunk is not None and self._result is not None:
            try:
                piece = b64decode(reply.chunk.bytes_b64, validate=True)
            except ValueError:
                raise LineError("a piece of the result is not base64") from None
            if hashlib.sha256(piece).hexdigest() != reply.chunk.sha256:
                raise LineError("a piece of the result does not match its digest")
            self._result += piece

    def _sent(self, reply: LineReply) -> SentJob:
        backend_ms = reply.receipt("cdr.backend.ms") or 0
        if self._result is None or self._manifest is None:
            return SentJob(None, "", self._yields, backend_ms, reply)
        if hashlib.sha256(self._result).hexdigest() != self._manifest.sha256:
            raise LineError("the result does not match its digest")
        return SentJob(bytes(self._result), self._manifest.content_type, self._yields, backend_ms, reply)


def _ping(token: str, watch: Watch | None) -> Dialogue:
    yield Write(write_request(LineRequest(Verb.PING, _PING, 1, token=token)))
    reply = yield Read()
    while True:
        assert isinstance(reply, LineReply)
        if watch is not None:
            watch(Told(reply, 0))
        if reply.job in {NO_JOB, _PING}:  # a job that was given up may still be answered
            break
        reply = yield Read()
    if reply.status is not Status.OK:
        raise AbortedError(reply.need, reply.message, reply.request_id)
    inflight, cap = reply.receipt("backend.inflight") or 0, reply.receipt("backend.cap") or 0
    return Pinged(reply.receipt("server.health") == 1, inflight, cap, reply)


class _Addressed:
    """What both clients are told: `address` is `host[:port]`, `timeout_s` the longest silence."""

    def __init__(
        self,
        address: str = f"127.0.0.1:{PORT}",
        *,
        token: str = "",
        timeout_s: float = 20.0,
        retries: int = 50,
        ssl: tls.SSLContext | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._host, self._port = _split(address)
        self._token = token
        self._timeout_s = timeout_s
        self._retries = retries
        self._ssl = ssl
        self._watch = watch
        self._jobs = 0
        # The replies of two jobs at once would be read by either: the second waits until the first is over.
        self._threads, self._tasks = threading.Lock(), asyncio.Lock()

    def _upload(self, payload: bytes, *, job: str = "", **how: Unpack[_Manner]) -> Dialogue:
        if not payload:
            raise LineError("the payload is empty")
        if (chunk_bytes := how.get("chunk_bytes", CHUNK_BYTES)) < 1:
            raise LineError(f"chunk_bytes is {chunk_bytes}, the least is 1")
        self._jobs += 1
        name = job or f"J_{self._jobs}"
        named = _Job(payload, name, self._retries, self._token, self._watch, **how)
        try:
            return (yield from _Upload(named).run())
        except YieldedError:
            self._jobs -= 1  # the server keeps it for a while: the next job of this name takes its place
            raise


class LineClient(_Addressed):
    """Speaks to one server over one connection, one job at a time: other threads wait for their turn."""

    def __enter__(self) -> Self:
        try:
            plain = socket.create_connection((self._host, self._port), self._timeout_s)
            self._socket = self._ssl.wrap_socket(plain, server_hostname=self._host) if self._ssl else plain
        except OSError as error:
            raise LineError(f"cannot connect to {self._host}:{self._port}: {error}") from error
        self._reader = self._socket.makefile("rb")
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()
        self._socket.close()

    def send(self, payload: bytes, **how: Unpack[Sending]) -> SentJob:
        """Have this payload executed, as a turn of this session if any; raises YieldedError, AbortedError or LineError."""
        with self._threads:
            sent: SentJob = self._lead(self._upload(payload, **how))
        return sent

    def ping(self) -> Pinged:
        """Ask how the server stands."""
        with self._threads:
            pinged: Pinged = self._lead(_ping(self._token, self._watch))
        return pinged

    def _lead(self, dialogue: Dialogue) -> Any:
        heard: Heard = None
        try:
            while True:
                step = dialogue.send(heard)
                heard = None
                if isinstance(step, Write):
                    self._socket.sendall(step.line)
                elif isinstance(step, Pause):
                    time.sleep(step.seconds)
                elif isinstance(step, Reconnect):
                    self.__exit__()
                    heard = self._connected()
                else:
                    heard = _parse(self._reader.readline(_MOST_LINE_BYTES))
        except StopIteration as stop:
            return stop.value
        except OSError as error:
            raise LineError(f"the connection to {self._host}:{self._port} has failed: {error}") from error

    def _connected(self) -> LineError | None:
        try:
            self.__enter__()
        except LineError as error:
            return error
        return None


class AsyncLineClient(_Addressed):
    """The same for asyncio, with tasks instead of threads."""

    async def __aenter__(self) -> Self:
        connecting = asyncio.open_connection(self._host, self._port, ssl=self._ssl, limit=_MOST_LINE_BYTES)
        try:
            # In Python 3.11.2 `asyncio.timeout` ends as a cancellation in a task that was ever cancelled.
            self._reader, self._writer = await asyncio.wait_for(connecting, self._timeout_s)
        except OSError as error:
            raise LineError(f"cannot connect to {self._host}:{self._port}: {error}") from error
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def send(self, payload: bytes, **how: Unpack[Sending]) -> SentJob:
        """Have this payload executed, as a turn of this session if any; raises YieldedError, AbortedError or LineError."""
        async with self._tasks:
            sent: SentJob = await self._lead(self._upload(payload, **how))
        return sent

    async def ping(self) -> Pinged:
        """Ask how the server stands."""
        async with self._tasks:
            pinged: Pinged = await self._lead(_ping(self._token, self._watch))
        return pinged

    async def _lead(self, dialogue: Dialogue) -> Any:
        heard: Heard = None
        while True:
            try:
                step = dialogue.send(heard)
            except StopIteration as stop:
                return stop.value
            heard = None
            try:
                heard = await self._do(step)
            except (OSError, ValueError) as error:
                raise LineError(f"the connection to {self._host}:{self._port} has failed: {error}") from error

    async def _do(self, step: Step) -> Heard:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        if isinstance(step, Reconnect):
            self._writer.close()
            try:
                await self.__aenter__()
            except LineError as error:
                return error
            return None
        if isinstance(step, Write):
            self._writer.write(step.line)
            await asyncio.wait_for(self._writer.drain(), self._timeout_s)
            return None
        return _parse(await asyncio.wait_for(self._reader.readline(), self._timeout_s))


def _split(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or port.endswith("]"):
        return address.strip("[]"), PORT
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise LineError(f"{address!r} is not an address: write host:port")
    return host.strip("[]") or "127.0.0.1", int(port)


def _parse(line: bytes) -> LineReply:
    if not line.endswith(b"\n"):
        raise LineError("the server has closed the connection")
    try:
        return read_reply(line)
    except FrameError as error:
        raise LineError(str(error)) from error
