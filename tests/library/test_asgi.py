"""The middleware around a real Starlette application on a real server: refusals, recognition, hang-ups."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from millgate.library import Gate
from millgate.library.asgi import GateMiddleware, Message

CHAT = "/v1/chat/completions"


@dataclass
class Stand:
    """One model server: `go` lets its answers out, `began` and `cancelled` count its handlers."""

    gate: Gate
    url: str = ""
    port: int = 0
    began: int = 0
    cancelled: int = 0
    cleaned_up: int = 0
    status: int = 200
    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: Request) -> Response:
        """Echo the body when told to."""
        self.began += 1
        body = await request.body()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return PlainTextResponse(body, status_code=self.status, background=BackgroundTask(self.clean_up))

    async def stream(self, _request: Request) -> Response:
        """Stream a token, and the next when told to."""

        async def tokens() -> AsyncIterator[str]:
            yield "one"
            await self.go.wait()
            yield "two"

        return StreamingResponse(tokens())

    async def clean_up(self) -> None:
        """Do what frameworks do behind an answer: background tasks, and the ends of dependencies."""
        await asyncio.sleep(0.02)
        self.cleaned_up += 1


async def until(truth: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not truth():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.002)


def served(
    gate: Gate, test: Callable[[Stand, httpx.AsyncClient], Awaitable[None]], dialect: str = "openai"
) -> None:
    async def body() -> None:
        stand = Stand(gate)
        app = Starlette(
            routes=[
                Route("/v1/chat/completions", stand.answer, methods=["POST"]),
                Route("/free", stand.answer, methods=["POST"]),
                Route("/stream", stand.stream, methods=["POST"]),
            ]
        )
        app.add_middleware(GateMiddleware, gate=gate, paths={CHAT, "/stream"}, dialect=dialect)  # type: ignore[arg-type]
        sock = socket.create_server(("127.0.0.1", 0))
        stand.port = sock.getsockname()[1]
        stand.url = f"http://127.0.0.1:{stand.port}"
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        try:
            async with httpx.AsyncClient(base_url=stand.url, timeout=10) as client:
                await test(stand, client)
        finally:
            stand.go.set()
            server.should_exit = True
            await serving

    asyncio.run(body())


def test_within_the_cap_it_is_as_if_there_were_no_gate() -> None:
    async def test(stand: Stand, client: httpx.AsyncClient) -> None:
        stand.go.set()
        answer = await client.post(CHAT, content=b"hello" * 50_000)
        assert (answer.status_code, answer.content) == (200, b"hello" * 50_000)
        await until(lambda: stand.gate.inflight == 0)

    served(Gate(1), test)


def test_background_tasks_run_to_their_end_in_the_slot_and_their_answer_was_served() -> None:
    """A server says at the end of an answer what it says when a client leaves."""

    async def test(stand: Stand, client: httpx.AsyncClient) -> None:
        stand.go.set()
        assert (await client.post(CHAT, content=b"1")).status_code == 200
        await until(lambda: stand.gate.inflight == 0)
        assert stand.cleaned_up == 1
        assert dict(stand.gate.snapshot().lanes[0].outcomes)["good"] == 1  # type: ignore[index]

    served(Gate(1), test)


def test_above_it_the_answer_is_the_gateways_own() -> None:
    async def test(stand: Stand, client: httpx.AsyncClient) -> None:
        first = asyncio.create_task(client.post(CHAT, content=b"1"))
        await until(lambda: stand.began == 1)
        refused = await client.post(CHAT, content=b"2")
        assert refused.status_code == 503
        assert refused.headers["x-millgate-reason"] == "saturated"
        assert refused.headers["x-should-retry"] == "true"
        assert 0 < int(refused.headers["retry-after-ms"]) <= 60_000
        assert refused.json()["error"]["code"] == "server_is_overloaded"
        stand.go.set()
        assert (await first).status_code == 200
        assert stand.began == 1
        await asyncio.sleep(min(0.3, int(refused.headers["retry-after-ms"]) / 1000))
        again = await client.post(CHAT, content=b"2")
        assert again.status_code == 200
        assert stand.gate.snapshot().retries.recognised == 1

    served(Gate(1, max_queue=0), test)


def test_other_paths_and_other_dialects() -> None:
    async def test(stand: Stand, client: httpx.AsyncClient) -> None:
        first = asyncio.create_task(client.post(CHAT, content=b"1"))
        await until(lambda: stand.began == 1)
        refused = await client.post(CHAT, content=b"2")
        assert (refused.status_code, refused.json()["error"]["type"]) == (529, "overloaded_error")
        free = asyncio.create_task(client.post("/free", content=b"free"))
        await until(lambda: stand.began == 2)
        stand.go.set()
        assert (await free).content == b"free"
        await first

    served(Gate(1, max_queue=0), test, "anthropic")


def test_a_client_that_leaves_while_it_waits_loses_its_place() -> None:
    async def test(stand: Stand, client: httpx.AsyncClient) -> None:
        first = asyncio.create_task(client.post(CHAT, content=b"1"))
        await until(lambda: stand.began == 1)
        waiting = asyncio.create_task(client.post(CHAT, content=b"2"))
        await until(lambda: stand.gate.waiting == 1)
        waiting.cancel()
        await until(lambda: stand.gate.waiting == 0)
        stand.go.set()
        await first
        assert stand.began == 1

    served(Gate(1), test)


def test_a_client_that_leaves_while_it_is_served_has_its_handler_cancelled() -> None:
    async def test(stand: Stand, client: httpx.AsyncClient) -> None:
        first = asyncio.create_task(client.post(CHAT, content=b"1"))
        await until(lambda: stand.began == 1)
        first.cancel()
        await until(lambda: stand.cancelled == 1)
        await until(lambda: stand.gate.inflight == 0)
        gone = dict(stand.gate.snapshot().lanes[0].outcomes)
        assert gone["client_gone"] == 1  # type: ignore[index]

    served(Gate(1), test)


def test_a_client_that_leaves_in_the_middle_of_a_stream_was_not_served() -> None:
    """Starlette ends such a stream without an error: it counted as good, and as a slot that takes as long as its part."""

    async def test(stand: Stand, client: httpx.AsyncClient) -> None:
        async with client.stream("POST", "/stream", content=b"1") as answer:
            await anext(answer.aiter_raw())
        await until(lambda: stand.gate.inflight == 0)
        outcomes = {word.value: count for word, count in stand.gate.snapshot().lanes[0].outcomes if count}
        assert outcomes == {"client_gone": 1}

    served(Gate(1), test)


def test_a_client_that_leaves_is_no_error_of_the_middleware_around_the_gate() -> None:
    """`BaseHTTPMiddleware`, and so FastAPI's `@app.middleware("http")`, raised `No response returned.` for each."""
    said: list[Message] = []

    async def app(*_: object) -> None:
        await asyncio.sleep(60.0)

    async def hand_on(request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)

    async def body() -> None:
        pieces: list[Message] = [{"type": "http.disconnect"}, {"type": "http.request", "body": b"{}"}]

        async def receive() -> Message:
            return pieces.pop() if pieces else await asyncio.get_running_loop().create_future()

        async def send(message: Message) -> None:
            said.append(message)

        scope = {"type": "http", "method": "POST", "path": CHAT, "headers": [], "query_string": b""}
        await BaseHTTPMiddleware(GateMiddleware(app, Gate(1)), hand_on)(scope, receive, send)

    asyncio.run(body())
    assert said[0]["status"] == 499


def test_a_handler_that_answers_500_has_failed() -> None:
    async def test(stand: Stand, client: httpx.AsyncClient) -> None:
        stand.go.set()
        stand.status = 500
        assert (await client.post(CHAT, content=b"1")).status_code == 500
        await until(lambda: stand.gate.inflight == 0)
        assert dict(stand.gate.snapshot().lanes[0].outcomes)["engine_failed"] == 1  # type: ignore[index]

    served(Gate(1), test)


def test_a_call_that_is_cancelled_in_the_turn_of_its_admission_keeps_no_slot() -> None:
    """The slot was never given back: a gate of one served nothing more."""

    async def left_after(turns: int) -> int:
        gate, pieces = Gate(1), [{"type": "http.request", "body": b"{}"}]

        async def receive() -> Message:
            return pieces.pop() if pieces else await asyncio.get_running_loop().create_future()

        async def nothing(*_: object) -> None:
            """Answer nothing."""

        async with gate.slot():
            scope = {"type": "http", "method": "POST", "path": CHAT}
            call = asyncio.create_task(GateMiddleware(nothing, gate)(scope, receive, nothing))
            await until(lambda: gate.waiting == 1)
        for _ in range(turns):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait((call,))
        return gate.inflight

    async def body() -> None:
        assert [await left_after(turns) for turns in range(8)] == [0] * 8

    asyncio.run(body())
