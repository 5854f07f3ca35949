"""A whole gateway on a socket, and an engine that does exactly what a test tells it.

Everything is real but the engine: the HTTP server, the pooled client, the driver and the governor. The engine is a
raw socket script, so that it can break every rule of HTTP; a client is a raw socket too where the SDKs are too
polite.
"""

import asyncio
import contextlib
import json
import ssl as tls
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from millgate.core.settings import AccountSettings, EngineSettings, LaneSettings, QuotaRule, Settings
from millgate.core.snapshot import LaneSnapshot, Snapshot
from millgate.gateway import EngineAddress, Gateway, GatewaySettings
from millgate.runtime.callers import CallerSettings
from millgate.servers.http import DoorSettings
from millgate.sockets.loop import GateLoop
from millgate.wiring.governor import build_governor

CHAT = b"/v1/chat/completions"
PATIENCE_S = 30.0
"""How long a test waits for what must happen; only a failing test ever waits that long."""


def run(test: Awaitable[None], faults_told: int = 0) -> None:
    """Run an asynchronous test body on the loop of the gateway; an exception that the loop would only log fails the test.

    So does one of an engine's script. A test that plants faults says how many are told.
    """
    faults: list[dict[str, Any]] = []

    async def bounded() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: faults.append(context))
        async with asyncio.timeout(30):
            await test

    with asyncio.Runner(loop_factory=GateLoop) as runner:
        runner.run(bounded())
    assert len(faults) == faults_told, faults


async def until(truth: Callable[[], object], within_s: float = PATIENCE_S) -> None:
    """Return as soon as `truth()` holds; AssertionError when it does not within `within_s`."""
    by = time.monotonic() + within_s
    while not truth():
        assert time.monotonic() < by, "this should have become true"
        await asyncio.sleep(0.002)


# ---- what an engine says


def event(content: str | None = None, finish: str | None = None, **more: Any) -> bytes:
    """Return one chunk of a streamed chat completion as vLLM writes it."""
    delta = {} if content is None else {"content": content}
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    body = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **more}
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


def usage_event(prompt_tokens: int, output_tokens: int) -> bytes:
    """Return the last event of a stream that was asked for its usage."""
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": output_tokens}
    return (
        b"data: "
        + json.dumps({"id": "c", "choices": [], "usage": usage}, separators=(",", ":")).encode()
        + b"\n\n"
    )


ROLE = event("").replace(b'"delta":{', b'"delta":{"role":"assistant",')
DONE = b"data: [DONE]\n\n"


def answer(content: str = "hello", output_tokens: int = 2, finish: str = "stop") -> bytes:
    """Return a whole chat completion."""
    message = {"role": "assistant", "content": content}
    body = {
        "id": "chatcmpl-1",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": 5, "total_tokens": 5 + output_tokens, "completion_tokens": output_tokens},
    }
    return json.dumps(body).encode()


@dataclass
class Asked:
    """One request that has reached the engine, and the line back to the gateway."""

    line: bytes
    headers: dict[str, str]
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    gone: bool = False

    def raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(data)

    def reply(self, body: bytes, status: int = 200, kind: str = "application/json", **headers: str) -> None:
        """Send a whole answer."""
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        self.raw(
            f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n{lines}\r\n".encode()
            + body
        )

    def open_stream(self, kind: str = "text/event-stream; charset=utf-8") -> None:
        """Send the head of an event stream, as vLLM does before it has anything to say, or of chunks of another kind."""
        self.raw(f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n".encode())
        self.raw(b"transfer-encoding: chunked\r\n\r\n")

    def send(self, *pieces: bytes) -> None:
        """Send each piece as one chunk."""
        for piece in pieces:
            self.raw(b"%x\r\n%b\r\n" % (len(piece), piece))

    def end_stream(self) -> None:
        """End the chunked body."""
        self.raw(b"0\r\n\r\n")

    def cut(self) -> None:
        """Reset the connection."""
        self.writer.transport.abort()

    async def hung_up(self, within_s: float = PATIENCE_S) -> None:
        """Return when the gateway has closed the connection."""
        await until(lambda: self.gone, within_s)


Script = Callable[[Asked], Awaitable[None]]


async def answer_whole(asked: Asked) -> None:
    """Answer at once, streamed or not as asked."""
    if json.loads(asked.body or b"{}").get("stream"):
        asked.open_stream()
        asked.send(ROLE, event("hel"), event("lo"), event(finish="stop"))
        if b"include_usage" in asked.body:
            asked.send(usage_event(5, 2))
        asked.send(DONE)
        asked.end_stream()
    else:
        asked.reply(answer())


@dataclass
class FakeEngine:
    """A raw HTTP/1.1 server that runs `script` for every request but those for its metrics page."""

    script: Script = answer_whole
    metrics: bytes | None = None
    asked: list[Asked] = field(default_factory=list)
    scrapes: int = 0
    health: int = 200
    port: int = 0
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self, ssl: tls.SSLContext | None = None) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=ssl)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close everything."""
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._server.wait_closed()

    async def next(self, count: int = 1) -> Asked:
        """Return the `count`-th request that reached the engine, when it has."""
        await until(lambda: len(self.asked) >= count)
        return self.asked[count - 1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while (asked := await _read(reader, writer)) is not None:
                if b" /metrics" in asked.line:
                    self.scrapes += 1
                    asked.reply(self.metrics or b"", 200 if self.metrics else 404, "text/plain")
                elif b" /health" in asked.line:
                    asked.reply(b"", self.health, "text/plain")
                else:
                    self.asked.append(asked)
                    await self._run(asked)
        except (asyncio.CancelledError, ConnectionError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _run(self, asked: Asked) -> None:
        """Run the script, watching for the hang-up of the gateway meanwhile."""
        script = asyncio.ensure_future(self.script(asked))
        watch = asyncio.ensure_future(_watch(asked))
        try:
            await asyncio.wait((script, watch), return_when=asyncio.FIRST_COMPLETED)
            if script.done():
                script.result()
        except ConnectionError:
            asked.gone = True
        except Exception as fault:
            asyncio.get_running_loop().call_exception_handler({"message": "the script", "exception": fault})
            raise
        finally:
            for task in (script, watch):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                    await task


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Asked | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    line, *fields = head[:-4].decode("latin-1").split("\r\n")
    headers = dict(field.split(": ", 1) for field in fields)
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(line.encode(), headers, body, reader, writer)


async def _watch(asked: Asked) -> None:
    """Note the end of input: the gateway sends nothing behind a request, so it can only be a hang-up."""
    while not asked.reader.at_eof() and asked.reader.exception() is None:  # noqa: ASYNC110 - streams offer no event for it
        await asyncio.sleep(0.002)
    asked.gone = True


# ---- what a client sees


@dataclass
class Answer:
    """An answer as it came off the wire; `whole` is False when the connection was cut within it."""

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool

    def json(self) -> Any:
        """Return the decoded body."""
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """Return the error object of an OpenAI error body."""
        error: dict[str, Any] = self.json()["error"]
        return error


@dataclass
class Client:
    """One raw client connection to the gateway."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def ask(
        self, body: bytes, path: bytes = CHAT, method: bytes = b"POST", headers: dict[str, str] | None = None
    ) -> None:
        """Send one request."""
        fields = {"host": "gate", "content-type": "application/json", "content-length": str(len(body))}
        fields |= headers or {}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items()).encode()
        self.writer.write(b"%b %b HTTP/1.1\r\n%b\r\n%b" % (method, path, lines, body))

    async def head(self) -> Answer:
        """Read the head of an answer."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        line, *fields = head[:-4].decode("latin-1").split("\r\n")
        return Answer(int(line.split()[1]), dict(each.split(": ", 1) for each in fields), b"", whole=False)

    async def chunk(self) -> bytes:
        """Read one chunk of a chunked body, empty at its end."""
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        data = await self.reader.readexactly(size + 2)
        return data[:-2]

    async def answer(self) -> Answer:
        """Read a whole answer, or what there is of it."""
        answer = await self.head()
        try:
            if "content-length" in answer.headers:
                answer.body = await self.reader.readexactly(int(answer.headers["content-length"]))
            else:
                while data := await self.chunk():
                    answer.body += data
            answer.whole = True
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        return answer

    def leave(self) -> None:
        """Close the connection."""
        self.writer.transport.abort()


def chat(content: str = "hi", **more: Any) -> bytes:
    """Return the body of a chat completion request."""
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": content}], **more}).encode()


@dataclass
class Stand:
    """A gateway in front of one fake engine."""

    gateway: Gateway
    engine: FakeEngine
    _clients: list[Client] = field(default_factory=list)

    async def client(self) -> Client:
        """Connect a new client."""
        client = Client(*await asyncio.open_connection("127.0.0.1", self.gateway.port))
        self._clients.append(client)
        return client

    async def ask(self, body: bytes, path: bytes = CHAT, method: bytes = b"POST", **headers: str) -> Answer:
        """Send one request on a connection of its own and read its answer."""
        client = await self.client()
        client.ask(body, path, method, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = await client.answer()
        client.leave()
        return answer

    @property
    def snapshot(self) -> Snapshot:
        """The core's numbers now."""
        return self.gateway.driver.snapshot()

    @property
    def lane(self) -> LaneSnapshot:
        """The one lane's numbers now."""
        return self.snapshot.lanes[0]

    def outcomes(self) -> dict[str, int]:
        """Return how attempts ended, by outcome, without the zeros."""
        return {outcome.value: count for outcome, count in self.lane.outcomes if count}

    async def settle(self) -> None:
        """Wait until nothing is in flight, and check that every attempt has had one outcome (INV-1, INV-3)."""
        await until(lambda: self.gateway.door.ongoing == 0 and self.lane.queued == 0)
        await until(lambda: self.snapshot.engines[0].running + self.snapshot.engines[0].departing == 0)
        assert sum(self.outcomes().values()) == self.lane.arrived

    async def close(self) -> None:
        """Take everything down."""
        for client in self._clients:
            client.leave()
        await self.gateway.stop()
        await self.engine.stop()


@contextlib.asynccontextmanager
async def standing(
    script: Script = answer_whole,
    *,
    max_inflight: int = 4,
    lane: LaneSettings | None = None,
    lanes: tuple[LaneSettings, ...] = (),
    callers: CallerSettings | None = None,
    metrics: bytes | None = None,
    door: DoorSettings | None = None,
    drain_grace_s: float = 5.0,
    account: AccountSettings | None = None,
    quotas: tuple[QuotaRule, ...] = (),
) -> AsyncIterator[Stand]:
    """Serve a gateway with one lane, or these `lanes`, in front of one fake engine until the block ends."""
    engine = FakeEngine(script, metrics)
    await engine.start()
    core = Settings(
        lanes=lanes or (lane or LaneSettings("interactive"),),
        engines=(EngineSettings("engine", max_inflight, account=account),),
        quotas=quotas,
    )
    settings = GatewaySettings(
        engines=(EngineAddress("engine", "127.0.0.1", engine.port, metered=account is not None),),
        port=0,
        door=door or DoorSettings(),
        drain_grace_s=drain_grace_s,
        callers=callers or CallerSettings(),
    )
    stand = Stand(Gateway(build_governor(core, time.monotonic()), settings), engine)
    await stand.gateway.start()
    try:
        yield stand
    finally:
        await stand.close()
