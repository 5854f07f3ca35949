"""A path that is not served is refused with the one that its client probably means: base addresses are written in many ways."""

import pytest

from gateway.harness import run, standing
from millgate.servers.http.paths import meant

CHAT = b"/v1/chat/completions"


@pytest.mark.parametrize(
    ("asked", "near"),
    [
        (b"/chat/completions", CHAT),
        (b"/v1/chat/completions/", CHAT),
        (b"/v1/v1/chat/completions", CHAT),
        (b"/v1//chat/completions", CHAT),
        (b"//v1/chat/completions", CHAT),
        (b"/V1/Chat/Completions", CHAT),
        (b"/openai/v1/chat/completions", CHAT),
        (b"/openai/deployments/gpt-4o/chat/completions", CHAT),
        (b"/api/v1/messages", b"/v1/messages"),
        (b"/messages/count_tokens", b"/v1/messages/count_tokens"),
        (b"/v1/tokenize", b"/tokenize"),
        (b"/models/", b"/v1/models"),
        (b"/rerank/", b"/v1/rerank"),
        (b"/v1/chat/completions/chat/completions", CHAT),
        (b"/v1/chat/completions/models", b"/v1/models"),
        (b"/v1/messages/v1/messages", b"/v1/messages"),
        (b"/v1/messages/messages/", b"/v1/messages"),
        (b"/v1/responses/v1/responses", b"/v1/responses"),
        (b"/v1/messages/batches", b""),
        (b"/v1/responses/compact", b""),
        (b"/v1/files", b""),
        (b"/v1/threads/t/messages", b""),
        (b"/v1", b""),
        (b"/", b""),
        (b"/" * 8000, b""),
        (b"/v1" * 2000 + b"/models", b"/v1/models"),
        (b"/messages" * 900, b""),
    ],
)
def test_the_path_that_is_meant(asked: bytes, near: bytes) -> None:
    assert meant(asked) == near


def test_a_client_whose_base_address_lacks_its_v1_hears_of_it() -> None:
    """LiteLLM serves `/chat/completions` too, and the SDK's base address is written without `/v1` in its documentation."""

    async def body() -> None:
        async with standing() as stand:
            got = await stand.ask(b"{}", b"/chat/completions")
            assert (got.status, got.error["code"]) == (404, "unknown_path")
            assert got.error["message"] == "this path is not served here; /v1/chat/completions is"
            got = await stand.ask(b"{}", b"/v1/files")
            assert got.error["message"] == "this path is not served here"
            assert not stand.engine.asked

    run(body())
