"""`python -m bench.embeddings`: texts a second of callers with one text each, with shared calls and without, in turn.

Before the embedded engine, or before the server at `--engine URL`. What a shared call saves is what the engine spends on a call beside
its texts; a server that spends little on it gains little, and the gate's own work for each caller stays.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from bench.load import BenchError
from bench.processes import Process, Stage, choose_cores, free_port

_CONFIG = """
lanes: [{{name: interactive, ttft_slo: 60s{coalesce}}}]
engines: [{{url: "{engine}", max_inflight: 256}}]
"""


class _Callers:
    """Closed-loop callers over kept connections until a moment; `texts` counts answers."""

    def __init__(self, port: int, model: str) -> None:
        self._port = port
        self._model = model
        self.texts = 0

    async def run(self, callers: int, seconds: float) -> float:
        """Return texts a second."""
        by = time.monotonic() + seconds
        await asyncio.gather(*[self._call(number, by) for number in range(callers)])
        return self.texts / seconds

    async def _call(self, number: int, by: float) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        while time.monotonic() < by:
            text = f"caller {number} asks for the vector of sentence {self.texts} in this round"
            body = json.dumps({"model": self._model, "input": text}).encode()
            head = f"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(answer.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            if not answer.startswith(b"http/1.1 200"):
                raise BenchError(f"an embedding was answered {answer[:12].decode()}")
            self.texts += 1
        writer.close()


class _Stage(Stage):
    """Starts two gates before one engine."""

    def embedded(self) -> str:
        """Start the embedded engine beside the load; return its address."""
        port = free_port()
        self._start(
            "engine",
            [sys.executable, "-m", "millgate", "engine", "--port", str(port)],
            port,
            self._cores.others,
        )
        return f"http://127.0.0.1:{port}"

    def gate(self, engine: str, name: str, coalesce: str) -> Process:
        """Start a gate whose lane has this setting."""
        config, port = self._folder / f"{name}.yaml", free_port()
        config.write_text(_CONFIG.format(engine=engine, coalesce=coalesce))
        command = [sys.executable, "-m", "millgate", "serve", "--config", str(config)]
        command += ["--port", str(port), "--admin-port", str(free_port())]
        return self._start(name, command, port, self._cores.proxy)


async def _measure(stage: _Stage, asked: argparse.Namespace) -> list[tuple[float, float]]:
    engine = asked.engine or stage.embedded()
    alone = stage.gate(engine, "alone", "")
    shared = stage.gate(engine, "shared", ", coalesce: {}")
    found = []
    for number in range(asked.rounds + 1):
        pair = [
            await _Callers(gate.port, asked.model).run(asked.callers, asked.seconds)
            for gate in (alone, shared)
        ]
        if number:
            found.append((pair[0], pair[1]))
    return found


def _main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.embeddings", description=__doc__)
    parser.add_argument("--engine", help="base address of a server that embeds (the embedded engine)")
    parser.add_argument("--model", default="tiny", help="the model to ask for (tiny)")
    parser.add_argument("--callers", type=int, default=8, help="callers at once (8)")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds of a round (3)")
    parser.add_argument(
        "--rounds", type=int, default=5, help="pairs of rounds after a first one that does not count (5)"
    )
    asked = parser.parse_args()
    cores = choose_cores()
    os.sched_setaffinity(0, {cores.others})
    with tempfile.TemporaryDirectory(prefix="millgate-bench-") as name:
        stage = _Stage(Path(name), cores)
        try:
            found = uvloop.run(_measure(stage, asked))
        finally:
            stage.close()
    alone, shared = zip(*found, strict=True)
    ratios = [own / other for other, own in found]
    print(
        f"texts a second, {asked.callers} callers: {statistics.median(alone):.0f} alone, {statistics.median(shared):.0f} shared"
    )
    print(f"shared over alone: {statistics.median(ratios):.2f}, pairs {min(ratios):.2f}..{max(ratios):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(_main())
