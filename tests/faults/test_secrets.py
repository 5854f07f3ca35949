"""Row 28: nothing that the process prints, serves to operators or answers to errors holds a secret or a prompt.

One scripted session plants a different secret in every place that can hold one, provokes every kind of answer and
log line, and then everything that came out is searched for all of them.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme
from lab.upstream import FakeUpstream, ScriptedConnection, answers

from egress_proxy import EgressProxy
from faults.process import GateProcess, until
from faults.starter import Starter
from faults.talk import Answer, chat, request

KEY = "mgk_PLANTED-client-key-0123456789"
STALE_KEY = "mgk_PLANTED-stale-key-0123456789"
ENGINE_KEY = "sk-PLANTED-engine-key"
PROXY_LOGIN = "PLANTED-user:PLANTED-password"
ADMIN_TOKEN = "PLANTED-admin-token"
PROMPT = "PLANTED prompt of somebody"
TOOL = "PLANTED_tool_name"
PASTED = "mgk_PLANTED-pasted-into-the-file"
QUERY = "PLANTED-query-key"
HASH = sha256(KEY.encode()).hexdigest()

PLANTED = "PLANTED"
"""Stands in every secret, so that a part of one is found too."""

CONFIG = f"""engines:
  - url: URL
    name: engine
    api_key_env: ENGINE_KEY
    proxy_env: EGRESS_PROXY
lanes: [{{name: interactive, ttft_slo: 1h}}]
tenants:
  - name: alice
    keys: [{HASH}]
"""

PAGES = ("/metrics", "/api/state", "/readyz", "/healthz", "/api/explain?prompt_bytes=9", "/api/nothing")


async def crash(line: ScriptedConnection) -> None:
    """Answer with what engines do at their worst: the request in the error."""
    await line.send(answers.whole(b"<html>" + line.request.body, 200, "text/html"))


async def break_off(line: ScriptedConnection) -> None:
    await line.send(answers.head(200, answers.EVENT_STREAM) + answers.chunks(answers.event("a")))
    line.reset()


@pytest.fixture
def proxy(upstream: FakeUpstream) -> Iterator[EgressProxy]:
    with EgressProxy({urlsplit(upstream.url).netloc: upstream.port}, PROXY_LOGIN) as proxy:
        yield proxy


def environ_of(proxy: EgressProxy) -> dict[str, str]:
    way = f"http://{PROXY_LOGIN}@127.0.0.1:{proxy.port}"
    return {"ENGINE_KEY": ENGINE_KEY, "MILLGATE_ADMIN_TOKEN": ADMIN_TOKEN, "EGRESS_PROXY": way}


@pytest.fixture
def gate(start: Starter, upstream: FakeUpstream, proxy: EgressProxy) -> GateProcess:
    return start(config=CONFIG.replace("URL", upstream.url), environ=environ_of(proxy))


def test_row_28_a_whole_session_prints_and_shows_no_secret_and_no_prompt(
    gate: GateProcess, upstream: FakeUpstream, proxy: EgressProxy, tmp_path: Path
) -> None:
    seen: list[str] = []
    good = (f"Authorization: Bearer {KEY}",)

    def ask(body: bytes, *lines: str, path: str = "/v1/chat/completions") -> Answer:
        talk = gate.connect()
        talk.try_send(request(body, *lines, path=path))
        answer = talk.answer()
        seen.append(f"{answer.status} {answer.headers} {answer.body!r}")
        talk.close()
        return answer

    tools = [{"type": "function", "function": {"name": TOOL}}]
    assert ask(chat(PROMPT, tools=tools), *good, path=f"/v1/chat/completions?key={QUERY}").status == 200
    for lines in (
        (f"Authorization: Bearer {STALE_KEY}",),
        (f"x-api-key: {STALE_KEY}", *good),
        (f"Authorization: Basic {STALE_KEY}",),
    ):
        assert ask(chat(PROMPT), *lines).status == 401
    for body in (
        chat(PROMPT)[:-5],
        chat(PROMPT, max_tokens=PROMPT),
        b'{"model": "m", "messages": "%b"}' % PROMPT.encode(),
        b'{"model": "m", "model": "n", "messages": [{"role": "user", "content": "%b"}]}' % PROMPT.encode(),
        chat(PROMPT).replace(PROMPT.encode(), PROMPT.encode() + b"\xff"),
        chat(PROMPT, n=10**9),
    ):
        assert ask(body, *good).status == 400
    assert ask(chat(PROMPT), *good, path=f"/v1/{PLANTED}").status == 404
    for script in (crash, break_off):
        upstream.script = script
        ask(chat(PROMPT, stream=script is break_off), *good)
    proxy.login = "another"
    proxy.on_loop(proxy.cut)
    until(lambda: "it answers 407: its user or password is missing or wrong" in gate.errors())
    gate.ended()
    reload_wrongly(gate, upstream, tmp_path)
    printed = [gate.errors(), *seen, *admin_pages(gate), *commands(gate, environ_of(proxy), tmp_path)]
    gate.process.send_signal(signal.SIGTERM)
    gate.process.wait()
    printed.append(gate.errors())
    assert sum(map(len, printed)) > 5000
    found = [text for text in printed if PLANTED in text or HASH in text]
    assert found == []


def reload_wrongly(gate: GateProcess, upstream: FakeUpstream, directory: Path) -> None:
    """Ask for reloads of files that hold secrets where none belong."""
    file = gate._errors.with_suffix(".yaml")
    good = file.read_text(encoding="utf-8")
    key = trustme.CA().issue_cert("x").private_key_pem.bytes().decode()
    garbage = directory / "garbage.pem"
    garbage.write_text(key.replace("BEGIN", f"BEGIN {PLANTED}"), encoding="utf-8")
    wrong = (
        good.replace(HASH, PASTED),
        good.replace("    api_key_env: ENGINE_KEY", f"    api_key: {PASTED}"),
        good.replace("proxy_env: EGRESS_PROXY", f"proxy: http://user:{PASTED}@127.0.0.1:1"),
        good.replace(upstream.url, f"http://user:{PASTED}@127.0.0.1:1"),
        good + f"admin: {{token: {PASTED}}}\n",
        good + f"listen: {{tls: {{cert: {garbage}, key: {garbage}}}}}\n",
    )
    for count, text in enumerate(wrong, 1):
        file.write_text(text, encoding="utf-8")
        gate.process.send_signal(signal.SIGHUP)
        until(lambda: gate.errors().count("the old one stays in force") == count)  # noqa: B023 - called at once
    file.write_text(good, encoding="utf-8")


def admin_pages(gate: GateProcess) -> list[str]:
    """Read every page of the admin door, with the token and without."""
    pages = [gate.ask(path)[1].decode() for path in PAGES]
    gate.admin_headers = {"authorization": "Bearer PLANTED-wrong-token"}
    pages += [gate.ask(path)[1].decode() for path in PAGES]
    gate.admin_headers = {}
    return pages


def commands(gate: GateProcess, environ: dict[str, str], directory: Path) -> list[str]:
    """Run what operators run on the same files."""
    body = directory / "request.json"
    body.write_bytes(chat(PROMPT))
    config = str(gate._errors.with_suffix(".yaml"))
    admin = f"http://{urlsplit(gate.ready['admin_url']).netloc}"
    told = []
    for arguments in (
        ["check", config],
        ["config", "show", "--config", config],
        ["explain", str(body), "--config", config, "--admin", admin],
        ["explain", str(body), "--config", config, "--admin", admin, "--json"],
        ["check", config, "--set", f"engines.0.api_key={PASTED}"],
    ):
        run = subprocess.run(
            [sys.executable, "-m", "millgate", *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **environ},
        )
        assert run.returncode == (2 if arguments[-1].startswith("engines") else 0), run.stderr
        told.append(run.stdout + run.stderr)
    assert [key["sha256"] for key in json.loads(told[1])["tenants"][0]["keys"]] == [f"{HASH[:8]}..."]
    return told
