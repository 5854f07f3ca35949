"""Unmodified load tools before a real engine: how each is started, and what its own report says.

What is started is told by the environment, as for the engines; a tool that is not told of is not run:

    MILLGATE_TEST_VLLM_BENCH   a command that benchmarks, as `.../bin/vllm bench serve`
    MILLGATE_TEST_GUIDELLM     `.../bin/guidellm run`
    MILLGATE_TEST_AIPERF       `.../bin/aiperf profile`
    MILLGATE_TEST_TOKENIZER    the folder with the tokenizer of the engine's model
"""

import json
import os
import shlex
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

PROMPT_TOKENS, ANSWER_TOKENS = 32, 8
_WITHIN_S = 600.0


class Asked(NamedTuple):
    """One run: so many requests to this address, so many at once."""

    url: str
    model: str
    tokenizer: str
    requests: int
    at_once: int
    folder: Path


class Told(NamedTuple):
    """What the tool says of its run: answers, failures, and the answers' tokens a second."""

    answered: int
    failed: int
    tokens_per_s: float


class Tool(NamedTuple):
    """One tool: the variable with its command, the rest of its command line, and the reader of its report.

    `environ` is added to the environment: aiperf does not find a tokenizer's folder while the hub is declared offline.
    """

    name: str
    variable: str
    flags: Callable[[Asked], list[str]]
    report: str
    read: Callable[[Any], Told]
    environ: Mapping[str, str]


def run(tool: Tool, asked: Asked) -> Told:
    """Run it to its end, which is exit code 0, and return what it reports."""
    command = [*shlex.split(os.environ[tool.variable]), *tool.flags(asked)]
    done = subprocess.run(
        command,
        env={**os.environ, **tool.environ},
        cwd=asked.folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, (
        f"{tool.name} ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]!r}"
    )
    return tool.read(json.loads((asked.folder / tool.report).read_text(encoding="utf-8")))


def _vllm_bench(asked: Asked) -> list[str]:
    return shlex.split(
        f"--backend openai-chat --base-url {asked.url} --endpoint /v1/chat/completions --model {asked.model} "
        f"--tokenizer {asked.tokenizer} --dataset-name random --random-input-len {PROMPT_TOKENS} "
        f"--random-output-len {ANSWER_TOKENS} --num-prompts {asked.requests} --max-concurrency {asked.at_once} "
        f"--ignore-eos --save-result --result-filename report.json"
    )


def _told_by_vllm_bench(report: Any) -> Told:
    return Told(report["completed"], report["failed"], report["output_throughput"])


def _guidellm(asked: Asked) -> list[str]:
    return shlex.split(
        f"--backend kind=openai_http,target={asked.url},model={asked.model} "
        f"--profile kind=concurrent,streams={asked.at_once} --constraint kind=max_requests,count={asked.requests} "
        f"--tokenizer kind=hf_auto,model={asked.tokenizer} "
        f"--data kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={ANSWER_TOKENS} "
        f"--output kind=json,path=report.json --disable-console"
    )


def _told_by_guidellm(report: Any) -> Told:
    metrics = report["benchmarks"][0]["metrics"]
    totals = metrics["request_totals"]
    tokens = metrics["output_tokens_per_second"]["successful"]["mean"]
    return Told(totals["successful"], totals["errored"] + totals["incomplete"], tokens)


def _aiperf(asked: Asked) -> list[str]:
    return shlex.split(
        f"-m {asked.model} --url {asked.url} --endpoint-type chat --streaming --tokenizer {asked.tokenizer} "
        f"--concurrency {asked.at_once} --request-count {asked.requests} "
        f"--prompt-input-tokens-mean {PROMPT_TOKENS} --prompt-output-tokens-mean {ANSWER_TOKENS} "
        f"--extra-inputs ignore_eos:true --use-legacy-max-tokens --use-server-token-count "
        f"--output-artifact-dir . --ui-type none --no-gpu-telemetry"
    )


def _told_by_aiperf(report: Any) -> Told:
    failed = report.get("error_request_count") or {"avg": 0.0}
    return Told(
        round(report["request_count"]["avg"]), round(failed["avg"]), report["output_token_throughput"]["avg"]
    )


_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
_ONLINE = {"HF_HUB_OFFLINE": "", "TRANSFORMERS_OFFLINE": ""}
TOOLS = [
    Tool("vllm bench", "MILLGATE_TEST_VLLM_BENCH", _vllm_bench, "report.json", _told_by_vllm_bench, _OFFLINE),
    Tool("guidellm", "MILLGATE_TEST_GUIDELLM", _guidellm, "report.json", _told_by_guidellm, _OFFLINE),
    Tool("aiperf", "MILLGATE_TEST_AIPERF", _aiperf, "profile_export_aiperf.json", _told_by_aiperf, _ONLINE),
]
