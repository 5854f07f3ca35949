"""A gate around an ASGI model server (FastAPI, Starlette, ...): refuse early, drop what has lost its client.

    app.add_middleware(GateMiddleware, gate=millgate.Gate(max_inflight=4), paths={"/v1/chat/completions"})

A request is read whole before the gate is asked: then nothing can come from the client but its hang-up, and the
same body is recognised when it comes back. A client that leaves while it waits loses its place; one that leaves
while it is served has its handler cancelled.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from contextlib import suppress
from typing import Any, Final, Literal

from millgate.core.words import Reason
from millgate.dialects.refusals import RefusalAnswer, Refuser
from millgate.library.gate import Gate, Slot, Yielded

# ASGI's parts (https://asgi.readthedocs.io/en/latest/specs/main.html), by the names that Starlette has for them.
Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

_MOST_BODY_BYTES: Final = 32 * 1024 * 1024
"""As the gateway's own door: images in a conversation go up to this."""
_MOST_BYTES_AT_ONCE: Final = 256_000_000
"""Over all requests of one application (INV-5)."""
_BUSY_RETRY_S: Final = 1.0
_LAST: Final = frozenset({"http.response.body", "http.response.pathsend"})
"""Messages that end an answer, unless more is to come."""
_LEFT: Final = RefusalAnswer(499, [], b"", close=True)
"""For a client that has left: a server drops it, and middleware around this one raises where no answer comes."""


def tokens_of_body(body: bytes) -> int:
    """Return a fair guess of a request's prompt tokens: four bytes each."""
    return max(1, len(body) // 4)


class GateMiddleware:
    """Puts a slot of `gate` around every POST to `paths` (None: to any path).

    `tokens` sizes a request by its body, `tenant` names its tenant. Refusals are written in `dialect`, with status,
    hints and body as the SDKs of that dialect expect them.
    """

    def __init__(
        self,
        app: ASGIApp,
        gate: Gate,
        *,
        paths: Collection[str] | None = None,
        dialect: Literal["openai", "anthropic"] = "openai",
        tokens: Callable[[bytes], int] = tokens_of_body,
        tenant: Callable[[Scope], str] | None = None,
    ) -> None:
        self._app = app
        self._gate = gate
        self._paths = paths
        self._refuser = Refuser(dialect)
        self._tokens = tokens
        self._tenant = tenant
        self._bytes_queued = 0
        self._numbers = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        is_gated = self._paths is None or scope.get("path") in self._paths
        if scope["type"] != "http" or scope["method"] != "POST" or not is_gated:
            await self._app(scope, receive, send)
            return
        client = _Client(receive, send)
        try:
            refusal = await self._read(client)
            if refusal is not None:
                await client.respond(refusal)
            elif not client.gone.is_set():
                await self._serve(scope, client)
            if client.gone.is_set() and not client.status:
                await client.respond(_LEFT)
        finally:
            self._bytes_queued -= len(client.body)
            client.close()

    async def _read(self, client: "_Client") -> RefusalAnswer | None:
        """Take the body in; return the refusal of one that is too large, for us or for now."""
        while not client.whole and not client.gone.is_set():
            piece = await client.read()
            if len(client.body) + len(piece) > _MOST_BODY_BYTES:
                return self._refusal(Reason.TOO_LARGE, 0.0, retry=False)
            if self._bytes_queued + len(piece) > _MOST_BYTES_AT_ONCE:
                return self._refusal(Reason.SATURATED, _BUSY_RETRY_S, retry=True)
            self._bytes_queued += len(piece)
            client.body += piece
        return None

    async def _serve(self, scope: Scope, client: "_Client") -> None:
        slot = self._gate.slot(
            tokens=self._tokens(bytes(client.body)),
            tenant=self._tenant(scope) if self._tenant else "",
            key=scope["path"].encode() + b"\0" + client.body,
        )
        client.watch()
        try:
            if await client.unless_gone(slot.__aenter__()):
                await self._run(scope, client, slot)
        except asyncio.CancelledError as error:  # it may have been admitted in this very turn
            await slot.__aexit__(type(error), error, None)
            raise
        except Yielded as refused:
            await client.respond(self._refusal(refused.reason, refused.retry_after_s, retry=refused.retry))

    async def _run(self, scope: Scope, client: "_Client", slot: Slot) -> None:
        try:
            whole = (
                await client.unless_gone(self._app(scope, client.receive, client.send)) and not client.left
            )
        except BaseException as error:
            await slot.__aexit__(type(error), asyncio.CancelledError() if client.left else error, None)
            raise
        if client.status >= 500:
            slot.fail()
        await slot.__aexit__(None, None if whole else asyncio.CancelledError(), None)

    def _refusal(self, reason: Reason, retry_after_s: float, *, retry: bool) -> RefusalAnswer:
        self._numbers += 1
        return self._refuser.refuse(reason, retry_after_s, retry, b"gate-%x" % self._numbers)


class _Client:
    """One client: its body, its hang-up, the status that it was answered with, and whether it has the whole answer."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._handed_over = False
        self._watching: asyncio.Task[None] | None = None
        self.body = bytearray()
        self.whole = False
        self.gone = asyncio.Event()
        self.status = 0
        self._answered = False

    async def read(self) -> bytes:
        """Return the next piece of the body; empty when the client has left."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.gone.set()
            return b""
        self.whole = not message.get("more_body", False)
        piece: bytes = message.get("body", b"")
        return piece

    @property
    def left(self) -> bool:
        """Whether it has left before the end of its answer."""
        return self.gone.is_set() and not self._answered

    def watch(self) -> None:
        """Begin to listen for the hang-up."""
        self._watching = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            continue
        self.gone.set()

    async def unless_gone(self, doing: Awaitable[object]) -> bool:
        """Do this to its end and return True, or cancel it when the client leaves first and return False.

        ASGI servers say a hang-up at the end of an answer too: background tasks and what dependencies clean up go on then.
        """
        task = asyncio.ensure_future(doing)
        leaving = asyncio.ensure_future(self.gone.wait())
        try:
            await asyncio.wait((task, leaving), return_when=asyncio.FIRST_COMPLETED)
            if self._answered:
                await asyncio.wait((task,))
        finally:
            leaving.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))
        if task.cancelled():
            return False
        task.result()
        return True

    async def receive(self) -> Message:
        """Give the application the body, then the hang-up when it comes."""
        if not self._handed_over:
            self._handed_over = True
            return {"type": "http.request", "body": bytes(self.body), "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["type"] in _LAST:
            self._answered = not message.get("more_body", False)
        await self._send(message)

    async def respond(self, answer: RefusalAnswer) -> None:
        headers = [*answer.headers, (b"content-length", b"%d" % len(answer.body))]
        with suppress(OSError):  # some servers raise one where the client has left
            await self.send({"type": "http.response.start", "status": answer.status, "headers": headers})
            await self.send({"type": "http.response.body", "body": answer.body})

    def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
