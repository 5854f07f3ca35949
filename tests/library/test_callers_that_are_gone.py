"""Scenes of callers that end without leaving: a loop closed under a wait, a generator that the garbage collector ends."""

import asyncio
import gc
import threading
from collections.abc import Iterator

import pytest

from millgate.library import Gate


def closed_loop_with_a_waiter(gate: Gate) -> tuple[asyncio.AbstractEventLoop, "asyncio.Task[None]"]:
    """Let a coroutine wait at the gate, and close its loop as a notebook or a test runner does, without a cancellation."""

    async def waits() -> None:
        async with gate.slot():
            raise AssertionError("its loop is closed")

    loop = asyncio.new_event_loop()
    waiting = loop.create_task(waits())
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    return loop, waiting


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_that_closed_under_its_wait_takes_no_slot_and_troubles_no_other_caller() -> None:
    gate = Gate(1, max_wait_s=30, expected_s=0.01)
    with gate.slot():
        loop, waiting = closed_loop_with_a_waiter(gate)
        assert (gate.inflight, gate.waiting) == (1, 1)

    assert (gate.inflight, gate.waiting) == (0, 0)
    with gate.slot(max_wait_s=0.1):
        assert gate.inflight == 1
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]
    del loop, waiting
    gc.collect()
    assert (gate.inflight, gate.waiting) == (0, 0)


def test_a_generator_that_the_garbage_collector_ends_in_the_midst_of_a_decision_frees_its_slot() -> None:
    gate = Gate(10_000, expected_s=0.01)

    def stream() -> Iterator[int]:
        with gate.slot():
            yield 1

    class Answer:
        def __init__(self) -> None:
            self.cycle, self.items = self, stream()
            next(self.items)

    def many_left_in_cycles() -> None:
        for _ in range(300):
            Answer()

    # So often that a collection falls into the gate's own work.
    thresholds = gc.get_threshold()
    gc.set_threshold(20)
    try:
        leaving = threading.Thread(target=many_left_in_cycles, daemon=True)
        leaving.start()
        leaving.join(20)
        assert not leaving.is_alive()
    finally:
        gc.set_threshold(*thresholds)
    gc.collect()
    assert gate.inflight == 0
