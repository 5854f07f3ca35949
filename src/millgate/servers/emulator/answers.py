"""Writes OpenAI-compatible answers: whole JSON bodies, and SSE events encoded before they are needed."""

from typing import Final

import msgspec

from millgate.servers.emulator.requests import GenerationRequest, Surface

TOKEN_TEXT: Final = " tok"  # noqa: S105 - no password
"""The text of every token: four bytes, as the reader counts them."""

DONE: Final = b"data: [DONE]\n\n"


def error_body(status: int, message: str, kind: str, param: str | None = None) -> bytes:
    """One error in vLLM's shape: the code repeats the status."""
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

    __slots__ = ("_chat", "_events", "_head", "_request", "_tail", "cached_tokens")

    def __init__(self, request: GenerationRequest, number: int, created: int) -> None:
        self._request = request
        self.cached_tokens = 0
        self._chat = request.surface is Surface.CHAT
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        head = {"id": self._identity(number), "object": kind, "created": created, "model": request.model}
        self._head = msgspec.json.encode(head)[:-1]
        self._tail = b'],"usage":null}\n\n' if request.include_usage else b"]}\n\n"
        self._events: dict[tuple[int, int], bytes] = {}

    def opening(self, index: int) -> bytes:
        """The event that names the role, before a chat answer's first token; nothing for a completion."""
        if not self._chat:
            return b""
        role = self._event(
            b'{"index":%d,"delta":{"role":"assistant","content":""},"finish_reason":null}' % index
        )
        return role if self._request.tool is None else role + self._call(index)

    def _call(self, index: int) -> bytes:
        """The event that names the tool; each token after it adds a blank to the arguments."""
        delta = msgspec.json.encode({"tool_calls": [{"index": 0, **_tool_call(self._request, index)}]})
        return self._event(b'{"index":%d,"delta":%s,"finish_reason":null}' % (index, delta))

    def tokens(self, index: int, count: int) -> bytes:
        """An event with `count` tokens of answer `index`."""
        event = self._events.get((index, count))
        if event is None:
            event = self._events[index, count] = self._event(self._choice(index, count, b"null"))
        return event

    def last_tokens(self, index: int, count: int, finish_reason: str) -> bytes:
        """The event that ends answer `index`, with its last tokens."""
        return self._event(self._choice(index, count, b'"%s"' % finish_reason.encode()))

    def closing(self, output_tokens: int) -> bytes:
        """What ends the stream: the usage event when asked for, and `[DONE]`."""
        if not self._request.include_usage:
            return DONE
        usage = msgspec.json.encode(_usage(self._request.prompt_tokens, self.cached_tokens, output_tokens))
        return b'data: %s,"choices":[],"usage":%s}\n\n%s' % (self._head, usage, DONE)

    def whole(self, endings: list[tuple[int, str]]) -> bytes:
        """The JSON body of a not streamed answer: output tokens and finish reason of each answer, in order."""
        choices = [self._whole_choice(index, *ending) for index, ending in enumerate(endings)]
        output_tokens = sum(tokens for tokens, _ in endings)
        usage = _usage(self._request.prompt_tokens, self.cached_tokens, output_tokens)
        head = self._head.replace(b"chat.completion.chunk", b"chat.completion", 1)
        return b'%s,"choices":%s,"usage":%s}' % (
            head,
            msgspec.json.encode(choices),
            msgspec.json.encode(usage),
        )

    def _identity(self, number: int) -> str:
        return f"{'chatcmpl' if self._chat else 'cmpl'}-{number:08x}"

    def _event(self, choice: bytes) -> bytes:
        return b'data: %s,"choices":[%s%s' % (self._head, choice, self._tail)

    def _choice(self, index: int, count: int, finish: bytes) -> bytes:
        if self._chat and self._request.tool is not None:
            return (
                b'{"index":%d,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"%s"}}]},'
                b'"logprobs":null,"finish_reason":%s}'
            ) % (index, b" " * count, finish)
        text = TOKEN_TEXT.encode() * count
        if self._chat:
            return b'{"index":%d,"delta":{"content":"%s"},"logprobs":null,"finish_reason":%s}' % (
                index,
                text,
                finish,
            )
        return b'{"index":%d,"text":"%s","logprobs":null,"finish_reason":%s}' % (index, text, finish)

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
