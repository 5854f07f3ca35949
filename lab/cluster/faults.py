"""What is done to a cluster, each by name; every fault is over when its coroutine ends."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from random import Random

from lab.cluster.processes import COMPILER, Gate, Stack
from millgate.testing.fault_proxy import Faults

_STOPPED_S, _CUT_S, _HOUR_S = 5.0, 6.0, 3600


async def _kill(_stack: Stack, gate: Gate) -> None:
    gate.run.kill()
    await gate.start()


async def _stop_replica(_stack: Stack, gate: Gate) -> None:
    gate.run.send(signal.SIGSTOP)
    await asyncio.sleep(_STOPPED_S)
    gate.run.send(signal.SIGCONT)


async def _stop_redis(stack: Stack, _gate: Gate) -> None:
    assert stack.redis is not None
    stack.redis.send(signal.SIGSTOP)
    await asyncio.sleep(_STOPPED_S)
    stack.redis.send(signal.SIGCONT)


async def _flush(stack: Stack, _gate: Gate) -> None:
    assert stack.redis is not None
    await stack.redis.flush()


async def _restart_redis(stack: Stack, _gate: Gate) -> None:
    assert stack.redis is not None
    stack.redis.kill()
    await asyncio.sleep(0.5)
    stack.redis.start()


async def _stall_link(_stack: Stack, gate: Gate) -> None:
    assert gate.link is not None
    gate.link.to_server = gate.link.to_client = Faults(blackhole=True)
    await asyncio.sleep(_CUT_S)
    gate.link.heal()
    gate.link.cut()


async def _drop_link(_stack: Stack, gate: Gate) -> None:
    assert gate.link is not None
    gate.link.accepting = False
    gate.link.cut()
    await asyncio.sleep(_CUT_S)
    gate.link.heal()


async def _clock_ahead(stack: Stack, _gate: Gate) -> None:
    assert stack.redis is not None
    stack.redis.set_clock(stack.redis.ahead_s + _HOUR_S)


async def _clock_back(stack: Stack, _gate: Gate) -> None:
    assert stack.redis is not None
    stack.redis.set_clock(stack.redis.ahead_s - _HOUR_S)


Fault = Callable[[Stack, Gate], Awaitable[None]]
FAULTS: dict[str, Fault] = {
    "kill -9 of a replica": _kill,
    "SIGSTOP of a replica, 5 s": _stop_replica,
    "SIGSTOP of Redis, 5 s": _stop_redis,
    "FLUSHALL": _flush,
    "Redis killed, back empty": _restart_redis,
    "link of a replica stalls, 6 s": _stall_link,
    "link of a replica cut, 6 s": _drop_link,
    "clock of Redis 1 h ahead": _clock_ahead,
    "clock of Redis 1 h back": _clock_back,
}


def planned(seconds: float, apart_s: float, seed: int) -> list[tuple[float, str, int]]:
    """Return when which fault strikes which replica: each kind once before any comes again, in an order and at times by the seed."""
    dice = Random(seed)
    kinds: list[str] = []
    plan: list[tuple[float, str, int]] = []
    known = [name for name in FAULTS if COMPILER is not None or not name.startswith("clock")]
    at_s = apart_s
    while at_s + apart_s <= seconds:
        if not kinds:
            kinds = dice.sample(known, len(known))
        plan.append((at_s + dice.uniform(-0.2, 0.2) * apart_s, kinds.pop(), dice.randrange(1_000)))
        at_s += apart_s
    return plan
