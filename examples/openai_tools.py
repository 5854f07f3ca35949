"""A streamed answer and a streamed tool call with the OpenAI SDK as it is, through the gateway.

MILLGATE_URL=http://127.0.0.1:8080 python examples/openai_tools.py
"""

import json
import os

import openai
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["unit"],
        },
    },
}


def main() -> None:
    """Let the model call a tool, then read its answer as it comes."""
    url = os.environ.get("MILLGATE_URL", "http://127.0.0.1:8080")
    client = openai.OpenAI(base_url=url + "/v1", api_key="unused")
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the weather?"}]

    name, arguments = "", ""
    for chunk in client.chat.completions.create(
        model="any", messages=messages, tools=[WEATHER], max_tokens=5, stream=True
    ):
        for choice in chunk.choices:
            for call in choice.delta.tool_calls or ():
                if call.function is not None:
                    name += call.function.name or ""
                    arguments += call.function.arguments or ""
    print(f"{name}({json.loads(arguments)})")

    with client.chat.completions.stream(model="any", messages=messages, max_tokens=5) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
    print(f"said:{text}")


if __name__ == "__main__":
    main()
