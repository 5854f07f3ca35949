"""Tool calls of an engine without a model: the first tool that fits, with the plainest arguments that its schema takes."""

from typing import Final, NamedTuple

import msgspec

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
