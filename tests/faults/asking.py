"""What the tests of upstream faults ask a gate, what a fake engine says to it, and how failures look."""

import asyncio
from typing import Any

from lab.upstream import Script, ScriptedConnection, answers

from faults.process import GateProcess
from faults.talk import Answer, chat


def ask(gate: GateProcess, *lines: str, stream: bool = False, **fields: Any) -> Answer:
    talk = gate.connect()
    talk.ask(chat(stream=stream, **fields), *lines)
    answer = talk.answer()
    talk.close()
    return answer


def say(*pieces: bytes, end: str = "") -> Script:
    """Return a script that sends these bytes as they are, and then closes, resets or stalls."""

    async def script(line: ScriptedConnection) -> None:
        for piece in pieces:
            await line.send(piece)
        if end == "fin":
            line.close()
        elif end == "reset":
            await asyncio.sleep(0.02)  # or the reset overtakes the bytes
            line.reset()
        elif end == "stall":
            await line.stall()

    return script


STREAM_HEAD = answers.head(200, answers.EVENT_STREAM)
BEGUN = STREAM_HEAD + answers.chunks(answers.event(""), answers.event("a"))


def broken_off(answer: Answer) -> None:
    """Check that a stream that has begun ends with an error event and a cut, never like a finished one (INV-10)."""
    assert answer.status == 200
    assert b'"content":"a"' in answer.body
    assert answer.last_event["error"]["message"]
    assert answers.DONE not in answer.body
    assert not answer.whole


def failed(answer: Answer, status: int, code: str) -> None:
    assert (answer.status, answer.error["code"]) == (status, code), answer.body
    assert answer.headers["content-type"] == "application/json"
    assert answer.whole
