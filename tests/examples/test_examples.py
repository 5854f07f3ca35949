"""The examples run as they stand and print what stands beside them; their types hold for users of two checkers."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.upstream import FakeUpstream, answers
from lab.upstream.fake_upstream import ScriptedConnection

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"

ALONE = ["in_process_gate", "model_server"]
AT_A_GATEWAY = ["openai_with_manners", "line_client", "openai_tools", "anthropic_tools", "langchain_tools"]


def run(name: str, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environ},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def expected(name: str) -> str:
    return (EXAMPLES / f"{name}.out").read_text()


@pytest.fixture(scope="module")
def gateway() -> Iterator[dict[str, str]]:
    """`millgate run` with a line door, as an operator would start it."""
    command = [sys.executable, "-m", "millgate", "run", "--json", "--port", "0", "--admin-port", "0"]
    with subprocess.Popen(
        [*command, "--set", "line.port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            yield {"MILLGATE_URL": told["url"], "MILLGATE_LINE": told["line_address"]}
        finally:
            process.terminate()
            process.wait(20)


@pytest.mark.parametrize("name", ALONE)
def test_an_example_prints_what_it_promises(name: str) -> None:
    assert run(name) == expected(name)


@pytest.mark.parametrize("name", AT_A_GATEWAY)
def test_an_example_at_a_gateway_prints_what_it_promises(name: str, gateway: dict[str, str]) -> None:
    if name == "langchain_tools":
        pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    assert run(name, **gateway) == expected(name)


def test_the_anthropic_example_runs() -> None:
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "any",
        "content": [{"type": "text", "text": "hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 5, "output_tokens": 2},
    }

    async def script(line: ScriptedConnection) -> None:
        await line.send(answers.whole(json.dumps(message).encode()))

    with FakeUpstream(script) as engine:
        assert run("anthropic_with_manners", MILLGATE_URL=engine.url) == "stopped for end_turn\n"


def test_every_example_is_run() -> None:
    known = {*ALONE, *AT_A_GATEWAY, "anthropic_with_manners", "typed_use"}
    assert {file.stem for file in EXAMPLES.glob("*.py")} == known


def test_the_public_types_hold_under_mypy_strict() -> None:
    pytest.importorskip("mypy")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "examples"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_the_public_types_hold_under_pyright() -> None:
    pytest.importorskip("pyright")
    began = time.monotonic()
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "examples/typed_use.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if "error" in done.stderr.lower() and not done.stdout:
        pytest.skip(
            f"pyright cannot run here ({time.monotonic() - began:.0f} s): {done.stderr.splitlines()[-1]}"
        )
    assert done.returncode == 0, done.stdout
