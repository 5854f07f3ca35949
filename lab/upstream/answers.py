"""What engines say, as bytes: heads, whole answers and event streams of the OpenAI dialect, as vLLM writes them."""

import json
from typing import Any, Final

JSON: Final = "application/json"
EVENT_STREAM: Final = "text/event-stream; charset=utf-8"
LAST_CHUNK: Final = b"0\r\n\r\n"
DONE: Final = b"data: [DONE]\n\n"


def head(status: int, kind: str, *fields: str, chunked: bool = True) -> bytes:
    """Return the head of an answer that follows in chunks, or that the close of the connection ends."""
    framing = "transfer-encoding: chunked" if chunked else "connection: close"
    lines = [f"HTTP/1.1 {status} Scripted", f"content-type: {kind}", framing, *fields, "", ""]
    return "\r\n".join(lines).encode()


def whole(body: bytes, status: int = 200, kind: str = JSON, *fields: str) -> bytes:
    """Return a whole sized answer."""
    lines = [
        f"HTTP/1.1 {status} Scripted",
        f"content-type: {kind}",
        f"content-length: {len(body)}",
        *fields,
        "",
        "",
    ]
    return "\r\n".join(lines).encode() + body


def chunks(*pieces: bytes) -> bytes:
    """Return each piece as one chunk, without the last chunk that ends the body."""
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


def completion(content: str, output_tokens: int = 2, finish: str = "stop", **more: Any) -> bytes:
    """Return the body of a chat completion; `more` replaces or adds top-level fields, None takes one away."""
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": content},
                "finish_reason": finish,
            }
        ],
        "usage": {"prompt_tokens": 5, "completion_tokens": output_tokens, "total_tokens": 5 + output_tokens},
        **more,
    }
    return json.dumps({name: value for name, value in body.items() if value is not None}).encode()


def event(content: str | None = None, finish: str | None = None, **more: Any) -> bytes:
    """Return one event of a streamed chat completion."""
    delta = {} if content is None else {"content": content}
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    body = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **more}
    return _data(body)


def usage_event(prompt_tokens: Any = 5, output_tokens: Any = 2) -> bytes:
    """Return the event with the usage that ends a stream whose client asked for it."""
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": output_tokens}
    return _data({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [], "usage": usage})


def stream(*contents: str, usage: bool = False) -> bytes:
    """Return the events of a whole streamed answer, `[DONE]` included."""
    events = [event(""), *map(event, contents), event(finish="stop")]
    return b"".join((*events, usage_event(output_tokens=len(contents)) if usage else b"", DONE))


def error(status: int, message: str = "scripted error") -> bytes:
    """Return an error body as vLLM writes it."""
    return json.dumps({"error": {"message": message, "type": "Scripted", "code": status}}).encode()


def _data(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"
