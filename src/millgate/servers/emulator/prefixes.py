"""Names of prompt blocks, as an engine with a tokenizer and a template names them: equal beginnings have equal names.

A request is rendered as its texts in the order in which a template puts them, tools and system first; four bytes are a token.
A block's name is a hash over the name of the block before it, its bytes, and what begins within it. That is whose turn, and everything
of a message that is no text. Model and `cache_salt` are in the first name. `cache_control` is in none, nor is
Claude Code's billing line: engines do not see them. The hash is Python's own, so that names differ between processes, as vLLM's do by default.
"""

from collections.abc import Iterator, Mapping, Sequence
from struct import pack
from typing import Final, NamedTuple

import msgspec

from millgate.dialects.conversations import BILLING_LINE
from millgate.servers.emulator.answers import TOKEN_TEXT
from millgate.servers.emulator.requests import BYTES_PER_TOKEN, EmulatedSequence, GenerationRequest, Surface

_UNSEEN: Final = frozenset({"role", "content", "text", "cache_control"})
"""Members of a message or a part that are told otherwise, or that no template shows."""

_INNER: Final = ("content", "input")
"""What a part may have beside its text: what a tool said, and what it was called with."""
_BESIDE: Final = ("output", "tool_calls", "arguments")
"""The same, where it stands in a message."""


class PromptPiece(NamedTuple):
    """One text of the prompt, and what stands before it that is no text."""

    mark: bytes
    text: bytes


class PrefixNames:
    """Names the blocks of requests for one engine."""

    def __init__(self, block_tokens: int) -> None:
        self._block_bytes = block_tokens * BYTES_PER_TOKEN

    def named(self, body: bytes, request: GenerationRequest) -> tuple[EmulatedSequence, ...]:
        """Return the request's sequences with the names of their prompts, and of answers that are plain text.

        A body that the reader understands and that is no plain JSON otherwise gets no names.
        """
        try:
            fields = msgspec.json.decode(body)
        except (msgspec.MsgspecError, RecursionError):
            return request.answers
        tools = [PromptPiece(b"tools", request.tools)]
        prompts = [[*tools, *pieces] for pieces in _rendered(fields, request.surface)]
        seed = hash(msgspec.json.encode([request.model, fields.get("cache_salt")]))
        each = len(request.answers) // len(prompts)
        return tuple(
            answer._replace(
                prefix_ids=self._names(seed, [*prompts[index // each], *_answer(request, answer)])
            )
            for index, answer in enumerate(request.answers)
        )

    def _names(self, seed: int, pieces: Sequence[PromptPiece]) -> tuple[int, ...]:
        size = self._block_bytes
        marks: dict[int, list[tuple[int, bytes]]] = {}
        at = 0
        for piece in pieces:
            marks.setdefault(at // size, []).append((at % size, piece.mark))
            at += len(piece.text)
        stream = b"".join([piece.text for piece in pieces])
        names = []
        name = seed
        for index in range(len(stream) // size):
            block = stream[index * size : (index + 1) * size]
            name = hash((name, block, tuple(marks.get(index, ()))))
            names.append(name)
        return tuple(names)


def _rendered(fields: Mapping[str, object], surface: Surface) -> Iterator[list[PromptPiece]]:
    if surface is Surface.COMPLETION:
        for text in _prompt_texts(fields["prompt"]):
            yield [PromptPiece(b"", text)]
        return
    system = fields.get("instructions" if surface is Surface.RESPONSES else "system")
    turns = fields["input" if surface is Surface.RESPONSES else "messages"]
    pieces = [] if system is None else [_piece({"role": "system", "content": system})]
    if isinstance(turns, str):
        turns = [{"role": "user", "content": turns}]
    assert isinstance(turns, list)
    yield [*pieces, *map(_piece, turns)]


def _prompt_texts(prompt: object) -> Iterator[bytes]:
    """Yield each prompt's bytes; a token id is as long as a token's text."""
    if isinstance(prompt, str):
        yield prompt.encode("utf-8", "surrogatepass")
    elif isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        yield b"".join([pack("<q", token)[:BYTES_PER_TOKEN] for token in prompt])
    elif isinstance(prompt, list):
        for item in prompt:
            yield from _prompt_texts(item)


def _piece(message: Mapping[str, object]) -> PromptPiece:
    """Put a message's texts together; text in one string is the same as text in parts."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content or ""}]
    parts = [part for part in parts if not str(part.get("text")).startswith(BILLING_LINE)]
    text = b"".join([str(part.get("text") or "").encode("utf-8", "surrogatepass") for part in parts])
    inner = [part.get(name) for part in parts for name in _INNER]
    text += b"".join([_told(each) for each in (*inner, *map(message.get, _BESIDE)) if each is not None])
    rest = [_others(message, *_BESIDE), *[_others(part, "type", *_INNER) for part in parts]]
    return PromptPiece(_told([message.get("role"), [each for each in rest if each]]), text)


def _others(thing: Mapping[str, object], *also: str) -> dict[str, object]:
    """Return what is neither text nor empty."""
    return {
        name: value
        for name, value in thing.items()
        if name not in _UNSEEN and name not in also and value not in (None, [], {})
    }


def _told(value: object) -> bytes:
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value, order="sorted")


def _answer(request: GenerationRequest, answer: EmulatedSequence) -> list[PromptPiece]:
    """Render the answer as the next request will bring it back; a tool's call is named when it comes."""
    if request.tool is not None:
        return []
    text = TOKEN_TEXT.encode() * answer.output_tokens
    return [PromptPiece(b"" if request.surface is Surface.COMPLETION else _told(["assistant", []]), text)]
