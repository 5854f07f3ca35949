"""Writes Anthropic's messages: whole JSON bodies, and named events from `message_start` to `message_stop`."""

from typing import Final

import msgspec

from millgate.servers.emulator.answers import TOKEN_TEXT
from millgate.servers.emulator.requests import GenerationRequest

STOP_REASONS: Final = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
"""What vLLM makes of its own finish reasons; others, like `abort`, stay as they are."""


def named_event(kind: str, **fields: object) -> bytes:
    """Return one event whose name is its type."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode({"type": kind, **fields}))


class MessageText:
    """The bytes of one message; there is one answer, so its index is always 0.

    `cached_tokens` of the prompt came from the prefix cache; it is set before the first token is told.
    """

    __slots__ = ("_finish_reason", "_id", "_request", "cached_tokens")

    def __init__(self, request: GenerationRequest, number: int, created: int) -> None:
        del created
        self._request = request
        self._id = f"msg_{number:08x}"
        self._finish_reason = "stop"
        self.cached_tokens = 0

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

    def tokens(self, index: int, count: int) -> bytes:
        """An event with `count` tokens; those of a tool call are blanks behind its arguments."""
        del index
        return self._delta((TOKEN_TEXT if self._request.tool is None else " ") * count)

    def last_tokens(self, index: int, count: int, finish_reason: str) -> bytes:
        """The last tokens, and the end of the block."""
        self._finish_reason = finish_reason
        tokens = self.tokens(index, count) if count else b""
        return tokens + named_event("content_block_stop", index=index)

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
        return {"id": self._id, "type": "message", "role": "assistant", "model": self._request.model}

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
