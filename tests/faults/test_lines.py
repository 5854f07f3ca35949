"""Rows 17, 27 and 51: what is written of garbage, of hostile names and of unusable usage, and how many lines of it."""

import json
from pathlib import Path
from typing import Any

from lab.upstream import FakeUpstream, answers

from faults.asking import ask, say
from faults.process import GateProcess, until
from faults.starter import Starter

TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(190)
GARBAGE = (TLS_HELLO, b"\x00" * 100, b"SSH-2.0-scan\r\n\r\n", b"\x03\x00\x00\x13\x0e\xe0\x00\x00\r\n\r\n")


def written(gate: GateProcess, event: str) -> list[dict[str, Any]]:
    """Return the lines of the process about this event."""
    records = [json.loads(line) for line in gate.errors().splitlines()]
    return [record for record in records if record["event"] == event]


def metric(gate: GateProcess, name: str) -> float:
    page = gate.ask("/metrics")[1].decode()
    return float(next(line for line in page.splitlines() if line.startswith(f"{name} ")).split()[1])


def test_row_17_a_flood_of_garbage_is_one_line(start: Starter, upstream: FakeUpstream) -> None:
    gate = start(upstream.url)
    for garbage in GARBAGE * 25:
        talk = gate.connect()
        talk.try_send(garbage)
        assert talk.rest().startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 505 "))
        talk.close()
    assert metric(gate, "millgate_door_rejected_total") == 25 * len(GARBAGE)
    until(lambda: written(gate, "bad requests"))
    lines = written(gate, "bad requests")
    assert [(line["level"], line["code"], line["count"]) for line in lines] == [
        ("warning", "invalid_request", 1)
    ]
    assert not any(said in gate.errors() for said in ("SSH", "scan", "\\u0000"))


HOSTILE = (
    "a\\r\\nevil: 1",
    "${jndi:ldap://evil.example/x}",
    '"},{"outcome":"fake',
    "%0d%0aevil",
    "\x1b[31mevil",
    "a\x7f evil",
    "<script>evil</script>",
    "\u202elive",
    "x" * 4000,
)


def test_row_27_every_attempt_is_one_valid_line_of_json_whatever_its_names_are(
    start: Starter, upstream: FakeUpstream, tmp_path: Path
) -> None:
    log = tmp_path / "attempts.jsonl"
    settings = {
        "records.log_attempts": str(log),
        "tenant_from": "key",
        "listen.trusted_peers": "[127.0.0.0/8]",
    }
    gate = start(upstream.url, settings=settings)
    sent = 0
    for text in HOSTILE:
        plain = text.encode("ascii", "replace").decode().replace("\x1b", "").replace("\x7f", "")
        lines = ("User-Agent", "X-Request-Id", "X-Millgate-Tenant", "X-Millgate-Lane", "Authorization")
        for model in (text, "m"):
            sent += ask(gate, *(f"{name}: {plain}" for name in lines), model=model).status == 200
    assert sum(gate.ended().values()) == sent >= len(HOSTILE)
    until(lambda: log.exists() and log.read_bytes().count(b"\n") == sent)
    written_lines = log.read_bytes().splitlines()
    assert len(written_lines) == sent, "no line end within a line"
    for line in written_lines:
        assert all(0x20 <= byte < 0x7F for byte in line)
        assert json.loads(line)["outcome"] == "good"
        assert b"evil" not in line


UNUSABLE: tuple[Any, ...] = (None, {"prompt_tokens": -5, "completion_tokens": 1}, {"prompt_tokens": 10**15})


def test_row_51_unusable_usage_is_counted_and_told_once(start: Starter, upstream: FakeUpstream) -> None:
    gate = start(upstream.url)
    assert ask(gate).status == 200
    assert ask(gate, stream=True).status == 200
    assert metric(gate, "millgate_door_unusable_usage_total") == 0
    for usage in UNUSABLE:
        upstream.script = say(answers.whole(answers.completion("a", usage=usage)))
        assert ask(gate).status == 200
        last = b"data: %b\n\n" % json.dumps({"id": "c", "choices": [], "usage": usage}).encode()
        events = answers.chunks(answers.event("a"), answers.event(finish="stop"), last, answers.DONE)
        upstream.script = say(answers.head(200, answers.EVENT_STREAM) + events + answers.LAST_CHUNK)
        assert ask(gate, stream=True).status == 200
        assert ask(gate, stream=True, stream_options={"include_usage": False}).status == 200
    assert gate.ended() == {"good": 2 + 3 * len(UNUSABLE)}
    counted = metric(gate, "millgate_door_unusable_usage_total")
    assert counted == 2 * len(UNUSABLE), "who did not ask for it is owed none"
    until(lambda: written(gate, "answers without usable usage"))
    (line,) = written(gate, "answers without usable usage")
    assert (line["level"], line["count"]) == ("warning", 1)
    assert line["engine"] == gate.state()["engines"][0]["name"]
