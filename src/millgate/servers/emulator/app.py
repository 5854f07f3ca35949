"""The embedded engine as an application of the HTTP/1.1 server: routes, answers, hang-ups.

It behaves as vLLM does where a gateway can tell: 200 and headers at once while the request still waits. It
serves first come, first served without bound, or answers 503 beyond `max_num_queued_reqs`. It does an abort as soon as a client leaves,
streaming or not, `finish_reason: "abort"` when the engine stops.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random
from typing import Final

from millgate.engine.adapters import AdapterSlots
from millgate.engine.batching import Batch
from millgate.engine.sequences import BatchStatistics, EngineSequence
from millgate.http1.server.contract import Exchange, RefusedRequest, RequestHead
from millgate.servers.emulator.answers import AnswerText, KeptResponses, MessageText, ResponseText, error_body
from millgate.servers.emulator.handoffs import READ_PATH, Handoff, Handoffs
from millgate.servers.emulator.meters import Meters
from millgate.servers.emulator.pacer import Feed, Pacer
from millgate.servers.emulator.pages import JSON, EnginePages
from millgate.servers.emulator.pooling import PoolingAnswers
from millgate.servers.emulator.prefixes import PrefixNames
from millgate.servers.emulator.requests import BadRequestError, GenerationRequest, RequestReader, Surface
from millgate.servers.emulator.settings import EmulatorSettings
from millgate.servers.emulator.troubles import BROKEN_OFF, FAILED, Trouble, Troubles, error_event
from millgate.servers.requests.fields import EVENTS

GENERATION_PATHS: Final = {
    b"/v1/chat/completions": Surface.CHAT,
    b"/v1/completions": Surface.COMPLETION,
    b"/v1/messages": Surface.MESSAGES,
    b"/v1/responses": Surface.RESPONSES,
}


Text = AnswerText | MessageText | ResponseText


@dataclass(slots=True, eq=False)
class Generation:
    """One request's answer while it is generated."""

    exchange: Exchange
    request: GenerationRequest
    text: Text
    trouble: Trouble | None = None
    handoff: Handoff | None = None
    taking: asyncio.Task[None] | None = None
    feeds: list[Feed] = field(default_factory=list)
    endings: list[tuple[int, str]] = field(default_factory=list)
    unfinished: int = field(init=False)
    unsent: dict[int, int] = field(default_factory=dict)
    slow: bool = False
    stalled: bool = False
    withheld: dict[Feed, tuple[int, bool]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.unfinished = len(self.request.answers)

    def break_off(self, message: str) -> None:
        """End the answer with an error: an event where its stream has begun, else a 500."""
        if self.request.stream:
            self.exchange.write(error_event(self.request.surface, message))
            self.exchange.finish()
        else:
            self.exchange.respond(*_refused(self.exchange.head, 500, message, "InternalServerError"))

    @property
    def prompt_tokens(self) -> int:
        """The tokens of its prompts, for each answer."""
        return sum([answer.prompt_tokens for answer in self.request.answers])

    @property
    def gives(self) -> bool:
        """Whether another engine is to have the KV of its prompt."""
        return self.handoff is not None and self.handoff.gives

    @property
    def cached_tokens(self) -> int:
        """What the prefix cache had of the prompts, as far as they have begun; each prompt once."""
        each = len(self.feeds) // self.request.prompts
        return sum([feed.hit_tokens for feed in self.feeds[::each]])

    def send(self, feed: Feed, tokens: int) -> None:
        """Write one event, or keep its tokens for the next while the reader is slow."""
        index = feed.index
        if self.slow:
            self.unsent[index] = self.unsent.get(index, 0) + tokens
            return
        if self.unsent:
            tokens += self.unsent.pop(index, 0)
        opening = b"" if feed.delivered_tokens > tokens else self.text.opening(index)
        self.exchange.write(opening + self.text.tokens(index, tokens))

    def write_ending(self, feed: Feed, tokens: int) -> None:
        """Write the last event of one answer, and with the last answer what closes the stream, in one write."""
        tokens += self.unsent.pop(feed.index, 0)
        opening = b"" if feed.delivered_tokens > tokens else self.text.opening(feed.index)
        data = opening + self.text.last_tokens(feed.index, tokens, self.endings[feed.index][1])
        if not self.unfinished:
            data += self.text.closing(sum(made for made, _ in self.endings))
        self.exchange.write(data)


class EmulatorApplication:
    """One embedded engine behind HTTP; `stop` ends what runs before the server closes."""

    def __init__(self, settings: EmulatorSettings, loop: asyncio.AbstractEventLoop) -> None:
        limits = settings.limits()
        batch = Batch(settings.engine_profile().step_model(), limits)
        self._settings = settings
        self._loop = loop
        adapters = AdapterSlots(settings.max_loras, settings.lora_load_s) if settings.lora_modules else None
        self._pacer = Pacer(batch, self, loop, adapters)
        self.meters = Meters(limits, settings.model_name, loop.time(), batch.statistics(loop.time()))
        self._reader = RequestReader(
            max_model_len=settings.max_model_len or limits.blocks * limits.block_tokens,
            tokens_per_event=settings.tokens_per_event,
            model_name=settings.model_name,
            dice=Random(settings.seed),  # noqa: S311 - lengths of answers, no secret
        )
        self._names = PrefixNames(limits.block_tokens) if settings.enable_prefix_caching else None
        self._kept = KeptResponses()
        self.troubles = Troubles(settings)
        pooling = PoolingAnswers(self._reader, settings.model_name)
        self._created = int(time.time())
        self._handoffs = Handoffs(settings, self._pacer, self.meters, loop)
        self.port = settings.port
        self._pages = EnginePages(
            settings, self._created, self.meters, self._pacer, self.troubles, pooling, self._kept, loop
        )
        self._open: dict[Exchange, Generation] = {}
        self._numbers = count(1)
        self._sequence_ids = count(1)

    def on_head(self, head: RequestHead) -> RefusedRequest | None:
        """Refuse unknown paths and wrong methods before a body is read."""
        posted = head.path in GENERATION_PATHS or head.path == READ_PATH
        method = b"POST" if posted else self._pages.method_of(head)
        if method is None:
            return _refused(head, 404, "Not Found", "NotFoundError")
        if head.method != method and not (method == b"GET" and head.method == b"HEAD"):
            refused = _refused(head, 405, "Method Not Allowed", "BadRequestError")
            return refused._replace(headers=(*JSON, (b"allow", method)))
        return None

    def on_request(self, exchange: Exchange, body: bytes) -> None:
        """Answer one request: at once, or token by token."""
        path = exchange.head.path
        surface = GENERATION_PATHS.get(path)
        if surface is not None:
            self._generate(exchange, body, surface)
        elif path == READ_PATH:
            status, said = self._handoffs.read(body)
            exchange.respond(status, JSON, said)
        else:
            self._pages.answer(exchange, body)

    def on_gone(self, exchange: Exchange) -> None:
        """Abort what has lost its reader, or with `ignore_hangups` generate on without one."""
        generation = self._open.pop(exchange, None)
        if generation is None:
            return
        self.meters.client_gone += 1
        self._handoffs.leave(generation.handoff, generation.taking)
        end = self._pacer.silence if self._settings.ignore_hangups else self._pacer.abort
        for feed in generation.feeds:
            end(feed)
            self._pacer.unpin(feed.sequence.sequence_id)

    def on_slow(self, exchange: Exchange, slow: bool) -> None:
        """Hold tokens back while a reader is behind; they come together in its next event."""
        generation = self._open.get(exchange)
        if generation is not None:
            generation.slow = slow

    def bad_request(
        self, status: int, code: str, message: str, head: RequestHead | None = None
    ) -> RefusedRequest:
        """Dress a framing error, a cap or a deadline as vLLM dresses a bad request."""
        return _refused(head, status, f"{code}: {message}", "BadRequestError")

    def on_tokens(self, feed: Feed, tokens: int, now: float, *, last: bool) -> None:
        """Send tokens to the reader of this feed."""
        if feed.delivered_tokens == tokens:
            self.meters.ttft.add(now - feed.asked_at)
        else:
            self.meters.itl.add((now - feed.delivered_at) / tokens, tokens)
        generation = feed.owner
        assert isinstance(generation, Generation)
        if feed.silent:
            if last:
                # What an answer without a reader has kept, no engine will ask for.
                self._pacer.unpin(feed.sequence.sequence_id)
            return
        generation.text.cached_tokens = generation.cached_tokens
        if generation.stalled:
            withheld, _ = generation.withheld.get(feed, (0, False))
            generation.withheld[feed] = (withheld + tokens, last)
        else:
            self._hand_out(generation, feed, tokens, last=last)
            if generation.trouble is not None and 2 * feed.delivered_tokens >= feed.sequence.output_tokens:
                self._befall(generation)

    def _hand_out(self, generation: Generation, feed: Feed, tokens: int, *, last: bool) -> None:
        if last:
            self._end_answer(generation, feed, tokens)
        elif generation.request.stream:
            generation.send(feed, tokens)

    def _befall(self, generation: Generation) -> None:
        """Let a stream that is not over have its trouble, once."""
        trouble, generation.trouble = generation.trouble, None
        if generation.exchange not in self._open:
            return
        if trouble is Trouble.STALL:
            generation.stalled = True
            self._loop.call_later(self._settings.stall_s, self._go_on, generation)
        else:
            del self._open[generation.exchange]
            for feed in generation.feeds:
                self._pacer.abort(feed)
            generation.break_off(BROKEN_OFF)

    def _go_on(self, generation: Generation) -> None:
        """Hand out what a stall has kept back, if its client is still there."""
        if not generation.stalled or generation.exchange not in self._open:
            return
        generation.stalled = False
        for feed, (tokens, last) in generation.withheld.items():
            self._hand_out(generation, feed, tokens, last=last)

    def on_second(self, statistics: BatchStatistics, now: float) -> None:
        """Keep the per-second row."""
        self.meters.second(now, statistics)

    def stop(self) -> None:
        """End every answer with `finish_reason: "abort"`, as an engine does that is told to stop; what is computed is whole."""
        self._pacer.deliver(self._loop.time())
        for generation in list(self._open.values()):
            self._go_on(generation)
            for feed in generation.feeds:
                if self._pacer.holds(feed):
                    self._pacer.abort(feed)
                    self._end_answer(generation, feed, 0, finish_reason="abort")
        self._handoffs.stop()
        self._pacer.stop()

    def _generate(self, exchange: Exchange, body: bytes, surface: Surface) -> None:
        self.meters.received += 1
        limit = self._settings.max_num_queued_reqs
        if limit is not None and self._pacer.batch.waiting >= limit:
            self.meters.refused += 1
            message = f"The engine's queue is full: max_num_queued_reqs is {limit}."
            exchange.respond(*_refused(exchange.head, 503, message, "Service Unavailable"))
            return
        try:
            request = self._reader.read(body, surface)
            if self._names is not None:
                request = request._replace(answers=self._names.named(body, request))
            request, handoff = self._handoffs.of(body, request)
        except BadRequestError as error:
            exchange.respond(*_refused(exchange.head, 400, str(error), "BadRequestError", error.field))
            return
        trouble = self.troubles.draw(stream=request.stream)
        if trouble is Trouble.FAIL:
            exchange.respond(*_refused(exchange.head, 500, FAILED, "InternalServerError"))
            return
        text = _TEXTS[surface](request, next(self._numbers), self._created)
        generation = self._open[exchange] = Generation(exchange, request, text, trouble, handoff)
        if request.stream:
            exchange.start(200, EVENTS)
        if handoff is None or handoff.gives:
            self._submit(generation)
        else:
            self._take_over(generation, handoff)

    def _take_over(self, generation: Generation, handoff: Handoff) -> None:
        """Begin with a prompt that another engine has computed, when it is here."""

        def ready() -> None:
            self._submit(generation, is_handed_over=True)

        def failed(reason: str) -> None:
            if self._settings.kv_load_failure_policy == "recompute":
                self._submit(generation)
            elif self._open.pop(generation.exchange, None) is not None:
                generation.break_off(f"The prompt's KV cannot be loaded: {reason}.")

        generation.taking = self._handoffs.take(handoff, generation.prompt_tokens, ready, failed)

    def _submit(self, generation: Generation, *, is_handed_over: bool = False) -> None:
        if generation.exchange not in self._open:
            return
        request = generation.request
        per_event = request.tokens_per_event if request.stream else None
        adapter = request.model if request.model in self._settings.lora_modules else ""
        now = self._loop.time()
        for index, answer in enumerate(request.answers):
            sequence = EngineSequence(
                next(self._sequence_ids),
                answer.prompt_tokens,
                answer.output_tokens,
                answer.prefix_ids,
                pins_kv=generation.gives,
                is_handed_over=is_handed_over,
            )
            generation.feeds.append(Feed(generation, index, sequence, per_event, now, adapter))
            generation.endings.append((answer.output_tokens, answer.finish_reason))
        for feed in generation.feeds:
            self._pacer.submit(feed)

    def _end_answer(
        self, generation: Generation, feed: Feed, tokens: int, *, finish_reason: str | None = None
    ) -> None:
        """End one answer; the last of a request ends the exchange."""
        if finish_reason is not None:
            generation.endings[feed.index] = (feed.delivered_tokens, finish_reason)
        generation.unfinished -= 1
        is_whole, handoff = not generation.unfinished, generation.handoff
        if is_whole and handoff is not None and self._handoffs.gives_at_once and finish_reason is None:
            given = partial(self._was_given, generation, feed, tokens)
            self._handoffs.keep(handoff, [each.sequence for each in generation.feeds], given)
            return
        if generation.request.stream:
            generation.write_ending(feed, tokens)
        if is_whole:
            self._end_exchange(generation, feed)

    def _was_given(self, generation: Generation, feed: Feed, tokens: int, read: bool) -> None:
        """Answer as the other engine has the prompt, or with an error where it has not come for it."""
        if not read:
            del self._open[generation.exchange]
            generation.break_off("The request timed out in KVPoll.Bootstrapping.")
            return
        if generation.request.stream:
            generation.write_ending(feed, tokens)
        self._end_exchange(generation, feed)

    def _end_exchange(self, generation: Generation, feed: Feed) -> None:
        """End the exchange of an answer that is whole, and keep its prompt for vLLM's other engine."""
        del self._open[generation.exchange]
        whole = generation.text.whole(generation.endings)
        if generation.request.store and isinstance(generation.text, ResponseText):
            self._kept.add(generation.text.answer_id, whole)
        is_aborted = generation.endings[feed.index][1] == "abort"
        if generation.gives and not is_aborted and not self._handoffs.gives_at_once:
            whole = self._handoffs.kept(generation.handoff, feed.sequence, whole, self.port)
        if generation.request.stream:
            generation.exchange.finish()
        else:
            generation.exchange.respond(200, JSON, whole)


def _refused(
    head: RequestHead | None, status: int, message: str, kind: str, param: str | None = None
) -> RefusedRequest:
    path = b"" if head is None else head.path
    return RefusedRequest(status, JSON, error_body(status, message, kind, param, path=path))


_TEXTS: Final[Mapping[Surface, type[Text]]] = {
    Surface.CHAT: AnswerText,
    Surface.COMPLETION: AnswerText,
    Surface.MESSAGES: MessageText,
    Surface.RESPONSES: ResponseText,
}
