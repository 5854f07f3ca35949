"""Workers as their supervisor starts them: real processes, and a start that is held for as long as a test wants."""

import asyncio
import contextlib
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.harness import until
from gateway.workers.stand import START_WITHIN_S
from millgate.cli.settings import Given
from millgate.cluster.ledger import MemoryStore
from millgate.gateway.notify import Notifier
from millgate.gateway.workers import supervisor as supervising
from millgate.gateway.workers.crew import Crew, WorkersPlan
from millgate.gateway.workers.messages import Recipe, WorkerVerb
from millgate.gateway.workers.process import WorkerProcess
from millgate.gateway.workers.supervisor import HANGS_AFTER_LOOKS, Supervisor
from millgate.observe.logs import ProcessLog
from millgate.runtime.clock import MonotonicClock
from millgate.sockets.listening import shared_sockets

CONFIGURATION = "engines:\n  - url: http://127.0.0.1:9\n"


@contextlib.contextmanager
def plan_of_one(file: Path, text: str = CONFIGURATION) -> Iterator[WorkersPlan]:
    """Give the plan of a gate with one worker and this configuration in force."""
    recipe = Recipe(msgspec.msgpack.encode(Given.of(file, [], [], [])), text, text)
    (door,) = shared_sockets("127.0.0.1", 0, 1)
    with door:
        yield WorkersPlan(1, recipe, b"k" * 32, [door], [], MemoryStore(MonotonicClock.now))


@contextlib.asynccontextmanager
async def crew_of_one(
    file: Path, on_end: Callable[[WorkerProcess], None], text: str = CONFIGURATION
) -> AsyncIterator[Crew]:
    """Give the crew of a gate with one worker, none started yet."""
    with plan_of_one(file, text) as plan:
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


def test_a_worker_starts_with_a_line_door_that_the_file_has_since_the_gate_was_started(
    tmp_path: Path,
) -> None:
    """The other workers had taken the file, with a warning that the door needs a restart. One that had died was never replaced."""
    text = CONFIGURATION + "line: {port: 0}\n"

    async def story() -> None:
        async with crew_of_one(tmp_path / "millgate.yaml", lambda _: None, text) as crew:
            assert (await crew.start(0)).serves

    asyncio.run(story())


def test_a_reload_of_all_processes_while_a_worker_starts_waits_until_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `pkill -HUP` does where a log is rotated: the worker ended, and at the start of a gate that with it."""
    held: list[tuple[WorkerProcess, WorkerVerb, bytes]] = []
    tell = WorkerProcess.tell
    monkeypatch.setattr(WorkerProcess, "tell", lambda *order: held.append(order))

    def waits() -> bool:
        """Say whether the signal would wait in the process: it is the first of those that are blocked."""
        status = Path(f"/proc/{held[0][0].process_id}/status").read_text(encoding="ascii") if held else ""
        blocked = re.search(r"SigBlk:\s*(\w+)", status)
        return blocked is not None and int(blocked[1], 16) & 1 == 1

    async def story() -> None:
        async with crew_of_one(tmp_path / "millgate.yaml", lambda _: None) as crew:
            starting = asyncio.create_task(crew.start(0))
            await until(waits)
            held[0][0].signal(signal.SIGHUP)
            for order in held:
                tell(*order)
            assert (await starting).serves

    asyncio.run(story())


LOOK_S = 0.3
"""How long the supervisor of this scene waits for a report, and a tenth of it between two looks."""


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have a supervisor in this process look often, and leave its signals as they were."""
    monkeypatch.setattr(supervising, "REPORT_EVERY_S", LOOK_S / 10)
    monkeypatch.setattr(supervising, "ASK_WITHIN_S", LOOK_S / 2)
    before = {each: signal.getsignal(each) for each in (signal.SIGHUP, signal.SIGUSR2)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("quick_looks")
def test_a_machine_that_is_paused_for_longer_than_a_worker_may_be_silent_costs_no_worker(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A paused container or virtual machine that went on while a report was awaited killed every worker, and all their streams."""
    file = tmp_path / "millgate.yaml"
    file.write_text(CONFIGURATION, encoding="utf-8")

    async def story() -> None:
        ready, log = asyncio.Event(), ProcessLog()

        async def on_ready(_news: Any) -> None:
            ready.set()

        with plan_of_one(file) as plan:
            supervisor = Supervisor(plan, log, Notifier(), on_ready)
            running = asyncio.ensure_future(supervisor.run())
            async with asyncio.timeout(2 * START_WITHIN_S):
                await ready.wait()
                (worker,) = supervisor.crew.serving
                worker.signal(signal.SIGSTOP)
                await asyncio.sleep(LOOK_S / 2)  # a report is awaited
                time.sleep(2 * HANGS_AFTER_LOOKS * LOOK_S)  # noqa: ASYNC251 - the supervisor is paused, too
                worker.signal(signal.SIGCONT)
                await until(lambda: worker.report is not None, START_WITHIN_S)
                await asyncio.sleep(2 * LOOK_S)
                assert supervisor.crew.serving == [worker]
                assert "worker does not answer" not in capfd.readouterr().err
                worker.signal(signal.SIGSTOP)  # alone: it hangs
                assert await worker.ended == -signal.SIGKILL
                await until(lambda: supervisor.crew.serving, START_WITHIN_S)
                os.kill(os.getpid(), signal.SIGTERM)
                await running

    asyncio.run(story())
