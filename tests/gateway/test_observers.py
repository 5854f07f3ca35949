"""What watches a gateway, end to end: metrics in pieces, the log, and why, of requests that came over a socket."""

import asyncio
import json
import time
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from gateway.harness import DONE, Asked, FakeEngine, Stand, chat, event, run, until
from gateway.stand import core_settings
from millgate.gateway import AdminAddress, EngineAddress, Gateway, GatewaySettings
from millgate.observe.observers import ObserverSettings
from millgate.runtime.callers import CallerSettings, TenantRule
from millgate.wiring.governor import build_governor

SECRET = "sk-live-0123456789abcdef"
PROMPT = "the-prompt-that-nobody-may-log"


async def get(port: int, path: str) -> tuple[int, bytes]:
    """Ask the admin door."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


def gateway_with(observers: ObserverSettings, engine_port: int) -> Gateway:
    engines = (EngineAddress("engine", "127.0.0.1", engine_port),)
    settings = GatewaySettings(engines, port=0, admin=AdminAddress(port=0), observers=observers)
    return Gateway(build_governor(core_settings(), time.monotonic()), settings)


async def watched(observers: ObserverSettings) -> Stand:
    engine = FakeEngine()
    await engine.start()
    stand = Stand(gateway_with(observers, engine.port), engine)
    await stand.gateway.start()
    return stand


def test_a_request_is_counted_logged_and_explained_without_its_secrets(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def test() -> None:
        stand = await watched(ObserverSettings(str(log)))
        assert stand.gateway.admin is not None
        port = stand.gateway.admin.port
        streamed = chat(PROMPT, stream=True)
        await stand.ask(streamed, authorization=f"Bearer {SECRET}", x_request_id="seen-by-the-client")
        answer = await stand.ask(chat(PROMPT))
        await stand.settle()

        told = [
            json.loads((await get(port, f"/api/why?id={each}"))[1])
            for each in ("seen-by-the-client", answer.headers["x-request-id"])
        ]
        _, page = await get(port, "/metrics")
        await stand.close()

        assert [each["attempts"][0]["attempt"] for each in told] == [1, 2]
        assert [step["kind"] for step in told[0]["attempts"][0]["steps"]] == ["arrived", "admit", "ended"]
        lines: list[dict[str, Any]] = [json.loads(line) for line in log.read_text().splitlines()]
        assert [line["id"] for line in lines] == ["seen-by-the-client", answer.headers["x-request-id"]]
        assert b'millgate_ttft_seconds_count{lane="interactive"} 1.0' in page
        assert b'millgate_tenant_attempts_total{tenant="-"} 2.0' in page
        for private in (SECRET, PROMPT):
            assert private not in log.read_text() + json.dumps(told) + page.decode()

    run(test())


def test_a_tenant_that_a_reload_brings_is_in_the_metrics_and_the_log_by_its_name(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def test() -> None:
        stand = await watched(ObserverSettings(str(log)))
        gateway = stand.gateway
        callers = CallerSettings((TenantRule("globex", (sha256(SECRET.encode()).digest(),)),))
        core = core_settings()
        first = replace(core.lanes[0], name="renamed")
        await gateway.adopt(replace(gateway.settings, callers=callers), replace(core, lanes=(first,)))
        assert gateway.admin is not None
        port = gateway.admin.port
        _, before = await get(port, "/metrics")
        assert (await stand.ask(chat(PROMPT), authorization=f"Bearer {SECRET}")).status == 200
        await stand.settle()
        await stand.close()

        assert b'millgate_tenant_attempts_total{tenant="globex"} 0.0' in before
        (line,) = [json.loads(line) for line in log.read_text().splitlines()]
        assert (line["tenant"], line["lane"]) == ("globex", "renamed")

    run(test())


def test_a_log_that_cannot_be_opened_is_an_error_before_anything_serves() -> None:
    async def test() -> None:
        with pytest.raises(FileNotFoundError):
            gateway_with(ObserverSettings("/nowhere/at/all"), 1)

    run(test())


def test_a_rotated_log_is_opened_anew(tmp_path: Path) -> None:
    async def test() -> None:
        stand = await watched(ObserverSettings(str(tmp_path / "log")))
        (tmp_path / "log").rename(tmp_path / "log.1")
        stand.gateway.observers.reopen()
        await until((tmp_path / "log").exists)
        await stand.ask(chat())
        await stand.settle()
        await stand.close()

        assert len((tmp_path / "log").read_text().splitlines()) == 1

    run(test())


async def answer_from_a_cache(asked: Asked) -> None:
    """Answer as vLLM does with `--enable-prompt-tokens-details`."""
    usage = {"prompt_tokens": 1000, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 800}}
    if b'"stream": true' not in asked.body:
        asked.reply(json.dumps({"id": "c", "choices": [], "usage": usage}).encode())
        return
    asked.open_stream()
    asked.send(event("hel"), event(finish="stop"))
    asked.send(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n", DONE)
    asked.end_stream()


def test_what_an_engine_found_in_its_cache_is_shown_everywhere(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def test() -> None:
        stand = await watched(ObserverSettings(str(log)))
        stand.engine.script = answer_from_a_cache
        assert stand.gateway.admin is not None
        port = stand.gateway.admin.port
        await stand.ask(chat(PROMPT))
        await stand.ask(chat(PROMPT, stream=True))
        await stand.settle()

        state = json.loads((await get(port, "/api/state"))[1])
        _, page = await get(port, "/metrics")
        why = json.loads((await get(port, "/api/why?id=2"))[1])["attempts"][0]["steps"][-1]["words"]
        await stand.close()

        assert state["engines"][0]["lately"]["prefix_hit_share"] == 0.8
        (model,) = state["models"]
        assert (model["prompt_tokens"], model["cached_tokens"]) == (2000, 1600)
        assert state["served"][0]["judged"] == 2
        assert state["lanes"][0]["lately"]["window_s"] is None
        assert state["lanes"][0]["lately"]["tpot_mean_s"] > 0.0
        assert b'millgate_engine_cached_prompt_tokens_total{engine="engine"} 1600.0' in page
        assert b'millgate_engine_prefix_hit_ratio{engine="engine"} 0.8' in page
        assert "1,000 tokens read (800 of them from its cache)" in why
        assert [json.loads(line)["cached_tokens"] for line in log.read_text().splitlines()] == [800, 800]

    run(test())
