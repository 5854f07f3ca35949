"""A hosted provider on a socket: the law of its limits, its headers, its refusals; OpenAI and Anthropic on one port.

    limits = [QuotaLimit(QuotaKind.RPM, 600), QuotaLimit(QuotaKind.OTPM, 80_000, output=OutputCharge.PRODUCED)]
    with Provider(limits, output_tokens=200, tpot_s=0.01) as provider:
        ...  # point a gateway at provider.url
        print(provider.asked, provider.refused, provider.used_share(QuotaKind.OTPM))

`POST /v1/messages` is answered as Anthropic does, every other path as OpenAI's chat completions. A prompt is one token
for `bytes_per_token` bytes of the request. A client that hangs up stops its answer; what was produced stays charged.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from lab.provider import words
from lab.provider.law import Grant, ProviderLaw
from lab.upstream import answers
from lab.upstream.fake_upstream import FakeUpstream, ScriptedConnection, ScriptedRequest
from millgate.core.quotas.bucket import Sizes
from millgate.core.settings import QuotaLimit
from millgate.core.words import QuotaKind
from millgate.testing.service import Service

LEAST_EVENT_S = 0.02
"""Tokens that are made faster than this apart share an event, as busy providers send them."""
_UNBOUNDED_TOKENS = 4096
"""What a provider reserves for an answer whose client set no bound, where it reserves the bound."""

OutputTokens = int | Callable[[ScriptedRequest], int]


class ProviderService(Service):
    """One account at a hosted provider, in real time.

    `output_tokens` is the length of every answer, or a function of its request; the client's bound cuts it.
    `ttft_s` and `tpot_s` are its speed, `cached_share` how much of every prompt its cache knows, `used_share` how much
    of each limit is used at the start. `refusals_count` lets refused requests use up requests, as OpenAI does.
    `asked` counts requests, `passed` those that went through, `refused` the others by the limit that refused them,
    `overloaded` those that came during `overload`.
    """

    def __init__(
        self,
        limits: Sequence[QuotaLimit],
        *,
        output_tokens: OutputTokens = 64,
        ttft_s: float = 0.0,
        tpot_s: float = 0.0,
        bytes_per_token: float = 4.0,
        cached_share: float = 0.0,
        used_share: float = 0.0,
        refusals_count: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self.law = ProviderLaw(limits, clock(), used_share=used_share, refusals_count=refusals_count)
        self._output_tokens = output_tokens
        self._ttft_s, self._tpot_s = ttft_s, tpot_s
        self._bytes_per_token = bytes_per_token
        self._cached_share = cached_share
        self._overload_hint_s: float | None = None
        self._overloaded_until = float("-inf")
        self._upstream = FakeUpstream(self._answer)
        self.asked = self.passed = self.overloaded = 0
        self.refused: Counter[QuotaKind] = Counter()

    @property
    def url(self) -> str:
        """The base address, for `millgate serve --upstream`."""
        return self._upstream.url

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._upstream.port

    async def start(self) -> None:
        """Listen on a free port."""
        await self._upstream.start()

    async def stop(self) -> None:
        """Cut every connection and stop listening."""
        await self._upstream.stop()

    def overload(self, for_s: float, hint_s: float | None = None) -> None:
        """Answer every request of the next seconds with 529 (Anthropic) or 503 (OpenAI)."""
        self._overloaded_until = self._clock() + for_s
        self._overload_hint_s = hint_s

    def used_share(self, kind: QuotaKind) -> float:
        """Return which share of this quota was charged since the counts began."""
        return self.law.used_share(kind, self._clock())

    def count_from_now(self) -> None:
        """Start every count anew, as after a warm-up; what is used of the limits stays used."""
        self.law.count_from(self._clock())
        self.asked = self.passed = self.overloaded = 0
        self.refused.clear()

    async def _answer(self, line: ScriptedConnection) -> None:
        request, now = line.request, self._clock()
        anthropic = request.target.partition(b"?")[0].endswith(b"/messages")
        self.asked += 1
        if now < self._overloaded_until:
            self.overloaded += 1
            await line.send(words.overload(self._overload_hint_s, anthropic=anthropic))
            return
        body = request.json()
        sizes = self._sizes(request, body)
        verdict = self.law.ask(sizes, now)
        if verdict.refused_by is not None:
            self.refused[verdict.refused_by] += 1
            limit = self.law.meters[verdict.refused_by].limit.amount
            fields = words.limit_fields(self.law, now, time.time(), anthropic=anthropic)
            await line.send(words.refusal(verdict, limit, fields, anthropic=anthropic))
            return
        self.passed += 1
        answer = _Answer(line, self.law.grant(sizes, now), sizes, self._cached_share, anthropic, self._clock)
        fields = words.limit_fields(self.law, now, time.time(), anthropic=anthropic)
        try:
            await asyncio.sleep(self._ttft_s)
            await (answer.stream if body.get("stream") else answer.whole)(body, fields, self._tpot_s)
        finally:
            answer.end()

    def _sizes(self, request: ScriptedRequest, body: dict[str, Any]) -> Sizes:
        """Return the sizes of a request: `output_tokens` is what it will really get."""
        bound = body.get("max_completion_tokens") or body.get("max_tokens")
        wanted = self._output_tokens(request) if callable(self._output_tokens) else self._output_tokens
        prompt = max(1, round(len(request.body) / self._bytes_per_token))
        return Sizes(prompt, wanted if bound is None else min(wanted, bound), bound or _UNBOUNDED_TOKENS)


class _Answer:
    """One answer on its way, in pieces of what is produced in `LEAST_EVENT_S`."""

    def __init__(
        self,
        line: ScriptedConnection,
        grant: Grant,
        sizes: Sizes,
        cached_share: float,
        anthropic: bool,
        clock: Callable[[], float],
    ) -> None:
        self._line = line
        self._grant = grant
        self._clock = clock
        self._anthropic = anthropic
        self._prompt, self._output = sizes.prompt_tokens, sizes.output_tokens
        self._cached = int(cached_share * sizes.prompt_tokens)

    async def stream(self, body: dict[str, Any], fields: list[str], tpot_s: float) -> None:
        """Send events as tokens are produced."""
        anthropic, send = self._anthropic, self._line.send
        await send(answers.head(200, answers.EVENT_STREAM, *fields))
        await send(answers.chunks(words.opening(self._prompt, self._cached, anthropic=anthropic)))
        for count in self._pieces(tpot_s):
            await self._produce(count, tpot_s)
            await send(answers.chunks(words.tokens(count, anthropic=anthropic)))
        usage = bool((body.get("stream_options") or {}).get("include_usage"))
        last = words.closing(self._prompt, self._cached, self._output, anthropic=anthropic, usage=usage)
        await send(answers.chunks(last) + answers.LAST_CHUNK)

    async def whole(self, _body: dict[str, Any], fields: list[str], tpot_s: float) -> None:
        """Produce everything, then send it."""
        for count in self._pieces(tpot_s):
            await self._produce(count, tpot_s)
        text = words.whole_answer(self._prompt, self._cached, self._output, anthropic=self._anthropic)
        await self._line.send(answers.whole(text, 200, answers.JSON, *fields))

    def end(self) -> None:
        """Correct what was charged to what was produced."""
        self._grant.end(self._cached, self._clock())

    def _pieces(self, tpot_s: float) -> list[int]:
        size = self._output if tpot_s <= 0 else max(1, round(LEAST_EVENT_S / tpot_s))
        return list(words.pieces(self._output, max(1, size)))

    async def _produce(self, count: int, tpot_s: float) -> None:
        await asyncio.sleep(count * tpot_s)
        self._grant.produce(count, self._clock())
