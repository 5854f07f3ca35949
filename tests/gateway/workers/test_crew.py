"""Workers as their supervisor starts them: real processes, and a start that is held for as long as a test wants."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.workers.stand import START_WITHIN_S
from millgate.cli.settings import Given
from millgate.cluster.ledger import MemoryStore
from millgate.gateway.workers.crew import Crew, WorkersPlan
from millgate.gateway.workers.messages import Recipe
from millgate.gateway.workers.process import WorkerProcess
from millgate.runtime.clock import MonotonicClock
from millgate.sockets.listening import shared_sockets

CONFIGURATION = "engines:\n  - url: http://127.0.0.1:9\n"


@contextlib.asynccontextmanager
async def crew_of_one(file: Path, on_end: Callable[[WorkerProcess], None]) -> AsyncIterator[Crew]:
    """Give the crew of a gate with one worker, none started yet."""
    recipe = Recipe(msgspec.msgpack.encode(Given.of(file, [], [], [])), CONFIGURATION)
    (door,) = shared_sockets("127.0.0.1", 0, 1)
    with door:
        plan = WorkersPlan(1, recipe, b"k" * 32, [door], [], MemoryStore(MonotonicClock.now))
        crew = Crew(plan, lambda _: None, on_end)
        await crew.open()
        try:
            async with asyncio.timeout(2 * START_WITHIN_S):
                yield crew
        finally:
            await crew.close()


def test_a_slot_whose_worker_dies_while_its_replacement_has_just_a_process_is_not_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor started a second replacement beside the first, and three workers of two stayed for good."""
    fills: list[bool] = []
    begin = asyncio.create_subprocess_exec
    file = tmp_path / "millgate.yaml"
    file.write_text(CONFIGURATION, encoding="utf-8")

    async def story() -> None:
        async with crew_of_one(file, lambda worker: fills.append(crew.fills(worker.slot))) as crew:
            old = await crew.start(0)

            async def slow(*arguments: Any, **options: Any) -> asyncio.subprocess.Process:
                process = await begin(*arguments, **options)
                old.signal(signal.SIGKILL)
                await old.ended
                return process

            monkeypatch.setattr(asyncio, "create_subprocess_exec", slow)
            await crew.start(0)

    asyncio.run(story())
    assert fills == [True, False]
