"""Reads OpenAI-compatible bodies as far as an engine without a model needs: how long is the prompt, the answer?

Prompt tokens are the UTF-8 bytes of all message or prompt text over `BYTES_PER_TOKEN`, rounded up, declared tools and
calls of them included; a prompt given as token ids counts exactly. The answer's length is, in this order:
`millgate_output_tokens` (the length that a load generator hides under a large `max_tokens`); else, of a request without
tools, `max_tokens` / `max_completion_tokens`; else the whole context with `ignore_eos`. Else it is a draw from a lognormal
law, for agents ask for 32,000 tokens and mean a limit. `min_tokens` lifts it, `max_tokens` cuts it.
Of tools it calls the first that fits, with the plainest arguments that its schema takes.
"""

from enum import StrEnum
from random import Random
from typing import Final, NamedTuple

import msgspec

from millgate.dialects.conversations import BILLING_LINE
from millgate.servers.emulator.settings import MOST_TOKENS_PER_EVENT

MOST_DEPTH: Final = 8
"""Schemas nest no deeper than this here; what lies below gets an empty object."""


class ToolCall(NamedTuple):
    """One call: the tool's name, and its arguments as a JSON object."""

    name: str
    arguments: str


class Function(msgspec.Struct):
    """A tool's name and schema: inside `function` (chat), or flat (messages: `input_schema`, responses: `parameters`)."""

    name: str = ""
    parameters: dict[str, object] | None = None
    input_schema: dict[str, object] | None = None


class Tool(Function):
    """One entry of `tools`."""

    function: Function | None = None


class ToolChoice(msgspec.Struct):
    """A `tool_choice` that is an object."""

    type: str = ""
    name: str = ""
    function: Function | None = None


def choose(tools: list[Tool] | None, choice: str | ToolChoice | None) -> ToolCall | None:
    """Return the call that answers a request with these tools; None when there are none or they are not to be used."""
    if choice == "none" or (isinstance(choice, ToolChoice) and choice.type == "none"):
        return None
    wanted = _wanted(choice)
    for tool in tools or ():
        function = tool.function or tool
        if function.name and wanted in {"", function.name}:
            schema = function.parameters or function.input_schema or {}
            return ToolCall(function.name, msgspec.json.encode(_value(schema, MOST_DEPTH)).decode())
    return None


def _wanted(choice: str | ToolChoice | None) -> str:
    if not isinstance(choice, ToolChoice):
        return ""
    return choice.function.name if choice.function is not None else choice.name


def _value(schema: object, depth: int) -> object:
    """Return the plainest value of a JSON schema: required properties only, the first of an enumeration."""
    if not isinstance(schema, dict) or not depth:
        return {}
    choices = schema.get("enum")
    if isinstance(choices, list) and choices:
        return choices[0]
    match schema.get("type"):
        case "string":
            return "tok"
        case "integer" | "number":
            return 1
        case "boolean":
            return True
        case "array":
            return []
        case "null":
            return None
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict) or not isinstance(required, list):
        return {}
    return {name: _value(properties.get(name), depth - 1) for name in required if isinstance(name, str)}


BYTES_PER_TOKEN: Final = 4
"""English text of current tokenisers, rounded."""

ANSWER_MEDIAN_TOKENS: Final = 129
ANSWER_SIGMA: Final = 0.93
"""The lognormal through median 129 and 90th percentile 424, the Azure 2023 conversation trace."""

MOST_ANSWERS: Final = 128
"""Most sequences of one request (prompts x `n`), the bound that OpenAI states for `n`."""


class Surface(StrEnum):
    """The ways to ask for a text."""

    CHAT = "chat"
    COMPLETION = "completion"
    MESSAGES = "messages"
    RESPONSES = "responses"


class BadRequestError(Exception):
    """The request is wrong; the message names the field and the limit, never the prompt."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class EmulatedSequence(NamedTuple):
    """One sequence of a request: how long its prompt and answer are, and why the answer will end.

    `prefix_ids` name the blocks of both where the engine caches prefixes.
    """

    prompt_tokens: int
    output_tokens: int
    finish_reason: str
    prefix_ids: tuple[int, ...] = ()


class GenerationRequest(NamedTuple):
    """One request, read: `prompt_tokens` counts each prompt once however many answers it gets.

    `answers` holds those of the first prompt, then those of the second one, as many of each. `tool` is the call that stands
    for the text of every answer, `tools` what the request declares, as it stands there. `store` asks to keep the answer (responses).
    """

    surface: Surface
    model: str
    stream: bool
    include_usage: bool
    tokens_per_event: int
    prompt_tokens: int
    answers: tuple[EmulatedSequence, ...]
    tool: ToolCall | None = None
    tools: bytes = b""
    store: bool = False
    prompts: int = 1


_ABSENT: Final = msgspec.Raw(b"")
_NOTHING: Final = frozenset({b"", b"null", b"[]"})


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False


class _Part(msgspec.Struct):
    type: str = ""
    text: str = ""
    content: msgspec.Raw = _ABSENT
    input: msgspec.Raw = _ABSENT


class _Message(msgspec.Struct):
    role: str = ""
    type: str = ""
    content: str | list[_Part] | None = None
    output: msgspec.Raw = _ABSENT
    tool_calls: msgspec.Raw = _ABSENT
    arguments: msgspec.Raw = _ABSENT


class _Body(msgspec.Struct):
    model: str = ""
    messages: list[_Message] | None = None
    prompt: str | list[int | str | list[int]] | None = None
    system: str | list[_Part] | None = None
    input: str | list[_Message] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    store: bool | None = None
    tools: msgspec.Raw = _ABSENT
    tool_choice: str | ToolChoice | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    millgate_output_tokens: int | None = None
    millgate_tokens_per_event: int | None = None


_DECODER: Final = msgspec.json.Decoder(_Body)
_TOOLS: Final = msgspec.json.Decoder(list[Tool])


class RequestReader:
    """Reads bodies for one engine; `max_model_len` bounds prompt and answer together."""

    def __init__(self, *, max_model_len: int, tokens_per_event: int, model_name: str, dice: Random) -> None:
        self._max_model_len = max_model_len
        self._tokens_per_event = tokens_per_event
        self._model_name = model_name
        self._dice = dice

    def read(self, body: bytes, surface: Surface) -> GenerationRequest:
        """Read one body; BadRequestError when a field is wrong."""
        fields = _decoded(body)
        tools = _tools(fields)
        prompts = _PROMPTS[surface](fields)
        count = _within("n", fields.n, 1, MOST_ANSWERS, default=1)
        if len(prompts) * count > MOST_ANSWERS:
            raise BadRequestError(
                "n", f"prompts x n must be at most {MOST_ANSWERS}, got {len(prompts) * count}"
            )
        options = fields.stream_options
        tool = None if _has_result(fields) else choose(_declared(tools), fields.tool_choice)
        return GenerationRequest(
            surface=surface,
            model=fields.model or self._model_name,
            stream=bool(fields.stream),
            include_usage=options is not None and options.include_usage,
            tokens_per_event=_within(
                "millgate_tokens_per_event",
                fields.millgate_tokens_per_event,
                1,
                MOST_TOKENS_PER_EVENT,
                default=self._tokens_per_event,
            ),
            prompt_tokens=sum(prompts),
            answers=tuple(self._answer(fields, prompt, tool) for prompt in prompts for _ in range(count)),
            tool=tool,
            tools=tools,
            store=surface is Surface.RESPONSES and fields.store is not False,
            prompts=len(prompts),
        )

    def _answer(self, fields: _Body, prompt_tokens: int, tool: ToolCall | None) -> EmulatedSequence:
        """Settle how long one answer gets, and whether it stops of itself, at its limit, or for a tool."""
        answer = self._text_answer(fields, prompt_tokens)
        return answer if tool is None else answer._replace(finish_reason="tool_calls")

    def _text_answer(self, fields: _Body, prompt_tokens: int) -> EmulatedSequence:
        room = self._max_model_len - prompt_tokens
        if room < 1:
            raise BadRequestError(
                "messages" if fields.messages is not None else "prompt",
                f"must leave room for 1 token of at most {self._max_model_len}, got {prompt_tokens}",
            )
        name, asked = _asked_limit(fields)
        limit = _within(name, asked, 1, room, default=room)
        least = _within("min_tokens", fields.min_tokens, 0, limit, default=0)
        hidden = fields.millgate_output_tokens
        if hidden is not None:
            wanted = _within("millgate_output_tokens", hidden, 1, self._max_model_len, default=1)
        elif fields.ignore_eos or (asked is not None and not _tools(fields)):
            return EmulatedSequence(prompt_tokens, limit, "length")
        else:
            wanted = max(1, round(ANSWER_MEDIAN_TOKENS * self._dice.lognormvariate(0.0, ANSWER_SIGMA)))
        wanted = max(wanted, least)
        return EmulatedSequence(prompt_tokens, min(wanted, limit), "stop" if wanted <= limit else "length")


def _decoded(body: bytes) -> _Body:
    try:
        return _DECODER.decode(body)
    except msgspec.ValidationError as error:
        raise _from_validation(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise BadRequestError("body", "must be a JSON object") from None


def _tools(fields: _Body) -> bytes:
    """Return the array that declares tools, as it stands in the body, empty where it declares none."""
    tools = bytes(fields.tools)
    return b"" if tools in _NOTHING else tools


def _declared(tools: bytes) -> list[Tool]:
    try:
        return _TOOLS.decode(tools) if tools else []
    except msgspec.ValidationError as error:
        raise _from_validation(str(error).replace("`$", "`$.tools")) from None


def _from_validation(message: str) -> BadRequestError:
    """Name the field that msgspec puts at the message's end, as in: Expected `int`, got `str` - at `$.n`."""
    problem, _, path = message.partition(" - at `$.")
    return BadRequestError(path.rstrip("`") or "body", problem)


def _within(field: str, value: int | None, least: int, most: int, *, default: int) -> int:
    if value is None:
        return default
    if not least <= value <= most:
        raise BadRequestError(field, f"must be from {least} to {most}, got {value}")
    return value


def _asked_limit(fields: _Body) -> tuple[str, int | None]:
    """Return the limit that the request sets itself, and what it is called there."""
    if fields.max_completion_tokens is not None:
        return "max_completion_tokens", fields.max_completion_tokens
    if fields.max_output_tokens is not None:
        return "max_output_tokens", fields.max_output_tokens
    return "max_tokens", fields.max_tokens


def _has_result(fields: _Body) -> bool:
    """Whether the newest turn brings a tool's result: then it is time for words."""
    turns = fields.messages if fields.messages is not None else fields.input
    if not turns or isinstance(turns, str):
        return False
    last = turns[-1]
    parts = last.content if isinstance(last.content, list) else ()
    results = any(part.type == "tool_result" for part in parts)
    return results or last.role == "tool" or last.type == "function_call_output"


def _message_tokens(fields: _Body) -> list[int]:
    """Count the one prompt that all messages make, with the system's."""
    if not fields.messages:
        raise BadRequestError("messages", "must hold at least one message")
    texts = _text_bytes(fields.system) + sum(map(_content_bytes, fields.messages))
    return [_text_tokens(len(_tools(fields)) + texts)]


def _input_tokens(fields: _Body) -> list[int]:
    given = fields.input
    if not given:
        raise BadRequestError("input", "must be text or a list of items, and not empty")
    size = _utf8_bytes(given) if isinstance(given, str) else sum(map(_content_bytes, given))
    return [_text_tokens(len(_tools(fields)) + _text_bytes(fields.instructions) + size)]


def _content_bytes(message: _Message) -> int:
    told = (message.output, message.tool_calls, message.arguments)
    return _text_bytes(message.content) + sum(map(_told_bytes, told))


def _text_bytes(content: str | list[_Part] | None) -> int:
    if content is None:
        return 0
    if isinstance(content, str):
        return _utf8_bytes(content)
    return sum(map(_part_bytes, content))


def _part_bytes(part: _Part) -> int:
    if part.text.startswith(BILLING_LINE):
        return 0
    return _utf8_bytes(part.text) + _told_bytes(part.content) + _told_bytes(part.input)


def _told_bytes(told: msgspec.Raw) -> int:
    text = bytes(told)
    return 0 if text in _NOTHING else len(text)


def _prompt_tokens(fields: _Body) -> list[int]:
    """Count each prompt: one text, one list of token ids, or a list of either."""
    prompt = fields.prompt
    if not prompt:
        raise BadRequestError("prompt", "must be text, token ids, or a list of either, and not empty")
    if isinstance(prompt, str):
        return [_text_tokens(_utf8_bytes(prompt))]
    ids = sum(isinstance(item, int) for item in prompt)
    if ids == len(prompt):
        return [ids]
    if ids:
        raise BadRequestError("prompt", "must not mix token ids with prompts")
    return [_item_tokens(item) for item in prompt]


def _item_tokens(item: int | str | list[int]) -> int:
    if isinstance(item, str):
        return _text_tokens(_utf8_bytes(item))
    return max(1, len(item)) if isinstance(item, list) else 1


def _text_tokens(count: int) -> int:
    return max(1, -(-count // BYTES_PER_TOKEN))


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


_PROMPTS: Final = {
    Surface.CHAT: _message_tokens,
    Surface.COMPLETION: _prompt_tokens,
    Surface.MESSAGES: _message_tokens,
    Surface.RESPONSES: _input_tokens,
}
