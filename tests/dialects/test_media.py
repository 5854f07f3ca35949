"""Images and sound in a body are counted at a price, and their base64 is no text."""

import base64
import json
from typing import Any

import pytest

from millgate.core.sizing.service_demand import PromptSizes
from millgate.dialects.contract import Dialect
from millgate.dialects.media import EMBEDDED_TOKEN_BYTES, MEDIA_TOKENS, measure
from millgate.dialects.openai import OPENAI
from millgate.dialects.pooling import POOLING
from millgate.dialects.responses import RESPONSES

PICTURE = base64.b64encode(bytes(range(256)) * 400).decode()

read_chat = OPENAI.readers[b"/v1/chat/completions"]


def body(*parts: dict[str, Any]) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": [*parts]}]}).encode()


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}},
        {"type": "input_audio", "input_audio": {"data": PICTURE, "format": "wav"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}},
        {"type": "input_image", "image_url": f"data:image/png;base64,{PICTURE}"},
    ],
)
def test_every_shape_of_a_picture_is_a_price_and_not_its_length(part: dict[str, Any]) -> None:
    facts = read_chat(body({"type": "text", "text": "what?"}, part, part))
    assert facts.fixed_tokens == 2 * MEDIA_TOKENS
    assert facts.text_bytes is not None
    assert facts.text_bytes == len(body({"type": "text", "text": "what?"}, part, part)) - 2 * len(PICTURE)


def test_a_picture_by_its_address_has_the_same_price() -> None:
    facts = read_chat(body({"type": "image_url", "image_url": {"url": "https://x/y.png"}}))
    assert (facts.fixed_tokens, facts.text_bytes) == (MEDIA_TOKENS, None)


def test_text_about_pictures_is_text() -> None:
    said = '"type": "image_url" and data:image/png;base64,AAAA ' * 200
    assert measure(body({"type": "text", "text": said}))[:2] == (0, None)


def test_a_document_whose_data_is_text_is_text() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "many words and spaces " * 500}
    assert measure(body({"type": "document", "source": source}))[:2] == (MEDIA_TOKENS, None)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "file", "file": {"filename": "a.pdf", "file_data": PICTURE * 2}},
        {"type": "image_embeds", "image_embeds": PICTURE * 2},
    ],
)
def test_a_large_file_without_a_data_urls_head_is_a_price_too(part: dict[str, Any]) -> None:
    facts = read_chat(body(part))
    assert (facts.fixed_tokens, facts.text_bytes) == (MEDIA_TOKENS, len(body(part)) - 2 * len(PICTURE))


def test_an_agent_goes_on_from_a_picture_that_it_has_made_and_from_a_screenshot() -> None:
    def read(item: dict[str, Any]) -> tuple[int, int | None]:
        asked = {"model": "m", "input": [item, {"role": "user", "content": "brighter"}]}
        facts = RESPONSES.readers[b"/v1/responses"](json.dumps(asked).encode())
        return facts.fixed_tokens, facts.text_bytes

    made, text_bytes = read({"type": "image_generation_call", "id": "ig_1", "result": PICTURE * 10})
    assert made == MEDIA_TOKENS
    assert text_bytes is not None
    assert text_bytes < 200, "base64 is no text"
    seen = {"type": "computer_screenshot", "image_url": "https://x/y.png"}
    assert read({"type": "computer_call_output", "call_id": "c", "output": seen}) == (MEDIA_TOKENS, None)


def test_a_page_with_pictures_in_it_that_a_tool_has_read_is_text() -> None:
    page = f'<img alt="a mill" src="data:image/png;base64,{PICTURE}">'
    called = {"type": "function", "id": "c", "function": {"name": "fetch", "arguments": "{}"}}
    turns = [{"role": "assistant", "tool_calls": [called]}, {"role": "tool", "content": page}]
    assert measure(json.dumps({"messages": turns}).encode())[:2] == (0, None)


def test_a_prompt_of_embeddings_has_a_token_for_each_of_them_and_not_for_each_word_of_their_base64() -> None:
    asked = json.dumps({"model": "m", "prompt": "", "prompt_embeds": PICTURE}).encode()
    facts = OPENAI.readers[b"/v1/completions"](asked)
    assert facts.fixed_tokens == len(PICTURE) // EMBEDDED_TOKEN_BYTES
    assert facts.text_bytes == len(asked) - len(json.dumps(PICTURE))


def test_what_the_engine_must_write_is_read() -> None:
    def least(**fields: Any) -> int:
        return read_chat(json.dumps({"messages": [1], **fields}).encode()).min_tokens

    assert least() == 0
    assert least(min_tokens=5) == 5
    assert least(min_tokens=50, max_tokens=20) == 20
    assert least(ignore_eos=True, max_tokens=20) == 20
    assert least(ignore_eos=True) == 0


TOKEN_IDS = list(range(100_000, 130_000))


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    ("dialect", "path", "field", "prompt"),
    [
        (OPENAI, b"/v1/completions", "prompt", TOKEN_IDS),
        (OPENAI, b"/v1/completions", "prompt", [TOKEN_IDS]),
        (OPENAI, b"/v1/completions", "prompt", [TOKEN_IDS[:10_000], TOKEN_IDS[10_000:]]),
        (POOLING, b"/v1/embeddings", "input", TOKEN_IDS),
        (POOLING, b"/v1/embeddings", "input", [TOKEN_IDS[:10_000], TOKEN_IDS[10_000:]]),
    ],
)
def test_an_evaluation_that_sends_token_ids_is_sized_by_their_number(
    dialect: Dialect, path: bytes, field: str, prompt: list[Any], indent: int | None
) -> None:
    """By its digits a prompt of 30,000 ids had 78,000 tokens, and an engine with 64,000 was said to be too small for good."""
    facts = dialect.readers[path](json.dumps({field: prompt, "model": "m"}, indent=indent).encode())
    sized = PromptSizes().tokens("m", facts.text_bytes or 0, facts.fixed_tokens, facts.shape)
    assert sized == len(TOKEN_IDS)


def test_texts_among_token_ids_are_sized_as_text() -> None:
    body = json.dumps({"prompt": [1, 2, "words " * 5_000]}).encode()
    facts = OPENAI.readers[b"/v1/completions"](body)
    assert (facts.fixed_tokens, facts.text_bytes) == (0, None)
