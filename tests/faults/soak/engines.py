"""Engines that do each thing an engine can do wrong to one request in a hundred, and the network to one second in a hundred.

An `Engine` is a scripted upstream behind the fault proxy. It counts on its own, whatever the gate believes: how many
requests it works for at once, for how long there were more than the cap allows, and which it has been sent.
"""

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence

from lab.upstream import FakeUpstream, Script, ScriptedConnection, answers

from millgate.testing import NO_FAULTS, FaultProxy, Faults

SHARE = 0.01
"""Of requests for every fault of an engine, and of time for every fault of the network."""

WEATHER_S = 0.25
"""How long one fault of the network lasts."""

TOKEN_GAP_S = 0.01
_ODD_PAGES_SHARE = 0.5
_MOST_TOKENS = 40
_LARGE_SHARE = 0.03
"""Of polite streams are so large that they do not fit into the kernel's buffers of a client that does not read."""
_LARGE = answers.chunks(answers.event("x" * 1000) * 50)

STREAM_HEAD = answers.head(200, answers.EVENT_STREAM)
_BEGUN = STREAM_HEAD + answers.chunks(answers.event(""), answers.event("a"))
_ENDED = answers.chunks(answers.event(finish="stop") + answers.DONE) + answers.LAST_CHUNK
_ERROR_EVENT = b"data: " + answers.error(503, "too many queued") + b"\n\n"
_COMPLETION = answers.completion("hello")


def _streams(line: ScriptedConnection) -> bool:
    return b'"stream": true' in line.request.body


async def _closed(line: ScriptedConnection) -> None:
    line.close()


async def _reset(line: ScriptedConnection) -> None:
    line.reset()


async def _stalled(line: ScriptedConnection) -> None:
    await line.stall()


def _says(*pieces: bytes, then: Callable[[ScriptedConnection], Awaitable[None]] | None = None) -> Script:
    """Return a script that sends these bytes, each in a segment of its own, and then does that."""

    async def script(line: ScriptedConnection) -> None:
        for piece in pieces:
            await line.send(piece)
            await line.wait(TOKEN_GAP_S)
        if then is not None:
            await then(line)

    return script


def _by_kind(whole: Script, streamed: Script) -> Script:
    """Return a script that breaks a whole answer in one way and a stream in the other."""

    async def script(line: ScriptedConnection) -> None:
        await (streamed if _streams(line) else whole)(line)

    return script


def _begun(then: Callable[[ScriptedConnection], Awaitable[None]]) -> Script:
    """Return a script that begins to answer, as asked, and then does that."""
    half = answers.whole(_COMPLETION)[:-60]
    return _by_kind(_says(half, then=then), _says(_BEGUN, answers.chunks(answers.event("b")), then=then))


async def _dripped_head(line: ScriptedConnection) -> None:
    whole = answers.whole(_COMPLETION)
    await line.send_slowly(whole, 1, 0.0005)


async def _dripped_stream(line: ScriptedConnection) -> None:
    events = answers.stream("a", "b", "c")
    await line.send_slowly(STREAM_HEAD + answers.chunks(events) + answers.LAST_CHUNK, 1, 0.0005)


def _status(status: int, *fields: str) -> Script:
    return _says(answers.whole(answers.error(status), status, answers.JSON, *fields))


def _kind(body: bytes, kind: str) -> Script:
    return _says(answers.whole(body, 200, kind))


def _usage(usage: object) -> Script:
    odd = {"id": "c", "choices": [], "usage": usage}
    last = answers.chunks(b"data: " + json.dumps(odd).encode() + b"\n\n")
    return _by_kind(_says(answers.whole(answers.completion("a", usage=usage))), _says(_BEGUN, last, _ENDED))


_BOTH_LENGTHS = answers.whole(_COMPLETION).replace(b"\r\n", b"\r\ntransfer-encoding: chunked\r\n", 1)

FAULTS: Mapping[str, Script] = {
    "closed before the head": _closed,
    "reset before the head": _reset,
    "silent": _stalled,
    "head byte by byte": _by_kind(_dripped_head, _dripped_stream),
    "head without end": _says(b"HTTP/1.1 200 OK\r\n" + b"x-filler: " + b"a" * 400_000, then=_stalled),
    "10,000 fields": _says(b"HTTP/1.1 200 OK\r\n" + b"x-filler: a\r\n" * 10_000 + b"\r\n"),
    "garbage": _says(b"\x00\xff not HTTP at all\r\n\r\n", then=_closed),
    "two framings": _says(_BOTH_LENGTHS),
    "bad chunk size": _says(STREAM_HEAD + b"zz\r\nhello\r\n", then=_stalled),
    "truncated chunk": _says(_BEGUN, b"fff\r\ndata: ", then=_closed),
    "100 interim answers": _says(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100 + answers.whole(_COMPLETION)),
    "silent after the head": _says(STREAM_HEAD, then=_stalled),
    "silent within": _begun(_stalled),
    "closed within": _begun(_closed),
    "reset within": _begun(_reset),
    "no [DONE]": _says(_BEGUN, answers.LAST_CHUNK),
    "damaged [DONE]": _says(_BEGUN, _ENDED.replace(b"[DONE]", b"[D\xb0NE]")),
    "first event an error": _says(STREAM_HEAD, answers.chunks(_ERROR_EVENT) + answers.LAST_CHUNK),
    "later event an error": _says(_BEGUN, answers.chunks(_ERROR_EVENT) + answers.LAST_CHUNK),
    "line without end": _says(_BEGUN, *[answers.chunks(b"x" * 65_536)] * 40, then=_stalled),
    "200 and HTML": _kind(b"<html>", "text/html"),
    "200 and no JSON": _kind(b'{"choices": [', answers.JSON),
    "204": _says(answers.whole(b"", 204)),
    "302": _status(302, "location: http://127.0.0.1:1/"),
    "400": _status(400),
    "404": _status(404),
    "429 with a hint": _status(429, "retry-after: 1"),
    "429": _status(429),
    "500": _status(500),
    "503": _status(503),
    "529": _status(529, "retry-after: soon"),
    "no usage": _usage(None),
    "negative usage": _usage({"prompt_tokens": -5, "completion_tokens": 1}),
    "absurd usage": _usage({"prompt_tokens": 10**15, "completion_tokens": 10**15}),
}

WEATHER: Mapping[str, tuple[Faults, Faults]] = {
    "late": (Faults(latency_s=0.05), Faults(latency_s=0.05)),
    "slow": (NO_FAULTS, Faults(bytes_per_s=20_000)),
    "sliced": (Faults(slice_bytes=7), Faults(slice_bytes=7)),
    "damaged": (NO_FAULTS, Faults(corrupt_at=5_000)),
    "limited": (NO_FAULTS, Faults(limit_bytes=3_000)),
    "reset after 3 kB": (NO_FAULTS, Faults(reset_after_bytes=3_000)),
    "reset within the request": (Faults(reset_after_bytes=2_000), NO_FAULTS),
    "answers lost": (NO_FAULTS, Faults(blackhole=True)),
    "requests lost": (Faults(blackhole=True), NO_FAULTS),
}
"""What the network does to each direction: to the engine, to the gate."""
OUTAGES: Sequence[str] = ("refuses", "resets new connections", "cuts all connections")


class Engine:
    """One engine of the soak, with its proxy and its own accounts."""

    def __init__(
        self,
        cap: int,
        dice: random.Random,
        more_faults: Mapping[str, Script] | None = None,
        odd_pages: Sequence[bytes] = (),
    ) -> None:
        self.upstream = FakeUpstream(self._answer, on_scrape=self._gauges, on_look=self._list_models)
        self.faults: Counter[str] = Counter()
        self.executed: list[tuple[str, str]] = []
        """Every request in order: its id, and what was done to it."""
        self.most = 0
        self.longest_above_s = 0.0
        self.above_s = 0.0
        self._kinds = {**FAULTS, **(more_faults or {})}
        self._odd_pages = odd_pages
        self._cap = cap
        self._dice = dice
        self._working = 0
        self._above_since = 0.0

    async def run(self, stack: contextlib.AsyncExitStack) -> None:
        """Listen, and change the weather until the stack is left."""
        await stack.enter_async_context(self.upstream)
        self.proxy = await stack.enter_async_context(FaultProxy(self.upstream.port))
        self._task = asyncio.create_task(self._change_weather())
        stack.push_async_callback(self._end_weather)

    async def _end_weather(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def die(self) -> None:
        """Cut every connection and take no new one."""
        await self._end_weather()
        await self.proxy.stop()

    async def come_back(self) -> None:
        """Listen where it was, and let the weather change again."""
        await self.proxy.start()
        self._task = asyncio.create_task(self._change_weather())

    async def calm(self) -> None:
        """Let every fault be over, and cut what is open."""
        await self._end_weather()
        self.upstream.script = answers_politely(self._dice)
        self.proxy.heal()
        self.proxy.cut()

    async def _answer(self, line: ScriptedConnection) -> None:
        self.upstream.received.clear()
        name, script = self._choice()
        self.executed.append(((line.request.header(b"x-request-id") or b"").decode(), name))
        self._begin()
        try:
            await script(line)
        finally:
            self._end()

    def _choice(self) -> tuple[str, Script]:
        at = int(self._dice.random() / SHARE)
        if at >= len(self._kinds):
            return "answered", answers_politely(self._dice)
        name = list(self._kinds)[at]
        self.faults[name] += 1
        return name, self._kinds[name]

    def _begin(self) -> None:
        self._working += 1
        self.most = max(self.most, self._working)
        if self._working == self._cap + 1:
            self._above_since = time.monotonic()

    def _end(self) -> None:
        self._working -= 1
        if self._working == self._cap:
            above_s = time.monotonic() - self._above_since
            self.longest_above_s = max(self.longest_above_s, above_s)
            self.above_s += above_s

    @property
    def working(self) -> int:
        """How many requests it works for now."""
        return self._working

    async def _gauges(self, line: ScriptedConnection) -> None:
        """Tell the gate the truth, mostly; sometimes nonsense or nothing."""
        page = b"vllm:num_requests_running %d\nvllm:num_requests_waiting 0\n" % self._working
        if self._odd_pages and self._dice.random() < _ODD_PAGES_SHARE:
            page = self._dice.choice(self._odd_pages)
        elif self._dice.random() < 10 * SHARE:
            page = self._dice.choice((b"vllm:num_requests_running NaN\n", b"<html>", b"\xff" * 100, b""))
        await line.send(answers.whole(page, 200, "text/plain"))

    async def _list_models(self, line: ScriptedConnection) -> None:
        """List a model and now and then an adapter; sometimes nonsense or nothing."""
        cards = [
            {"id": "m", "parent": None},
            *([{"id": "adapter", "parent": "m"}] * self._dice.randint(0, 1)),
        ]
        page = json.dumps({"object": "list", "data": cards}).encode()
        if self._dice.random() < 10 * SHARE:
            page = self._dice.choice((b'{"data": [{"id": 7}]}', b"[" * 3_000, b"<html>", b"\xff" * 100, b""))
        await line.send(answers.whole(page, 200))

    async def _change_weather(self) -> None:
        names = [*WEATHER, *OUTAGES]
        while True:
            at = int(self._dice.random() / SHARE)
            if at < len(names):
                self.faults[names[at]] += 1
                await self._suffer(names[at])
            else:
                await asyncio.sleep(WEATHER_S)

    async def _suffer(self, name: str) -> None:
        proxy = self.proxy
        if name in WEATHER:
            proxy.to_server, proxy.to_client = WEATHER[name]
        elif name == "cuts all connections":
            proxy.cut()
        elif name != "refuses":
            proxy.accepting = False
        try:
            if name == "refuses":
                await proxy.stop()
            await asyncio.sleep(WEATHER_S)
        finally:
            proxy.heal()
            if name == "refuses":
                await proxy.start()


def answers_politely(dice: random.Random) -> Script:
    """Return a script that answers as a healthy engine does, in the time that a real one takes."""
    tokens = dice.randint(1, _MOST_TOKENS)
    large = dice.random() < _LARGE_SHARE

    async def script(line: ScriptedConnection) -> None:
        if not _streams(line):
            await line.wait(tokens * TOKEN_GAP_S)
            await line.send(answers.whole(answers.completion("hello", tokens)))
            return
        await line.send(STREAM_HEAD + answers.chunks(answers.event("")))
        for _ in range(tokens):
            await line.wait(TOKEN_GAP_S)
            await line.send(_LARGE if large else answers.chunks(answers.event("word")))
        usage = answers.usage_event(output_tokens=tokens) if b"include_usage" in line.request.body else b""
        await line.send(
            answers.chunks(answers.event(finish="stop") + usage + answers.DONE) + answers.LAST_CHUNK
        )

    return script
