"""`python -m lab real`: what a real engine does under load, with and without the gate, and its record for the simulator.

    python -m lab real steps URL --model M                          tokens a second by streams at once
    python -m lab real overload NAME=URL NAME=URL --model M ...     the same users before each address in turn
    python -m lab real record URL --model M --folder DIR ...        a run for `millgate sim validate --measured DIR`
    python -m lab real kernels MODEL_DIR --folder DIR ...           its kernels' times; needs torch and a GPU

The engine is any that speaks the OpenAI dialect; tests/engines/tiny_model.py writes a model with random weights for it.
"""

import argparse
import asyncio
from pathlib import Path
from typing import Any

from lab.knobs import ABOVE_0, at_least, within
from lab.real_engine.runs import record
from lab.real_engine.tables import by_streams, of_arms
from lab.real_engine.users import Asked, Crowd, Heard, arrivals

_EVER_S = 600.0
_STEP_PROMPT, _STEP_OUTPUT = 300, 100
_BETWEEN_S = 3.0
"""Until an engine that keeps computing for who has left is done with most of it."""


def _more(asked: argparse.Namespace) -> dict[str, Any]:
    """Ask for the counts of tokens, where the engine does not send them by itself."""
    return {"model": asked.model} | ({} if asked.plain else {"stream_options": {"include_usage": True}})


async def _steps(asked: argparse.Namespace) -> str:
    crowd, rows = Crowd(asked.url, _more(asked), _EVER_S), []
    for streams in asked.streams:
        waves = [Asked(0.0, _STEP_PROMPT, _STEP_OUTPUT)] * streams
        await crowd.come(waves[: max(1, streams // 4)])
        rows.append((streams, await crowd.come(waves)))
    return by_streams(rows)


async def _overload(asked: argparse.Namespace) -> str:
    arms: list[tuple[str, list[Heard]]] = []
    for number, (name, url) in enumerate(asked.addresses):
        crowd = Crowd(url, _more(asked), asked.patience, number)
        arms.append((name, await crowd.come(arrivals(asked.seed, asked.rate, asked.seconds))))
        await asyncio.sleep(_BETWEEN_S)
    return of_arms(arms, asked.seconds, asked.ttft, asked.tpot)


async def _record(asked: argparse.Namespace) -> str:
    heard = await Crowd(asked.url, _more(asked), _EVER_S).come(
        arrivals(asked.seed, asked.rate, asked.seconds)
    )
    return record(asked.folder, heard, asked)


def main(arguments: list[str]) -> int:
    """Carry out one of the four."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    if asked.what in {"overload", "record"} and not arrivals(asked.seed, asked.rate, asked.seconds):
        parser.error(f"--rate: no user comes within {asked.seconds:g} s at {asked.rate:g} a second")
    if asked.what == "kernels":
        from lab.real_engine.kernels import time_kernels

        print(time_kernels(asked.model_dir, asked.folder, asked.cache_tokens))
        return 0
    print(asyncio.run({"steps": _steps, "overload": _overload, "record": _record}[asked.what](asked)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lab real", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parser.add_subparsers(dest="what", required=True)
    steps, overload = kinds.add_parser("steps"), kinds.add_parser("overload")
    recorded, kernels = kinds.add_parser("record"), kinds.add_parser("kernels")
    for each in (steps, recorded):
        each.add_argument("url")
    positive, count = within(float, ABOVE_0), within(int, at_least(1))
    steps.add_argument("--streams", type=count, nargs="+", default=[1, 4, 16, 64], help="how many at once")
    overload.add_argument("addresses", nargs="+", type=_address, metavar="NAME=URL")
    for each in (steps, overload, recorded):
        each.add_argument("--model", required=True, help="the model's name")
        each.add_argument(
            "--plain",
            action="store_true",
            help="no stream_options in the body: transformers serve refuses them",
        )
    for each in (overload, recorded):
        each.add_argument("--rate", type=positive, required=True, help="arrivals a second")
        each.add_argument("--seconds", type=positive, default=60.0, help="how long they arrive (60)")
        each.add_argument("--seed", type=int, default=1, help="what lengths and moments are thrown with (1)")
    overload.add_argument(
        "--ttft", type=positive, default=5.0, help="good: first token within, in seconds (5)"
    )
    overload.add_argument(
        "--tpot", type=positive, default=0.2, help="good: between two tokens, in seconds (0.2)"
    )
    overload.add_argument("--patience", type=positive, default=10.0, help="seconds until a user leaves (10)")
    recorded.add_argument("--streams", type=count, required=True, help="the most that it runs at once")
    recorded.add_argument(
        "--step-tokens", type=count, required=True, help="the most tokens of one of its steps"
    )
    recorded.add_argument("--blocks", type=count, required=True, help="blocks of its KV memory")
    recorded.add_argument("--block-tokens", type=count, default=32, help="tokens of a block (32)")
    recorded.add_argument(
        "--like", default="llama-3.2-3b", help="the architecture that it has (llama-3.2-3b)"
    )
    kernels.add_argument("model_dir", type=Path, help="the folder with its config.json")
    kernels.add_argument("--cache-tokens", type=count, default=65_536, help="KV memory to read from (65536)")
    for each in (recorded, kernels):
        each.add_argument("--folder", type=Path, required=True, help="where the run's files go")
    return parser


def _address(text: str) -> tuple[str, str]:
    """Return the two halves of NAME=URL."""
    name, sign, url = text.partition("=")
    if not sign or not url.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"must be NAME=URL, with http:// or https://, got {text!r}")
    return name, url
