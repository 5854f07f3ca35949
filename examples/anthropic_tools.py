"""A streamed answer and a streamed tool call with the Anthropic SDK as it is, through the gateway.

MILLGATE_URL=http://127.0.0.1:8080 python examples/anthropic_tools.py
"""

import os

import anthropic
from anthropic.types import MessageParam, ToolParam

WEATHER: ToolParam = {
    "name": "weather",
    "input_schema": {
        "type": "object",
        "properties": {"unit": {"enum": ["celsius", "fahrenheit"]}},
        "required": ["unit"],
    },
}


def main() -> None:
    """Let the model call a tool, then read its answer as it comes."""
    url = os.environ.get("MILLGATE_URL", "http://127.0.0.1:8080")
    client = anthropic.Anthropic(base_url=url, api_key="unused")
    messages: list[MessageParam] = [{"role": "user", "content": "What is the weather?"}]

    with client.messages.stream(model="any", max_tokens=5, messages=messages, tools=[WEATHER]) as stream:
        for block in stream.get_final_message().content:
            if block.type == "tool_use":
                print(f"{block.name}({block.input})")

    with client.messages.stream(model="any", max_tokens=5, messages=messages) as stream:
        text = "".join(stream.text_stream)
    print(f"said:{text}")


if __name__ == "__main__":
    main()
