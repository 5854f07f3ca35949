"""The admin door answers what the core knows, to nobody but those who may ask, and starts and ends without a sound."""

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest
import uvloop
from hypothesis import given, settings, strategies as st

from millgate.config.schema import Config
from millgate.core.events import Arrived
from millgate.core.governor import Governor
from millgate.observe.prometheus import Exposition
from millgate.servers.admin.answers import plain
from millgate.servers.admin.server import AdminServer
from millgate.servers.admin.source import Readiness, Views
from millgate.wiring.governor import build_governor
from millgate.wiring.settings import build_settings

NOW = 100.0


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Asks an admin door, one connection per question; `host` is what the Host header says."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def get(self, path: str, **headers: str) -> Answer:
        return await self.ask("GET", path, headers=headers)

    async def ask(
        self, method: str, path: str, *, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> Answer:
        given_headers = {
            "host": f"127.0.0.1:{self.port}",
            "content-length": str(len(body)),
            **(headers or {}),
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in given_headers.items())
        return await self.send(
            f"{method} {path} HTTP/1.1\r\n{lines}connection: close\r\n\r\n".encode() + body
        )

    async def send(self, request: bytes) -> Answer:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request)
        raw = await reader.read()
        writer.close()
        await writer.wait_closed()
        head, _, answer_body = raw.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        pairs = (line.split(": ", 1) for line in lines)
        return Answer(int(first.split()[1]), {name.lower(): value for name, value in pairs}, answer_body)


def gate(max_inflight: int = 1) -> Governor:
    config = Config.model_validate(
        {"engines": [{"url": "http://127.0.0.1:1", "name": "gpu", "max_inflight": max_inflight}]}
    )
    return build_governor(build_settings(config).settings, NOW)


def views(governor: Governor | None = None, readiness: Readiness | None = None) -> Views:
    core = governor or gate()
    return Views(
        snapshot=lambda: core.snapshot(NOW),
        explain=lambda arrival: core.explain(arrival, NOW),
        ready=lambda: readiness or Readiness(ready=True, detail={"engine gpu": "up"}),
        render_metrics=Exposition(lambda: core.snapshot(NOW)).render_in_pieces,
    )


def serving(script: Callable[[Client], Awaitable[None]], of: Views | None = None, **options: Any) -> None:
    """Start a door on a free port, run the script, and stop the door, all in one loop."""

    async def play() -> None:
        door = AdminServer(of or views(), "127.0.0.1", 0, **options)
        await door.start()
        try:
            await script(Client(door.port))
        finally:
            await door.stop()

    uvloop.run(play())


def test_healthz_says_that_the_process_answers() -> None:
    async def script(client: Client) -> None:
        answer = await client.get("/healthz")

        assert (answer.status, answer.body) == (200, b"ok\n")
        assert answer.headers["cache-control"] == "no-store"

    serving(script)


@pytest.mark.parametrize(("ready", "status"), [(True, 200), (False, 503)])
def test_readyz_is_503_while_not_ready_and_says_why(ready: bool, status: int) -> None:
    async def script(client: Client) -> None:
        answer = await client.get("/readyz")

        assert answer.status == status
        assert answer.json == {"ready": ready, "detail": {"gate": "draining"}}

    serving(script, views(readiness=Readiness(ready, {"gate": "draining"})))


def test_metrics_are_prometheus_text() -> None:
    async def script(client: Client) -> None:
        answer = await client.get("/metrics", accept="text/plain")

        assert answer.headers["content-type"].startswith("text/plain; version=")
        assert b'millgate_engine_limit{engine="gpu"} 1.0' in answer.body

    serving(script)


def test_state_is_the_whole_snapshot_with_words_as_keys() -> None:
    governor = gate()
    governor.handle(Arrived(1, prompt_bytes=400), NOW)
    governor.handle(Arrived(2, prompt_bytes=400, max_wait_s=0.0), NOW)

    async def script(client: Client) -> None:
        state = (await client.get("/api/state")).json

        assert [(engine["name"], engine["running"]) for engine in state["engines"]] == [("gpu", 1)]
        assert state["lanes"][0]["arrived"] == 2
        assert state["lanes"][0]["yields"]["saturated"] == 1
        assert state["lanes"][0]["little"]["whole"]["window_s"] >= 0
        assert state["little"]["engine"]["mean_attempts"] == 1.0

    serving(script, views(governor))


def test_explain_answers_what_would_be_decided_and_changes_nothing() -> None:
    governor = gate()
    before = governor.snapshot(NOW)

    async def script(client: Client) -> None:
        query = (
            b'{"prompt_bytes": 4000, "stream": false, "max_tokens": 100, "model": "m", "lane": "interactive"}'
        )
        posted = (await client.ask("POST", "/api/explain", body=query)).json
        asked = (await client.get("/api/explain?prompt_bytes=4000&stream=false&max_tokens=100&model=m")).json

        assert posted["decision"]["kind"] == "admit"
        assert posted["lane"] == "interactive"
        assert posted["prompt_tokens"] > 500
        assert posted == asked

    serving(script, views(governor))
    assert governor.snapshot(NOW) == before


def test_explain_tells_a_refusal_with_its_reason() -> None:
    governor = gate()
    governor.handle(Arrived(1, prompt_bytes=400), NOW)

    async def script(client: Client) -> None:
        decision = (await client.get("/api/explain?max_wait_s=0")).json["decision"]

        assert (decision["kind"], decision["reason"]) == ("yield", "saturated")
        assert decision["retry_after_s"] > 0

    serving(script, views(governor))


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b'{"prompt_bytes": -1}', "$.prompt_bytes"),
        (b'{"answers": 1000}', "$.answers"),
        (b'{"stream": "yes"}', "$.stream"),
        (b'{"promt_bytes": 1}', "promt_bytes"),
        (b"[1]", "object"),
        (b"{", "truncated"),
        (b"[" * 50_000, "object"),
        (b'{"x": ' + b"[" * 50_000, "x"),
        (b'{"model": "\xff"}', "utf-8"),
    ],
)
def test_a_bad_description_is_refused_naming_field_and_limit(body: bytes, complaint: str) -> None:
    async def script(client: Client) -> None:
        answer = await client.ask("POST", "/api/explain", body=body)

        assert answer.status == 400
        assert complaint in answer.json["error"]["message"]

    serving(script)


def test_a_description_beyond_its_bound_is_refused() -> None:
    async def script(client: Client) -> None:
        answer = await client.ask("POST", "/api/explain", body=b" " * 70_000)

        assert (answer.status, answer.json["error"]["code"]) == (413, "too_large")

    serving(script)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8081", "127.0.0.1.evil.example", "", "[", "127.0.0.1@evil.example"]
)
def test_a_foreign_host_is_refused(host: str) -> None:
    """DNS rebinding: the page's own name points to 127.0.0.1, and the browser sends that name."""

    async def script(client: Client) -> None:
        answer = await client.get("/api/state", host=host)

        assert answer.status in {400, 403}

    serving(script)


@pytest.mark.parametrize(
    "host", ["localhost:8081", "127.0.0.1", "[::1]:8081", "10.1.2.3:8081", "Gate.Internal:80"]
)
def test_addresses_localhost_and_configured_names_are_known(host: str) -> None:
    async def script(client: Client) -> None:
        assert (await client.get("/api/state", host=host)).status == 200

    serving(script, hosts=["gate.internal"])


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_a_probe_may_come_by_any_name_or_by_none_but_not_from_a_web_page(path: str) -> None:
    async def script(client: Client) -> None:
        assert (await client.get(path, host="millgate.default.svc")).status == 200
        nameless = b"GET " + path.encode() + b" HTTP/1.0\r\n\r\n"
        assert (await client.send(nameless)).status == 200
        foreign = await client.get(path, host="evil.example", origin="http://evil.example")
        assert foreign.status == 403

    serving(script)


def test_two_hosts_and_no_host_are_refused() -> None:
    async def script(client: Client) -> None:
        assert (
            await client.send(
                b"GET /api/state HTTP/1.1\r\nhost: a\r\nhost: localhost\r\nconnection: close\r\n\r\n"
            )
        ).status in {400, 403}
        assert (await client.send(b"GET /api/state HTTP/1.1\r\nconnection: close\r\n\r\n")).status in {
            400,
            403,
        }

    serving(script)


def test_a_request_made_by_another_web_page_is_refused() -> None:
    async def script(client: Client) -> None:
        foreign = await client.ask(
            "POST", "/api/explain", body=b"{}", headers={"origin": "https://evil.example"}
        )
        own = await client.ask(
            "POST", "/api/explain", body=b"{}", headers={"origin": "http://localhost:8081"}
        )

        assert (foreign.status, own.status) == (403, 200)
        assert foreign.json["error"]["code"] == "origin_not_allowed"

    serving(script)


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("127.0.0.1:8081", "http://127.0.0.1:8081", 200),
        ("[::1]:8081", "http://[::1]:8081", 200),
        ("127.0.0.1:8081", "https://127.0.0.1", 200),  # behind a proxy with TLS
        ("127.0.0.1:8081", "http://203.0.113.5", 403),
        ("localhost:8081", "http://203.0.113.5:8081", 403),
        ("[::1]:8081", "http://[2001:db8::1]:8081", 403),
        ("127.0.0.1:8081", "null", 403),
    ],
)
def test_a_page_served_from_a_foreign_address_is_as_foreign_as_one_with_a_name(
    host: str, origin: str, status: int
) -> None:
    async def script(client: Client) -> None:
        headers = {"host": host, "origin": origin}
        assert (await client.ask("POST", "/api/explain", body=b"{}", headers=headers)).status == status

    serving(script)


@pytest.mark.parametrize(
    "sent",
    ["Bearer wrong", "Bearer", "Bearer ", "Basic hush", "hush", "Bearer hushh", "Bearer " + "x" * 5000],
)
def test_a_wrong_token_is_refused(sent: str) -> None:
    async def script(client: Client) -> None:
        for path in ("/metrics", "/api/state", "/api/explain", "/nowhere"):
            answer = await client.get(path, authorization=sent)

            assert answer.status == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert b"hush" not in answer.body

    serving(script, token="hush")


def test_the_right_token_opens_and_probes_need_none() -> None:
    async def script(client: Client) -> None:
        assert (await client.get("/api/state", authorization="bearer hush")).status == 200
        assert (await client.get("/healthz")).status == 200
        assert (await client.get("/readyz")).status == 200
        assert (await client.get("/metrics")).status == 401

    serving(script, token="hush")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "gate.example"])
def test_a_door_that_can_be_reached_from_outside_is_not_built_without_a_token(host: str) -> None:
    with pytest.raises(ValueError, match="needs a token"):
        AdminServer(views(), host, 0)

    assert AdminServer(views(), host, 0, token="hush") is not None


def test_a_taken_port_is_an_os_error_before_anything_is_served() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()

        with pytest.raises(OSError, match="in use"):
            AdminServer(views(), "127.0.0.1", holder.getsockname()[1]).bind()


def test_unknown_paths_and_wrong_methods_are_refused() -> None:
    async def script(client: Client) -> None:
        assert (await client.get("/")).status == 404
        assert (await client.get("/api/state/../../etc/passwd")).status == 404
        assert (await client.ask("POST", "/api/state")).status == 405
        assert (await client.ask("DELETE", "/metrics")).status == 405

    serving(script)


@pytest.mark.parametrize("loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_starting_and_stopping_is_silent_and_leaves_nothing(
    loop: Callable[[], asyncio.AbstractEventLoop],
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def play() -> None:
        door = AdminServer(views(), "127.0.0.1", 0)
        await door.start()
        port = door.port
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port
        )  # left open: the door must not wait for it
        assert (await Client(port).send(b"nonsense\r\n\r\n")).status == 400
        await door.stop()
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        with pytest.raises(OSError, match=r"refused|Connect"):
            await asyncio.open_connection("127.0.0.1", port)

    with caplog.at_level(logging.INFO), asyncio.Runner(loop_factory=loop) as runner:
        runner.run(play())

    assert caplog.messages == []
    assert capfd.readouterr() == ("", "")


def test_stopping_what_never_started_is_harmless() -> None:
    async def play() -> None:
        await AdminServer(views(), "127.0.0.1", 0).stop()
        bound = AdminServer(views(), "127.0.0.1", 0)
        bound.bind()
        await bound.stop()

    asyncio.run(play())


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.tuples(inner, inner) | st.tuples(inner)
    )
)
@settings(max_examples=100)
def test_plain_data_stays_json(value: object) -> None:
    json.dumps(plain(value))
