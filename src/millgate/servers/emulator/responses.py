"""Writes OpenAI's responses: whole JSON bodies and named events, and keeps the last of them for requests by id."""

from collections import OrderedDict
from typing import Final

import msgspec

from millgate.servers.emulator.answers import TOKEN_TEXT
from millgate.servers.emulator.messages import named_event
from millgate.servers.emulator.requests import GenerationRequest

MOST_KEPT: Final = 1_000
"""Kept responses, about a kilobyte each."""

_STATUSES: Final = {"length": "incomplete", "abort": "failed"}


class ResponseText:
    """The bytes of one response; there is one answer, so its index is always 0.

    `cached_tokens` of the prompt came from the prefix cache; it is set before the usage is asked for.
    """

    __slots__ = ("_created", "_finish_reason", "_number", "_request", "_said", "answer_id", "cached_tokens")

    def __init__(self, request: GenerationRequest, number: int, created: int) -> None:
        self._request = request
        self._created = created
        self._number = 0
        self._finish_reason = "stop"
        self._said = 0
        self.cached_tokens = 0
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
        """An event with `count` tokens; those of a tool call are blanks behind its arguments."""
        del index
        self._said += count
        return self._delta((TOKEN_TEXT if self._request.tool is None else " ") * count)

    def last_tokens(self, index: int, count: int, finish_reason: str) -> bytes:
        """The last tokens."""
        self._finish_reason = finish_reason
        return self.tokens(index, count) if count else b""

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
        self._number += 1
        return named_event(kind, sequence_number=self._number - 1, **fields)

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

    __slots__ = ("_bodies",)

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
        return self.drop(answer_id) if method == b"DELETE" else self.find(answer_id)

    def find(self, answer_id: str) -> bytes | None:
        """Return one, None when it is not kept."""
        return self._bodies.get(answer_id)

    def drop(self, answer_id: str) -> bytes | None:
        """Delete one; return what to say about it, None when it was not kept."""
        if self._bodies.pop(answer_id, None) is None:
            return None
        return msgspec.json.encode({"id": answer_id, "object": "response", "deleted": True})
