"""What of a request an engine's template writes, for the marks of its prefixes; everything else is skipped.

Structs stay with the interpreter, as the compiler drops the keywords of their classes; what reads them is compiled.
"""

from typing import Final

import msgspec
from msgspec import Raw

from millgate.dialects.bodies import ABSENT


class ConversationTurn(msgspec.Struct, gc=False):
    """A message of any dialect. Reasoning is left out: templates drop that of earlier turns, and clients differ."""

    role: str = ""
    content: Raw = ABSENT
    tool_calls: Raw = ABSENT
    tool_call_id: Raw = ABSENT
    name: Raw = ABSENT
    function_call: Raw = ABSENT


class ConversationRoot(msgspec.Struct, gc=False):
    """What changes every token of a prompt, wherever it stands; vLLM names an adapter as the model, SGLang by `lora_path`.

    `cache_salt` and SGLang's `extra_key` keep equal prompts apart in an engine's cache.
    """

    model: Raw = ABSENT
    lora_path: Raw = ABSENT
    cache_salt: Raw = ABSENT
    extra_key: Raw = ABSENT
    chat_template: Raw = ABSENT
    chat_template_kwargs: Raw = ABSENT
    documents: Raw = ABSENT
    reasoning_effort: Raw = ABSENT
    tools: Raw = ABSENT


class ChatConversation(ConversationRoot, kw_only=True, gc=False):
    """A chat completion's conversation."""

    messages: list[ConversationTurn]
    functions: Raw = ABSENT


class MessagesConversation(ConversationRoot, kw_only=True, gc=False):
    """A conversation of Anthropic's messages."""

    messages: list[ConversationTurn]
    system: Raw = ABSENT


class ResponsesConversation(ConversationRoot, kw_only=True, gc=False):
    """A conversation of OpenAI's responses."""

    instructions: Raw = ABSENT
    input: Raw = ABSENT
    previous_response_id: Raw = ABSENT
    conversation: Raw = ABSENT


class PlainPrompt(ConversationRoot, kw_only=True, gc=False):
    """A completion's prompt."""

    prompt: Raw = ABSENT


class ContentBlock(msgspec.Struct, gc=False):
    """A part of a message."""

    type: Raw = ABSENT
    text: Raw = ABSENT
    content: Raw = ABSENT
    tool_use_id: Raw = ABSENT
    is_error: Raw = ABSENT


class InputItem(ConversationTurn, kw_only=True, gc=False):
    """An item of a response's input: a message where it has a role."""

    type: Raw = ABSENT


CHAT: Final = msgspec.json.Decoder(ChatConversation)
MESSAGES: Final = msgspec.json.Decoder(MessagesConversation)
RESPONSES: Final = msgspec.json.Decoder(ResponsesConversation)
COMPLETION: Final = msgspec.json.Decoder(PlainPrompt)
BLOCK: Final = msgspec.json.Decoder(ContentBlock)
ITEM: Final = msgspec.json.Decoder(InputItem)
LIST: Final = msgspec.json.Decoder(list[Raw])
