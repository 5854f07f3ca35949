"""Writes answers in the three forms of text: whole JSON bodies, and events; OpenAI's are encoded before they are needed."""

from collections import OrderedDict
from typing import Final

import msgspec

from millgate.servers.emulator.requests import GenerationRequest, Surface

TOKEN_TEXT: Final = " tok"  # noqa: S105 - no password
"""The text of every token: four bytes, as the reader counts them."""

DONE: Final = b"data: [DONE]\n\n"


_ANTHROPIC_KINDS: Final = {404: "not_found_error", 413: "request_too_large", 503: "overloaded_error"}


def error_body(status: int, message: str, kind: str, param: str | None = None, *, path: bytes = b"") -> bytes:
    """One error in vLLM's shape, whose code repeats the status, or in Anthropic's words on its `path`."""
    if path.startswith(b"/v1/messages"):
        named = _ANTHROPIC_KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
        return msgspec.json.encode({"type": "error", "error": {"type": named, "message": message}})
    error = {"message": message, "type": kind, "param": param, "code": status}
    return msgspec.json.encode({"error": error})


def _usage(prompt_tokens: int, cached_tokens: int, output_tokens: int) -> dict[str, object]:
    usage: dict[str, object] = {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + output_tokens,
        "completion_tokens": output_tokens,
    }
    if cached_tokens:
        usage["prompt_tokens_details"] = {"cached_tokens": cached_tokens}
    return usage


def _tool_call(request: GenerationRequest, index: int) -> dict[str, object]:
    assert request.tool is not None
    function = {"name": request.tool.name, "arguments": request.tool.arguments}
    return {"id": f"call_{index}", "type": "function", "function": function}


class AnswerText:
    """The bytes of one request's answer. Events of one size are encoded once and sent many times.

    `cached_tokens` of the prompts came from the prefix cache; it is set before the usage is asked for.
    """

    def __init__(self, request: GenerationRequest, number: int, created: int) -> None:
        self._request = request
        self.cached_tokens = 0
        self._chat = request.surface is Surface.CHAT
        name, kind = ("chatcmpl", "chat.completion.chunk") if self._chat else ("cmpl", "text_completion")
        answer_id = f"{name}-{number:08x}"
        self._head = {"id": answer_id, "object": kind, "created": created, "model": request.model}
        self._events: dict[tuple[int, int], bytes] = {}

    def opening(self, index: int) -> bytes:
        """The event that names the role, before a chat answer's first token; nothing for a completion.

        A tool is named by an event too; each token after it adds a blank to the arguments.
        """
        if not self._chat:
            return b""
        role = self._event(
            {"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        )
        if self._request.tool is None:
            return role
        calls = [{"index": 0, **_tool_call(self._request, index)}]
        return role + self._event({"index": index, "delta": {"tool_calls": calls}, "finish_reason": None})

    def tokens(self, index: int, count: int) -> bytes:
        """An event with `count` tokens of answer `index`."""
        event = self._events.get((index, count))
        if event is None:
            event = self._events[index, count] = self.last_tokens(index, count, None)
        return event

    def last_tokens(self, index: int, count: int, finish_reason: str | None) -> bytes:
        """The event that ends answer `index`, with its last tokens."""
        said: dict[str, object] = {"text": TOKEN_TEXT * count}
        if self._chat and self._request.tool is not None:
            calls = [{"index": 0, "function": {"arguments": " " * count}}]
            said = {"delta": {"tool_calls": calls}}
        elif self._chat:
            said = {"delta": {"content": TOKEN_TEXT * count}}
        return self._event({"index": index, **said, "logprobs": None, "finish_reason": finish_reason})

    def closing(self, output_tokens: int) -> bytes:
        """What ends the stream: the usage event when asked for, and `[DONE]`."""
        if not self._request.include_usage:
            return DONE
        usage = _usage(self._request.prompt_tokens, self.cached_tokens, output_tokens)
        return b"data: %s\n\n%s" % (msgspec.json.encode({**self._head, "choices": [], "usage": usage}), DONE)

    def whole(self, endings: list[tuple[int, str]]) -> bytes:
        """The JSON body of a not streamed answer: output tokens and finish reason of each answer, in order."""
        choices = [self._whole_choice(index, *ending) for index, ending in enumerate(endings)]
        output_tokens = sum(tokens for tokens, _ in endings)
        usage = _usage(self._request.prompt_tokens, self.cached_tokens, output_tokens)
        kind = "chat.completion" if self._chat else "text_completion"
        return msgspec.json.encode({**self._head, "object": kind, "choices": choices, "usage": usage})

    def _event(self, choice: dict[str, object]) -> bytes:
        usage = {"usage": None} if self._request.include_usage else {}
        return b"data: %s\n\n" % msgspec.json.encode({**self._head, "choices": [choice], **usage})

    def _whole_choice(self, index: int, tokens: int, finish_reason: str) -> dict[str, object]:
        choice: dict[str, object] = {"index": index, "logprobs": None, "finish_reason": finish_reason}
        text = TOKEN_TEXT * tokens
        if self._chat:
            message: dict[str, object] = {"role": "assistant", "content": text}
            if self._request.tool is not None:
                message = {"role": "assistant", "content": None}
                message["tool_calls"] = [_tool_call(self._request, index)]
            choice["message"] = message
        else:
            choice["text"] = text
        return choice


STOP_REASONS: Final = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
"""What vLLM makes of its own finish reasons; others, like `abort`, stay as they are."""


def named_event(kind: str, **fields: object) -> bytes:
    """Return one event whose name is its type."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode({"type": kind, **fields}))


class _NamedEvents:
    """The bytes of one answer whose events have names; there is one answer, so its index is always 0.

    `cached_tokens` of the prompt came from the prefix cache; it is set before the usage is told.
    """

    def __init__(self, request: GenerationRequest, number: int, created: int) -> None:
        self._request = request
        self._number = number
        self._created = created
        self._finish_reason = "stop"
        self.cached_tokens = 0

    def tokens(self, index: int, count: int) -> bytes:
        """An event with `count` tokens; those of a tool call are blanks behind its arguments."""
        del index
        return self._delta((TOKEN_TEXT if self._request.tool is None else " ") * count)

    def last_tokens(self, index: int, count: int, finish_reason: str) -> bytes:
        self._finish_reason = finish_reason
        return self.tokens(index, count) if count else b""

    def _delta(self, text: str) -> bytes:
        raise NotImplementedError


class MessageText(_NamedEvents):
    """The bytes of one of Anthropic's messages, from `message_start` to `message_stop`."""

    def opening(self, index: int) -> bytes:
        """What comes with the first token: the message's head, its one block, and a tool's arguments."""
        usage = self._usage(0)
        head = {**self._head(), "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        block = {"type": "text", "text": ""} if self._request.tool is None else self._tool_use("{}")
        opening = named_event("message_start", message=head)
        opening += named_event("content_block_start", index=index, content_block=block)
        if self._request.tool is not None:
            opening += self._delta(self._request.tool.arguments)
        return opening

    def last_tokens(self, index: int, count: int, finish_reason: str) -> bytes:
        """The last tokens, and the end of the block."""
        ending = named_event("content_block_stop", index=index)
        return super().last_tokens(index, count, finish_reason) + ending

    def closing(self, output_tokens: int) -> bytes:
        """What ends the stream: the reason, the usage, and `message_stop`."""
        delta = {"stop_reason": self._stop_reason(self._finish_reason), "stop_sequence": None}
        usage = self._usage(output_tokens)
        return named_event("message_delta", delta=delta, usage=usage) + named_event("message_stop")

    def whole(self, endings: list[tuple[int, str]]) -> bytes:
        """The JSON body of a not streamed message."""
        ((tokens, finish_reason),) = endings
        tool = self._request.tool
        block: dict[str, object] = {"type": "text", "text": TOKEN_TEXT * tokens}
        return msgspec.json.encode(
            {
                **self._head(),
                "content": [block if tool is None else self._tool_use(tool.arguments)],
                "stop_reason": self._stop_reason(finish_reason),
                "stop_sequence": None,
                "usage": self._usage(tokens),
            }
        )

    def _usage(self, output_tokens: int) -> dict[str, int]:
        """Count what was computed and what was read from the cache apart, as Anthropic does."""
        usage = {
            "input_tokens": self._request.prompt_tokens - self.cached_tokens,
            "output_tokens": output_tokens,
        }
        return usage | {"cache_read_input_tokens": self.cached_tokens} if self.cached_tokens else usage

    def _head(self) -> dict[str, object]:
        return {
            "id": f"msg_{self._number:08x}",
            "type": "message",
            "role": "assistant",
            "model": self._request.model,
        }

    def _tool_use(self, arguments: str) -> dict[str, object]:
        assert self._request.tool is not None
        given = msgspec.Raw(arguments.encode())
        return {"type": "tool_use", "id": "toolu_0", "name": self._request.tool.name, "input": given}

    def _delta(self, text: str) -> bytes:
        delta = {"type": "text_delta", "text": text}
        if self._request.tool is not None:
            delta = {"type": "input_json_delta", "partial_json": text}
        return named_event("content_block_delta", index=0, delta=delta)

    def _stop_reason(self, finish_reason: str) -> str:
        return STOP_REASONS.get(finish_reason, finish_reason)


MOST_KEPT: Final = 1_000
"""Kept responses, about a kilobyte each."""

_STATUSES: Final = {"length": "incomplete", "abort": "failed"}


class ResponseText(_NamedEvents):
    """The bytes of one of OpenAI's responses."""

    def __init__(self, request: GenerationRequest, number: int, created: int) -> None:
        super().__init__(request, number, created)
        self._events = self._said = 0
        self.answer_id = f"resp_{number:032x}"

    def opening(self, index: int) -> bytes:
        """What comes with the first token: the response, its one item, and a tool's arguments."""
        response = self._response("in_progress", [], None)
        opening = self._event("response.created", response=response)
        opening += self._event("response.in_progress", response=response)
        opening += self._event(
            "response.output_item.added", output_index=index, item=self._item("", "in_progress")
        )
        if self._request.tool is not None:
            return opening + self._delta(self._request.tool.arguments)
        part = {"type": "output_text", "text": "", "annotations": []}
        return opening + self._event("response.content_part.added", **_PLACE, content_index=0, part=part)

    def tokens(self, index: int, count: int) -> bytes:
        """An event with `count` tokens, which stand once more in the ending."""
        self._said += count
        return super().tokens(index, count)

    def closing(self, output_tokens: int) -> bytes:
        """What ends the stream: text and item once more whole, and the event that is the end."""
        status = _STATUSES.get(self._finish_reason, "completed")
        item = self._item(self._text(self._said), status)
        ending = self._done_text() + self._event("response.output_item.done", output_index=0, item=item)
        response = self._response(status, [item], output_tokens)
        return ending + self._event(f"response.{status}", response=response)

    def whole(self, endings: list[tuple[int, str]]) -> bytes:
        """The JSON body of a not streamed response."""
        ((tokens, finish_reason),) = endings
        status = _STATUSES.get(finish_reason, "completed")
        return msgspec.json.encode(self._response(status, [self._item(self._text(tokens), status)], tokens))

    def _done_text(self) -> bytes:
        text = self._text(self._said)
        if self._request.tool is not None:
            name = self._request.tool.name
            return self._event("response.function_call_arguments.done", **_PLACE, name=name, arguments=text)
        part = {"type": "output_text", "text": text, "annotations": []}
        done = self._event("response.output_text.done", **_PLACE, content_index=0, text=text, logprobs=[])
        return done + self._event("response.content_part.done", **_PLACE, content_index=0, part=part)

    def _text(self, tokens: int) -> str:
        tool = self._request.tool
        return TOKEN_TEXT * tokens if tool is None else tool.arguments + " " * tokens

    def _delta(self, text: str) -> bytes:
        if self._request.tool is not None:
            return self._event("response.function_call_arguments.delta", **_PLACE, delta=text)
        return self._event("response.output_text.delta", **_PLACE, content_index=0, delta=text, logprobs=[])

    def _event(self, kind: str, **fields: object) -> bytes:
        self._events += 1
        return named_event(kind, sequence_number=self._events - 1, **fields)

    def _item(self, text: str, status: str) -> dict[str, object]:
        status = "completed" if status == "failed" else status
        tool = self._request.tool
        if tool is not None:
            call = {"type": "function_call", "call_id": "call_0", "name": tool.name, "arguments": text}
            return {"id": "item_0", "status": status, **call}
        content = [{"type": "output_text", "text": text, "annotations": []}] if text else []
        return {"id": "item_0", "type": "message", "role": "assistant", "status": status, "content": content}

    def _response(
        self, status: str, output: list[dict[str, object]], output_tokens: int | None
    ) -> dict[str, object]:
        prompt_tokens = self._request.prompt_tokens
        return {
            "id": self.answer_id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "model": self._request.model,
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "error": {"code": "server_error", "message": "the engine stops"} if status == "failed" else None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "usage": None
            if output_tokens is None
            else {
                "input_tokens": prompt_tokens,
                "input_tokens_details": {"cached_tokens": self.cached_tokens},
                "output_tokens": output_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": prompt_tokens + output_tokens,
            },
        }


_PLACE: Final[dict[str, object]] = {"item_id": "item_0", "output_index": 0}


class KeptResponses:
    """The last responses whose clients did not say `store: false`."""

    def __init__(self) -> None:
        self._bodies: OrderedDict[str, bytes] = OrderedDict()

    def add(self, answer_id: str, body: bytes) -> None:
        """Keep one; the oldest goes beyond `MOST_KEPT`."""
        self._bodies[answer_id] = body
        if len(self._bodies) > MOST_KEPT:
            self._bodies.popitem(last=False)

    def ask(self, method: bytes, name: bytes) -> bytes | None:
        """Return what to answer about the response of this name, which may end in `/cancel`; None for an unknown one."""
        answer_id = name.removesuffix(b"/cancel").decode("latin-1")
        if method != b"DELETE":
            return self._bodies.get(answer_id)
        if self._bodies.pop(answer_id, None) is None:
            return None
        return msgspec.json.encode({"id": answer_id, "object": "response", "deleted": True})
