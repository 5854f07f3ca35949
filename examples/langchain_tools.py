"""A streamed answer and a tool call with langchain-openai as it is, through the gateway.

MILLGATE_URL=http://127.0.0.1:8080 python examples/langchain_tools.py
"""

import os

from langchain_openai import ChatOpenAI
from pydantic import SecretStr

WEATHER = {
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
    model = ChatOpenAI(
        model="any", base_url=url + "/v1", api_key=SecretStr("unused"), max_completion_tokens=5
    )

    for call in model.bind_tools([WEATHER]).invoke("What is the weather?").tool_calls:
        print(f"{call['name']}({call['args']})")

    text = "".join(str(piece.content) for piece in model.stream("What is the weather?"))
    print(f"said:{text}")


if __name__ == "__main__":
    main()
