"""`python -m lab.handoffs`: requests over two engines while everything goes wrong; ends with 1 where a promise was broken.

One embedded engine reads prompts and two answer, each a process of its own, by vLLM's protocol or by SGLang's (`--transfer sglang`). Chance kills engines and starts
them again, stops one for longer than the lease, lets engines refuse, and lets clients leave at any time. Three promises are looked at. No answer looks whole that is not. Once everything has ended and the lease is over,
every meter of the gate is zero. And no engine keeps a prompt for longer than its lease.
"""

import argparse
import asyncio
import contextlib
import json
import re
import signal
import sys
import time
from collections import Counter
from random import Random
from typing import Final

import uvloop

from lab.knobs import at_least, within
from millgate.core.settings import EngineSettings, LaneSettings, Settings
from millgate.core.words import KvTransfer, Role
from millgate.engine.profile import DEFAULT_PROFILE, find_profile, scaled
from millgate.gateway import AdminAddress, EngineAddress, Gateway, GatewaySettings
from millgate.servers.http import DoorSettings
from millgate.wiring.governor import build_governor

LEASE_S: Final = 2.0
SCALES: Final = {"reads": 10.0, "writes": 2.0, "also-writes": 2.0}
"""How fast each engine is: those that answer read so slowly that most prompts are read by the other."""
AT_ONCE: Final = 24
ROUND: Final = 250
"""So many requests, and then everything has to be at rest."""
_LEAVES: Final = 0.15
_WORD: Final = b" tok"
_NOT_NOW: Final = (b"HTTP/1.1 503", b"HTTP/1.1 429")
_HINT: Final = re.compile(rb"retry-after: (\d+)")
_TRIES: Final = 20
_ROLES: Final = {"reads": Role.PREFILL, "writes": Role.DECODE, "also-writes": Role.DECODE}


class EngineProcess:
    """One embedded engine, which can be killed, stopped and started again at its port."""

    def __init__(self, name: str, transfer: KvTransfer, *options: str) -> None:
        self.name, self._transfer = name, transfer.value
        if transfer is KvTransfer.SGLANG:
            self._transfer += f"-{_ROLES[name]}"
        self.port = 0
        self._options = options
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it, at the port that it had before."""
        arguments = [
            "engine",
            "--port",
            str(self.port),
            "--time-scale",
            f"{SCALES[self.name]:g}",
            *self._options,
        ]
        transfer = ["--kv-transfer", self._transfer, "--kv-lease", f"{LEASE_S:g}"]
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "millgate", *arguments, *transfer, stderr=asyncio.subprocess.PIPE
        )
        assert self._process.stderr is not None
        ready = json.loads(await self._process.stderr.readline())
        self.port = int(ready["port"])

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def kill(self) -> None:
        """Kill it."""
        assert self._process is not None
        self.send(signal.SIGKILL)
        await self._process.wait()


class Stage:
    """The gate, its engines, and what became of every request."""

    def __init__(self, seed: int, transfer: KvTransfer) -> None:
        self.dice, self.transfer = Random(seed), transfer
        self.engines = {
            "reads": EngineProcess("reads", transfer, "--fail-rate", "0.03"),
            "writes": EngineProcess("writes", transfer, "--fail-rate", "0.03"),
            "also-writes": EngineProcess("also-writes", transfer, "--error-in-stream", "0.03"),
        }
        self.ends: Counter[str] = Counter()
        self.broken: list[str] = []
        self.is_quiet = False
        self.gateway: Gateway | None = None

    async def open(self) -> None:
        """Start the engines and the gate before them."""
        for engine in self.engines.values():
            await engine.start()
        profile = find_profile(DEFAULT_PROFILE)
        engines = tuple(
            EngineSettings(
                name,
                64,
                400_000,
                prior=scaled(profile, SCALES[name]).prior(),
                role=role,
                kv_lease_s=LEASE_S,
                kv_transfer=self.transfer,
            )
            for name, role in _ROLES.items()
        )
        lane = LaneSettings("interactive", ttft_slo_s=10.0)
        addresses = tuple(
            EngineAddress(
                name,
                "127.0.0.1",
                engine.port,
                kv_lease_s=LEASE_S,
                # Embedded engines meet at their HTTP port.
                bootstrap_port=engine.port if self._meets_at(name) else None,
            )
            for name, engine in self.engines.items()
        )
        settings = GatewaySettings(
            addresses, port=0, admin=AdminAddress(port=0), door=DoorSettings(hands_over=True)
        )
        self.gateway = Gateway(build_governor(Settings((lane,), engines), time.monotonic()), settings)
        await self.gateway.start()

    def _meets_at(self, name: str) -> bool:
        return self.transfer is KvTransfer.SGLANG and _ROLES[name] is Role.PREFILL

    async def close(self) -> None:
        """Stop everything."""
        if self.gateway is not None:
            await self.gateway.stop()
        for engine in self.engines.values():
            engine.send(signal.SIGCONT)
            await engine.kill()

    # ---- clients

    async def ask(self) -> None:
        """Ask for one answer, stay or leave, and judge what came."""
        dice = self.dice
        tokens, stream = dice.randint(2, 200), dice.random() < 0.6
        # Every prompt is another: no engine has it in its cache.
        text = f"{dice.random()} " + "word " * dice.choice((800, 4_000, 8_000, 16_000))
        body = json.dumps(
            {
                "model": "m",
                "messages": [{"role": "user", "content": text}],
                "max_tokens": tokens,
                "stream": stream,
            }
        ).encode()
        patience_s = dice.uniform(0.0, 0.5) if dice.random() < _LEAVES else None
        for _ in range(_TRIES):
            try:
                async with asyncio.timeout(patience_s):
                    said = await self._exchange(body)
            except TimeoutError:
                self.ends["the client left"] += 1
                return
            if not said.startswith(_NOT_NOW):
                break
            self.ends["(told to come back)"] += 1
            hint = _HINT.search(said.partition(b"\r\n\r\n")[0])
            await asyncio.sleep(float(hint[1]) if hint is not None else 1.0)
        self._judge(said, tokens, stream=stream)

    async def _exchange(self, body: bytes) -> bytes:
        assert self.gateway is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", self.gateway.port)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: gate\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        try:
            writer.write(head.encode() + body)
            with contextlib.suppress(ConnectionError):
                return await reader.read(-1)
            return b""
        finally:
            writer.transport.abort()

    def _judge(self, said: bytes, tokens: int, *, stream: bool) -> None:
        head, _, rest = said.partition(b"\r\n\r\n")
        status = head[9:12].decode() or "cut"
        if status != "200":
            self.ends[f"status {status}"] += 1
            return
        is_error = b'"error"' in rest
        looks_whole = rest.endswith(b"0\r\n\r\n") and b"data: [DONE]" in rest and not is_error
        if not stream:
            length = next(
                (line for line in head.split(b"\r\n") if line.startswith(b"content-length")), b":-1"
            )
            looks_whole = len(rest) == int(length.partition(b":")[2]) and not is_error
        if not looks_whole:
            self.ends["an error in the answer" if is_error else "cut off"] += 1
        elif rest.count(_WORD) != tokens:
            self.broken.append(f"an answer of {rest.count(_WORD)} tokens for {tokens} looks whole")
        else:
            self.ends["answered"] += 1

    # ---- what goes wrong

    async def trouble(self) -> None:
        """Let something happen to an engine, again and again until nothing is under way."""
        dice = self.dice
        while not self.is_quiet:
            await asyncio.sleep(dice.uniform(1.0, 4.0))
            if dice.random() < 0.3:
                killed = self.engines[dice.choice(("reads", "reads", "writes"))]
                await killed.kill()
                await asyncio.sleep(dice.uniform(0.0, 1.0))
                await killed.start()
                self.ends[f"({killed.name} killed)"] += 1
            else:
                engine = self.engines[dice.choice(("writes", "also-writes", "reads"))]
                engine.send(signal.SIGSTOP)
                await asyncio.sleep(dice.uniform(0.1, 1.5 * LEASE_S))
                engine.send(signal.SIGCONT)
                self.ends[f"({engine.name} stopped)"] += 1

    # ---- what must hold

    async def rest(self) -> None:
        """Let the lease end, and look whether anything is still taken, at the gate or at an engine."""
        await asyncio.sleep(LEASE_S + 1.0)
        assert self.gateway is not None
        for engine in self.gateway.driver.snapshot().engines:
            meters = engine.running, engine.kv_tokens, engine.prefill_tokens
            if meters != (0, 0, 0):
                self.broken.append(f"{engine.name} has {meters} taken with nothing under way")
        for name, process in self.engines.items():
            kept = await _kept(process.port)
            if kept:
                self.broken.append(f"{name} keeps {kept} prompts beyond the lease")


async def _kept(port: int) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /stats HTTP/1.1\r\nhost: engine\r\nconnection: close\r\n\r\n")
    said = await reader.read(-1)
    writer.close()
    return int(json.loads(said.partition(b"\r\n\r\n")[2])["kv_kept"])


async def _round(stage: Stage, requests: int) -> None:
    """Let so many clients ask, `AT_ONCE` of them at any time, while engines have their troubles; then look at everything at rest."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one() -> None:
        async with places:
            await stage.ask()

    stage.is_quiet = False
    troubles = asyncio.ensure_future(stage.trouble())
    await asyncio.gather(*[one() for _ in range(requests)])
    stage.is_quiet = True
    await troubles
    await stage.rest()


async def chaos(requests: int, seed: int, transfer: KvTransfer) -> tuple[list[str], list[str]]:
    """Return what became of so many requests, line by line, and which promises were broken."""
    stage = Stage(seed, transfer)
    try:
        await stage.open()
        assert stage.gateway is not None
        for first in range(0, requests, ROUND):
            await _round(stage, min(ROUND, requests - first))
        legs = stage.gateway.driver.snapshot().legs
    finally:
        await stage.close()
    lines = [f"{count:6}  {end}" for end, count in stage.ends.most_common()]
    lines.append(
        f"{legs.begun} of two legs: {legs.fetched} fetched, {legs.lost} lost by the first engine, {legs.expired} kept to the end of the lease"
    )
    return lines, stage.broken


def main(arguments: list[str]) -> int:
    """Run it and print what became of everything."""
    parser = argparse.ArgumentParser(prog="python -m lab.handoffs", description=__doc__)
    parser.add_argument("--requests", type=within(int, at_least(1)), default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--transfer", type=KvTransfer, choices=list(KvTransfer), default=KvTransfer.NIXL)
    asked = parser.parse_args(arguments)
    lines, broken = uvloop.run(chaos(asked.requests, asked.seed, asked.transfer))
    print("\n".join(lines))
    print("\n".join(f"BROKEN: {each}" for each in broken) or "no promise was broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
