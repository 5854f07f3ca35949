"""A stream that its engine opens before it knows whether it takes the request."""

import asyncio
import json

import pytest

from gateway.harness import Asked, run, standing

MESSAGES, RESPONSES = b"/v1/messages", b"/v1/responses"
ASKS = {
    MESSAGES: {
        "model": "m",
        "stream": True,
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "hi"}],
    },
    RESPONSES: {"model": "m", "stream": True, "input": "hi"},
}
OPENINGS = {
    MESSAGES: b'event: message_start\ndata: {"type":"message_start","message":{"id":"x"}}\n\n',
    RESPONSES: b'event: response.created\ndata: {"type":"response.created","response":{"id":"x"}}\n\n'
    b'event: response.in_progress\ndata: {"type":"response.in_progress","response":{"id":"x"}}\n\n',
}


@pytest.mark.parametrize(
    ("path", "refusal", "status"),
    [
        (MESSAGES, b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}\n\n', 529),
        (
            RESPONSES,
            (
                b'event: response.failed\ndata: {"type":"response.failed","response":{"id":"x","status":"failed",'
                b'"error":{"code":"rate_limit_exceeded","message":"The request queue is full."}}}\n\n'
            ),
            429,
        ),
    ],
)
@pytest.mark.parametrize("pause_s", [0.0, 0.05])
def test_a_stream_that_is_opened_before_its_refusal_is_refused_by_a_status(
    path: bytes, refusal: bytes, status: int, pause_s: float
) -> None:
    """SGLang opens each stream before it looks at its queue: the client got half an answer, or none, as the reads fell."""

    async def refuses(asked: Asked) -> None:
        asked.open_stream()
        asked.send(OPENINGS[path])
        await asyncio.sleep(pause_s)
        asked.send(refusal)
        asked.end_stream()

    async def body() -> None:
        async with standing(refuses) as stand:
            got = await stand.ask(json.dumps(ASKS[path]).encode(), path)
            assert (got.status, got.whole) == (status, True)
            assert b"event" not in got.body
            await stand.settle()

    run(body())
