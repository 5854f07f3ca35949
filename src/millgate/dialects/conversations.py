"""The conversation of a request in the order in which templates write it, by dialect: what `prefix_chain` hashes.

Two bodies that an engine makes the same tokens of should have the same pieces here. So the dialects leave out what
clients change without meaning: the order of fields, and text as a string or as one part. They leave out `cache_control`
(Claude Code moves it every turn), Claude Code's billing line (new with every request; vLLM drops it before its
template), and reasoning (templates drop that of earlier turns). Pieces are the JSON as it stands in the body, escapes
included: a client writes the same text the same way.
"""

import re
from typing import Final

import msgspec
from msgspec import Raw

from millgate.core.events import PrefixMarks
from millgate.dialects.arrays import check_objects
from millgate.dialects.bodies import ABSENT
from millgate.dialects.contract import UNREADABLE
from millgate.dialects.conversation_bodies import (
    BLOCK,
    CHAT,
    COMPLETION,
    ITEM,
    LIST,
    MESSAGES,
    RESPONSES,
    ConversationRoot,
    ConversationTurn,
)
from millgate.dialects.media import content_bytes
from millgate.dialects.prefix_chain import ConversationReader, PrefixChain, seed_of

# The kinds of pieces; any numbers, as long as they differ.
_CHAT: Final = 16
_MESSAGES: Final = 17
_RESPONSES: Final = 18
_COMPLETION: Final = 19
_ROOT: Final = 20
_TEXT: Final = 0
_TOOLS: Final = 1
_BLOCK: Final = 2
_CALLS: Final = 3
_CALL_ID: Final = 4
_NAME: Final = 5
_TOKENS: Final = 6

_ROLES: Final = {role: seed_of(role) for role in ("system", "developer", "user", "assistant", "tool")}
"""What stands for the roles that nearly every message has."""
_EMPTY_BYTES: Final = len('""')
_QUOTE: Final = ord('"')
_ABSENT: Final = ABSENT
_NOTHING: Final = frozenset((b"", b"null", b'""', b"[]", b"{}"))
_TEXTS: Final = frozenset((b'"text"', b'"input_text"', b'"output_text"'))
_REASONING: Final = frozenset(
    (b'"thinking"', b'"redacted_thinking"', b'"reasoning"', b'"reasoning_content"', b'"reasoning_text"')
)
_CALL: Final = b'_call"'
"""How the types end of items in which the model calls a tool."""
_RESULT: Final = b'"tool_result"'
BILLING_LINE: Final = "x-anthropic-billing-header:"
"""Begins a line that Claude Code puts before its system prompt, another one in every session; vLLM drops it (vllm#36829)."""
_BILLING: Final = b'"' + BILLING_LINE.encode()
_LINE_END: Final = b"\\n"
MOST_PIECES: Final = 8_192
"""Messages and their parts of one conversation, 20 ms of the costliest; one of more has no marks."""
_CACHE_CONTROL: Final = b'"cache_control"'
# Its value is a flat object or null (platform.claude.com, "Prompt caching"); a quoted name cannot stand inside a string.
_CACHE_MEMBER: Final = re.compile(
    rb',\s*"cache_control"\s*:\s*(?:\{[^{}]*\}|null)|"cache_control"\s*:\s*(?:\{[^{}]*\}|null)\s*,\s*'
)


def prefix_marks(read: ConversationReader, body: bytes, seed: int) -> PrefixMarks:
    """Return the marks of the prefixes of a body that its dialect has accepted; none of one that is no conversation."""
    chain = PrefixChain(seed)
    try:
        read(body, chain)
    except UNREADABLE:
        return ()
    return chain.marks()


def read_chat(body: bytes, chain: PrefixChain) -> None:
    """Read a chat completion."""
    chat = CHAT.decode(body)
    _begin(chain, _CHAT, chat)
    _add_tools(chain, chat.tools)
    _add_tools(chain, chat.functions)
    _add_turns(chain, chat.messages)


def read_messages(body: bytes, chain: PrefixChain) -> None:
    """Read Anthropic's messages; each block of the system prompt has a mark, as some are the same in all sessions."""
    request = MESSAGES.decode(body)
    _begin(chain, _MESSAGES, request)
    _add_tools(chain, request.tools)
    _add_system(chain, request.system)
    _add_turns(chain, request.messages)


def read_responses(body: bytes, chain: PrefixChain) -> None:
    """Read a response's input; what goes on from a stored answer is only read where that is stored."""
    request = RESPONSES.decode(body)
    if not (_is_nothing(request.previous_response_id) and _is_nothing(request.conversation)):
        return
    _begin(chain, _RESPONSES, request)
    _add_tools(chain, request.tools)
    if not _is_nothing(request.instructions):
        _add_turn(chain, ConversationTurn("system", request.instructions))
    if bytes(request.input)[:1] != b"[":
        _add_turn(chain, ConversationTurn("user", request.input))
        return
    answers = [_add_item(chain, item) for item in _elements(chain, request.input)]
    chain.note_answers([answer for answer in answers if answer is not None])


def read_completion(body: bytes, chain: PrefixChain) -> None:
    """Read the prompt of a completion, text or token ids; several prompts are no conversation."""
    request = COMPLETION.decode(body)
    _begin(chain, _COMPLETION, request)
    prompt = request.prompt
    text = bytes(prompt)
    if text[:1] == b"[" and (text[1:].lstrip()[:1] in {b'"', b"["}):
        prompts = LIST.decode(text)
        if len(prompts) != 1:
            return
        prompt, text = prompts[0], bytes(prompts[0])
    if text in _NOTHING:
        return
    if text[:1] == b"[":
        chain.add(_TOKENS, text[:-1])
    else:
        chain.add(_TEXT, text[:-1])
    chain.end()


# ---- pieces


def _begin(chain: PrefixChain, surface: int, root: ConversationRoot) -> None:
    """Hash what changes the whole prompt; each member with a number of its own."""
    chain.root(surface, root.model)
    kind = _ROOT
    members = (
        root.lora_path,
        root.cache_salt,
        root.extra_key,
        root.chat_template,
        root.chat_template_kwargs,
        root.documents,
        root.reasoning_effort,
    )
    for member in members:
        if member is not _ABSENT and not _is_nothing(member):
            chain.root(kind, member)
        kind += 1


def _add_tools(chain: PrefixChain, tools: Raw) -> None:
    if tools is not _ABSENT and not _is_nothing(tools):
        chain.add(_TOOLS, _plain(tools))
        chain.end()


def _add_system(chain: PrefixChain, system: Raw) -> None:
    """Hash Anthropic's system prompt, but for the billing line that it may begin with."""
    if bytes(system)[:1] != b"[":
        _add_system_text(chain, system)
        return
    for raw in _elements(chain, system):
        block = BLOCK.decode(raw)
        if bytes(block.type) in _TEXTS:
            _add_system_text(chain, block.text)


def _add_system_text(chain: PrefixChain, text: Raw) -> None:
    said = bytes(text)
    if said.startswith(_BILLING):
        _, _, rest = said.partition(_LINE_END)
        said = b'"' + rest if rest else b""
    if said in _NOTHING:
        return
    chain.add_message(_ROLES["system"], said)


def _add_turns(chain: PrefixChain, turns: list[ConversationTurn]) -> None:
    _count(chain, len(turns))
    for turn in turns:
        _add_turn(chain, turn)
    if chain.is_long:
        chain.note_answers([turn.role == "assistant" for turn in turns])


def _add_turn(chain: PrefixChain, turn: ConversationTurn) -> None:
    """Hash a message; text in either form, and nothing beside it, has one hash."""
    role = _ROLES.get(turn.role)
    if role is None:
        role = seed_of(turn.role)
    content = bytes(turn.content)
    if len(content) > _EMPTY_BYTES and content[0] == _QUOTE and _is_plain(turn):
        chain.add_message(role, content)
        return
    chain.begin(role)
    _add_content(chain, turn.content, nested=False)
    if not _is_nothing(turn.tool_calls):
        chain.add(_CALLS, turn.tool_calls)
    if not _is_nothing(turn.function_call):
        chain.add(_CALLS, turn.function_call)
    if not _is_nothing(turn.tool_call_id):
        chain.add(_CALL_ID, turn.tool_call_id)
    if not _is_nothing(turn.name):
        chain.add(_NAME, turn.name)
    chain.end()


def _is_plain(turn: ConversationTurn) -> bool:
    """Whether it is nothing but its content."""
    absent = _ABSENT
    return (
        turn.tool_calls is absent
        and turn.name is absent
        and turn.tool_call_id is absent
        and turn.function_call is absent
    )


def _add_item(chain: PrefixChain, raw: Raw) -> bool | None:
    """Hash an item of a response's input: a message, or a call, its output and the like as they are.

    Return whether it is the model's, None for reasoning, which is left out.
    """
    item = ITEM.decode(raw)
    kind = bytes(item.type)
    if kind in _REASONING:
        return None
    if item.role:
        _add_turn(chain, item)
        return item.role == "assistant"
    _add_other(chain, raw)
    chain.end()
    return kind.endswith(_CALL)


def _add_content(chain: PrefixChain, content: Raw, *, nested: bool) -> None:
    """Hash the content of a message, or of a tool's result `nested` in one: text in either form, or parts."""
    said = bytes(content)
    if said[:1] == b"[":
        for raw in _elements(chain, content):
            _add_block(chain, raw, nested=nested)
    elif said not in _NOTHING:
        chain.add(_TEXT, said)


def _add_block(chain: PrefixChain, raw: Raw, *, nested: bool) -> None:
    block = BLOCK.decode(raw)
    kind = bytes(block.type)
    if kind in _TEXTS:
        if not _is_nothing(block.text):
            chain.add(_TEXT, block.text)
    elif kind == _RESULT and not nested:
        chain.add(_CALL_ID, block.tool_use_id)
        if bytes(block.is_error) == b"true":
            chain.add(_NAME, block.is_error)
        _add_content(chain, block.content, nested=True)
    elif kind not in _REASONING:
        _add_other(chain, raw)


def _add_other(chain: PrefixChain, raw: Raw) -> None:
    """Hash a part that is no text as it stands; an image counts as its usual tokens, and not by its base64."""
    plain = _plain(raw)
    chain.add_sized(_BLOCK, plain, content_bytes(plain))


def _plain(raw: Raw) -> bytes:
    """Return this JSON without `cache_control`."""
    text = bytes(raw)
    return _CACHE_MEMBER.sub(b"", text) if text.find(_CACHE_CONTROL) >= 0 else text


def _elements(chain: PrefixChain, array: Raw) -> list[Raw]:
    """Return the elements of an array of objects; a decoding error for more than any conversation has."""
    check_objects(array, 0, MOST_PIECES)
    elements = LIST.decode(array)
    _count(chain, len(elements))
    return elements


def _count(chain: PrefixChain, pieces: int) -> None:
    """Raise msgspec.ValidationError once there are more pieces than any conversation has."""
    chain.pieces += pieces
    if chain.pieces > MOST_PIECES:
        raise msgspec.ValidationError("too many pieces")


def _is_nothing(raw: Raw) -> bool:
    return len(raw) <= 4 and bytes(raw) in _NOTHING
