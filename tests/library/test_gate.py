"""The in-process gate: the same promises to threads, coroutines and decorated functions."""

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator

import pytest

import millgate
from millgate.core.words import Outcome, Reason
from millgate.library import Gate, Yielded


def outcomes(gate: Gate) -> dict[str, int]:
    return {outcome.value: count for outcome, count in gate.snapshot().lanes[0].outcomes if count}


def test_the_package_offers_the_gate_by_name() -> None:
    assert millgate.Gate is Gate
    assert millgate.Yielded is Yielded
    with pytest.raises(AttributeError, match="Grate"):
        _ = millgate.Grate  # type: ignore[attr-defined]


def test_the_cap_is_hard_and_everybody_is_served_in_order() -> None:
    gate = Gate(2, max_wait_s=30)
    most, running, order = 0, 0, []

    async def work(number: int) -> None:
        nonlocal most, running
        async with gate.slot():
            order.append(number)
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.001)
            running -= 1

    async def body() -> None:
        await asyncio.gather(*(work(number) for number in range(20)))

    asyncio.run(body())

    assert most == 2
    assert order == list(range(20))
    assert (gate.inflight, gate.waiting) == (0, 0)
    assert outcomes(gate) == {"good": 20}


def test_without_a_queue_the_second_is_refused_with_a_hint() -> None:
    gate = Gate(1, max_queue=0)
    with gate.slot():
        with pytest.raises(Yielded) as refused, gate.slot():
            raise AssertionError("the cap is one")
        assert refused.value.reason is Reason.SATURATED
        assert refused.value.retry
        assert 0.1 <= refused.value.retry_after_s <= 60
        assert str(refused.value).startswith("saturated: come back in")
    with gate.slot():
        assert gate.inflight == 1


def test_a_wait_ends_by_itself_when_its_time_is_over() -> None:
    """Nobody has a clock but who waits: a queued slot must find out alone that its `max_wait_s` is over."""
    gate = Gate(1, max_wait_s=5.0, expected_s=0.01)

    async def waits() -> None:
        with pytest.raises(Yielded) as refused:
            async with gate.slot(max_wait_s=0.1):
                raise AssertionError("the slot is taken")
        assert refused.value.reason is Reason.SATURATED

    with gate.slot():
        asyncio.run(waits())
        with pytest.raises(Yielded), gate.slot(max_wait_s=0.1):
            raise AssertionError("the slot is taken")
    assert gate.waiting == 0


def test_what_cannot_be_finished_in_time_is_refused_at_the_door() -> None:
    gate = Gate(4, deadline_s=1.0, expected_s=3.0)
    with pytest.raises(Yielded) as refused, gate.slot():
        raise AssertionError("three seconds do not fit into one")
    assert refused.value.reason is Reason.TOO_LATE


def test_tokens_are_a_meter_of_their_own() -> None:
    """Two slots of 600 tokens do not run together under 1,000, and one of 5,000 runs alone."""
    gate = Gate(8, max_tokens=1000, max_queue=0)
    with gate.slot(tokens=600):
        with pytest.raises(Yielded), gate.slot(tokens=600):
            raise AssertionError("1,200 tokens")
        with gate.slot(tokens=400):
            assert gate.inflight == 2
    with gate.slot(tokens=5000):
        assert gate.inflight == 1


def test_a_slot_that_would_block_a_loop_is_refused_with_the_form_that_does_not() -> None:
    gate = Gate(1)

    @gate
    def limited() -> None:
        raise AssertionError("not in a loop")

    async def body() -> None:
        with pytest.raises(RuntimeError, match=r"write `async with gate\.slot\(\)`"), gate.slot():
            raise AssertionError("not in a loop")
        with pytest.raises(RuntimeError, match=r"by `asyncio\.to_thread`"):
            limited()
        await asyncio.to_thread(lambda: gate.slot().__enter__().__exit__(None, None, None))

    asyncio.run(body())
    assert outcomes(gate) == {"good": 1}


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_loop_of_another_library_is_told_what_to_write() -> None:
    """Under trio the form for asyncio said that there is no running event loop, inside a running event loop."""
    gate = Gate(max_inflight=1)

    @gate
    async def asked() -> None: ...

    for waiting in (gate.slot().__aenter__(), asked()):
        with pytest.raises(RuntimeError, match=r"with gate.slot\(\)` in a thread"):
            waiting.send(None)
    assert (gate.inflight, gate.waiting) == (0, 0)


def test_after_a_fork_the_childs_gate_begins_anew() -> None:
    """As with gunicorn's `preload_app`: what the parent runs never ends in the child, whose threads are gone."""
    gate = Gate(1, max_queue=0)
    with gate.slot() as held, gate._driver._lock:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with gate.slot():
                    held.__exit__(None, None, None)
                    assert gate.inflight == 1
                status = 0 if outcomes(gate) == {"good": 1} and gate.inflight == 0 else 2
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert outcomes(gate) == {"good": 1}


def test_threads_and_loops_share_one_gate() -> None:
    gate = Gate(3, max_wait_s=30)
    lock, running, most = threading.Lock(), 0, 0

    def enter(step: int) -> None:
        nonlocal running, most
        with lock:
            running += step
            most = max(most, running)

    def in_thread() -> None:
        for _ in range(50):
            with gate.slot():
                enter(1)
                enter(-1)

    async def in_loop() -> None:
        for _ in range(50):
            async with gate.slot():
                enter(1)
                await asyncio.sleep(0)
                enter(-1)

    async def loop() -> None:
        await asyncio.gather(*(in_loop() for _ in range(4)))

    threads = [threading.Thread(target=in_thread) for _ in range(4)]
    threads += [threading.Thread(target=lambda: asyncio.run(loop())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert most <= 3
    assert outcomes(gate) == {"good": 600}
    assert (gate.inflight, gate.waiting) == (0, 0)


def test_how_a_block_ends_is_how_the_work_ended() -> None:
    gate = Gate(1)
    with pytest.raises(ZeroDivisionError), gate.slot():
        raise ZeroDivisionError
    with gate.slot() as slot:
        slot.fail()

    async def cancelled() -> None:
        async def work() -> None:
            async with gate.slot():
                await asyncio.sleep(60)

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))

    asyncio.run(cancelled())

    assert outcomes(gate) == {Outcome.ENGINE_FAILED.value: 2, Outcome.CLIENT_GONE.value: 1}
    assert gate.inflight == 0


def test_a_cancelled_wait_gives_its_place_back() -> None:
    gate = Gate(1, max_wait_s=30)

    async def body() -> None:
        async with gate.slot():
            waiting = asyncio.create_task(gate.slot().__aenter__())
            await asyncio.sleep(0)
            assert gate.waiting == 1
            waiting.cancel()
            await asyncio.wait((waiting,))
            assert gate.waiting == 0

    asyncio.run(body())
    assert (gate.inflight, gate.waiting) == (0, 0)


def test_a_task_that_survived_a_cancellation_is_refused_as_any_other() -> None:
    """A task group whose member failed leaves its task so in Python 3.11.2, and the end of its wait was a CancelledError."""
    gate = Gate(1, max_wait_s=0.05, expected_s=0.01)

    async def survivor() -> None:
        asyncio.current_task().cancel()  # type: ignore[union-attr]
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        async with gate.slot():
            with pytest.raises(Yielded):
                await gate.slot().__aenter__()

    async def body() -> None:
        await asyncio.create_task(survivor())

    asyncio.run(body())
    assert (gate.inflight, gate.waiting) == (0, 0)


def test_a_known_key_keeps_its_age() -> None:
    """Refused work that comes back with its key is recognised and goes before what came later."""
    now = 0.0
    gate = Gate(1, max_queue=0, clock=lambda: now)
    running = gate.slot()
    with running:
        with pytest.raises(Yielded) as refused, gate.slot(key="a"):
            raise AssertionError("taken")
        now += refused.value.retry_after_s
    with gate.slot(key="a"):
        assert gate.snapshot().retries.recognised == 1


def test_draining_refuses_what_waits_and_what_comes() -> None:
    gate = Gate(1, max_wait_s=30)

    async def body() -> None:
        async with gate.slot():
            waiting = asyncio.create_task(gate.slot().__aenter__())
            await asyncio.sleep(0)
            gate.drain()
            with pytest.raises(Yielded) as refused:
                await waiting
            assert refused.value.reason is Reason.DRAINING

    asyncio.run(body())
    with pytest.raises(Yielded, match="draining"), gate.slot():
        raise AssertionError("the gate is closed")


def test_a_slot_is_entered_once() -> None:
    slot = Gate(1).slot()
    with slot:
        pass
    with pytest.raises(RuntimeError, match="once"), slot:
        raise AssertionError("it is used up")


def test_every_colour_of_function_can_be_decorated() -> None:
    gate = Gate(1, max_queue=0)

    @gate
    def plain(a: int) -> int:
        """Double."""
        assert gate.inflight == 1
        return 2 * a

    @gate.limit(tokens=len)
    async def coroutine(text: str) -> str:
        assert gate.snapshot().engines[0].prefill_tokens == len(text)
        return text.upper()

    @gate.limit(tokens=3)
    async def stream(count: int) -> AsyncIterator[int]:
        assert gate.inflight == 1
        for number in range(count):
            yield number

    async def body() -> None:
        assert await coroutine("hello") == "HELLO"
        assert [item async for item in stream(3)] == [0, 1, 2]

    assert plain(2) == 4
    assert plain.__doc__ == "Double."
    asyncio.run(body())
    assert gate.inflight == 0
    with pytest.raises(TypeError, match="generator"):

        @gate
        def generator() -> object:
            yield 1


@pytest.mark.parametrize(
    "field", ["max_inflight", "max_tokens", "max_queue", "max_wait_s", "deadline_s", "expected_s"]
)
def test_a_bad_number_is_named(field: str) -> None:
    settings = {"max_inflight": 1, field: -1}
    with pytest.raises(ValueError, match=f"{field} is -1"):
        Gate(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["max_wait_s", "time_allowed_s"])
def test_a_wait_that_is_no_number_is_named(field: str) -> None:
    """A caller with NaN waited without an end, whatever the gate allows."""
    with pytest.raises(ValueError, match=f"{field} is nan"):
        Gate(1).slot(**{field: float("nan")})  # type: ignore[arg-type]


def test_a_slot_that_never_ends_is_refused_as_a_setting() -> None:
    with pytest.raises(ValueError, match="expected_s is inf"):
        Gate(1, expected_s=float("inf"))


def test_a_deadline_of_no_time_is_none_and_is_refused_as_a_setting() -> None:
    """It counted as no deadline at all."""
    with pytest.raises(ValueError, match="deadline_s is 0"):
        Gate(1, deadline_s=0)


def test_an_empty_text_is_work_without_tokens() -> None:
    @Gate(1).limit(tokens=len)
    def summarise(text: str) -> str:
        return text[:10]

    assert summarise("") == ""


def test_a_key_of_any_text_is_known_again() -> None:
    """Half a surrogate pair comes out of JSON; such a key broke a refusal, and only a refusal."""
    now = 0.0
    gate = Gate(1, max_queue=0, clock=lambda: now)
    with gate.slot():
        with pytest.raises(Yielded) as refused, gate.slot(key="\ud83d"):
            raise AssertionError("taken")
        now += refused.value.retry_after_s
    with gate.slot(key="\ud83d"):
        assert gate.snapshot().retries.recognised == 1


def test_a_slot_of_several_streams_takes_as_many_and_one_of_too_many_can_never_run() -> None:
    gate = Gate(4, max_queue=0)
    with gate.slot(streams=3):
        assert gate.inflight == 3
        with pytest.raises(Yielded), gate.slot(streams=2):
            raise AssertionError("one stream is left")
        with gate.slot():
            assert gate.inflight == 4
    with pytest.raises(Yielded) as refused, gate.slot(streams=5):
        raise AssertionError("there are four")
    assert refused.value.reason is Reason.TOO_LARGE
    assert not refused.value.retry


def test_a_key_that_is_a_number_is_an_error_at_the_first_call_not_under_the_first_overload() -> None:
    gate = Gate(1, max_queue=0)
    with pytest.raises(TypeError, match="key is 7, give a str or bytes"):
        gate.slot(key=7)  # type: ignore[arg-type]
    with gate.slot(), pytest.raises(Yielded), gate.slot(key="7"):
        pass
