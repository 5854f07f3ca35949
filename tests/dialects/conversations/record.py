"""Records what the real SDKs send, turn by turn: `python tests/dialects/conversations/record.py` writes the files beside it.

Each line is one request body as it came. Claude Code is not run: `claude_code.jsonl` has its shape, written here by hand from what
engines report of it (vllm#36829, sglang#36877, vllm-mlx#277).
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SYSTEM = "You are a careful assistant for the harbour office of Zürich. Answer in one sentence."
QUESTIONS = ("Which berth is free?", 'Is "Möwe" still at berth 4?\nShe was due at noon.', "Thank you!")
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "berths",
            "description": "List the berths.",
            "parameters": {"type": "object", "properties": {"free": {"type": "boolean"}}},
        },
    }
]
CALL = {"id": "call_1", "type": "function", "function": {"name": "berths", "arguments": '{"free": true}'}}


def _chat_answer(asked: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": f"Answer {asked}."}
    if asked == 1:
        message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    message |= {"reasoning_content": f"thought {asked}", "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": f"c{asked}", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}


def _message_answer(asked: int) -> dict[str, Any]:
    content: list[dict[str, Any]] = [
        {"type": "thinking", "thinking": f"thought {asked}", "signature": "s"},
        {"type": "text", "text": f"Answer {asked}."},
    ]
    if asked == 1:
        content[1] = {"type": "tool_use", "id": "toolu_1", "name": "berths", "input": {"free": True}}
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {"id": f"m{asked}", "type": "message", "role": "assistant", "model": "m", "content": content}
    return message | {"stop_reason": "end_turn", "stop_sequence": None, "usage": usage}


def _response_answer(asked: int) -> dict[str, Any]:
    text = {"type": "output_text", "text": f"Answer {asked}.", "annotations": []}
    output: list[dict[str, Any]] = [{"type": "reasoning", "id": f"rs_{asked}", "summary": []}]
    if asked == 1:
        call = {"id": "fc_1", "call_id": "call_1", "name": "berths", "arguments": "{}", "status": "completed"}
        output.append({"type": "function_call", **call})
    else:
        message = {"id": f"msg_{asked}", "role": "assistant", "status": "completed", "content": [text]}
        output.append({"type": "message", **message})
    answer = {"id": f"resp_{asked}", "object": "response", "created_at": 1, "model": "m", "output": output}
    return answer | {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}


ANSWERS = {
    "/v1/chat/completions": _chat_answer,
    "/v1/messages": _message_answer,
    "/v1/responses": _response_answer,
}


@contextmanager
def _engine() -> Iterator[tuple[str, list[bytes]]]:
    """Answer everything, and keep the bodies that came."""
    bodies: list[bytes] = []

    class Engine(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            answer = json.dumps(ANSWERS[self.path.partition("?")[0]](len(bodies))).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Engine)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", bodies
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def openai_sdk(url: str) -> None:
    """Ask as its documentation shows: the answer's message goes back into the list as it is."""
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key="k")
    messages: list[Any] = [{"role": "system", "content": SYSTEM}]
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        while True:
            answer = client.chat.completions.create(model="m", messages=messages, tools=TOOLS)
            message = answer.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                break
            messages.append({"role": "tool", "tool_call_id": "call_1", "content": "Berth 7."})


def openai_responses(url: str) -> None:
    """Go on with the items of every answer, as a client that stores nothing does."""
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key="k")
    items: list[Any] = []
    for question in QUESTIONS:
        items.append({"role": "user", "content": question})
        while True:
            answer = client.responses.create(model="m", instructions=SYSTEM, input=items, store=False)
            items += answer.output
            if answer.output[-1].type != "function_call":
                break
            items.append({"type": "function_call_output", "call_id": "call_1", "output": "Berth 7."})


def anthropic_sdk(url: str) -> None:
    """Move the one cache breakpoint to the newest question, as Anthropic recommends."""
    from anthropic import Anthropic

    client = Anthropic(base_url=url, api_key="k")
    tools: list[Any] = [{"name": "berths", "input_schema": TOOLS[0]["function"]["parameters"]}]
    messages: list[Any] = []

    def ask(content: list[dict[str, Any]]) -> Any:
        newest = [*content[:-1], content[-1] | {"cache_control": {"type": "ephemeral"}}]
        asked = [*messages, {"role": "user", "content": newest}]
        answer = client.messages.create(model="m", max_tokens=9, system=SYSTEM, tools=tools, messages=asked)
        messages.extend(
            ({"role": "user", "content": content}, {"role": "assistant", "content": answer.content})
        )
        return answer

    for question in QUESTIONS:
        answer = ask([{"type": "text", "text": question}])
        if answer.content[-1].type == "tool_use":
            ask([{"type": "tool_result", "tool_use_id": "toolu_1", "content": "Berth 7."}])


def langchain(url: str) -> None:
    """Ask through LangChain's chat model."""
    from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
    from langchain_openai import ChatOpenAI
    from pydantic import SecretStr

    model = ChatOpenAI(model="m", base_url=f"{url}/v1", api_key=SecretStr("k")).bind_tools(TOOLS)
    messages: list[Any] = [SystemMessage(SYSTEM)]
    for question in QUESTIONS:
        messages.append(HumanMessage(question))
        messages.append(model.invoke(messages))
        if messages[-1].tool_calls:
            messages.append(ToolMessage("Berth 7.", tool_call_id="call_1"))
            messages.append(model.invoke(messages))


def claude_code() -> Iterator[dict[str, Any]]:
    """Give its shape: a billing line with a new hash, breakpoints that move, a message as text now and as parts later."""
    cached = {"cache_control": {"type": "ephemeral"}}
    tools = [
        {"name": "Bash", "description": "Run.", "input_schema": {"type": "object", "properties": {}}},
        {"name": "Read", "description": "Read.", "input_schema": {"type": "object", "properties": {}}},
    ]
    use = {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"file_path": "a.py"}}
    result: dict[str, Any] = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "1\tprint('é')"}
    thought = {"type": "thinking", "thinking": "Let me look.", "signature": "s"}
    turns: list[tuple[str, list[dict[str, Any]]]] = [
        ("user", [{"type": "text", "text": "<system-reminder>\nNone.\n</system-reminder>"}]),
        ("assistant", [thought, {"type": "text", "text": "I read it."}, use]),
        ("user", [result]),
        ("assistant", [{"type": "text", "text": "It prints a letter."}]),
        ("user", [{"type": "text", "text": "Thanks"}]),
    ]
    for number, until in enumerate((1, 3, 5)):
        billing = (
            f"x-anthropic-billing-header: cc_version=2.1.100.7b{number}; cc_entrypoint=cli; cch=e{number}6c6;"
        )
        system = [
            {"type": "text", "text": billing},
            {"type": "text", "text": "You are Claude Code."} | cached,
            {"type": "text", "text": "# Environment\nlinux"} | cached,
        ]
        messages: list[dict[str, Any]] = []
        for at, (role, parts) in enumerate(turns[:until]):
            if at >= until - 2:
                messages.append({"role": role, "content": [*parts[:-1], parts[-1] | cached]})
            elif len(parts) == 1 and parts[0]["type"] == "text":
                messages.append({"role": role, "content": parts[0]["text"]})
            else:
                messages.append({"role": role, "content": parts})
        yield {
            "model": "claude-m",
            "messages": messages,
            "system": system,
            "tools": tools,
            "metadata": {"user_id": "u"},
            "max_tokens": 32000,
            "stream": True,
        }


CLIENTS: tuple[Callable[[str], None], ...] = (openai_sdk, openai_responses, anthropic_sdk, langchain)


def main() -> None:
    """Write one file for each client."""
    for client in CLIENTS:
        with _engine() as (url, bodies):
            client(url)
        (HERE / f"{client.__name__}.jsonl").write_bytes(b"\n".join(bodies) + b"\n")
    lines = [json.dumps(body, separators=(",", ":"), ensure_ascii=False) for body in claude_code()]
    (HERE / "claude_code.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
