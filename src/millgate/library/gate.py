"""A gate in your own program: at most so many at once, a bounded queue, and a refusal that says when to come back.

    gate = millgate.Gate(max_inflight=4)

    async with gate.slot(tokens=1200):
        ...

It is the governor of the gateway with one lane and one engine, your program. A slot's work is measured whole, so
`deadline_s` is when it must be *finished*, and `max_wait_s` how long it may wait to begin.
"""

import asyncio
import inspect
import math
import threading
import time
from asyncio import _get_running_loop
from collections.abc import Callable
from contextlib import aclosing
from functools import partial, wraps
from hashlib import blake2b
from typing import Any, Final, ParamSpec, Self, TypeVar, cast

from millgate.core.decisions import Admit, Yield
from millgate.core.events import Arrived, ClientGone, Draining, Failed, Finished, FirstToken, Released
from millgate.core.settings import EngineSettings, LaneSettings, ServicePrior, Settings
from millgate.core.sizing.service_demand import PRIOR_BYTES_PER_TOKEN
from millgate.core.snapshot import Snapshot
from millgate.core.words import DeadlineFrom, FailureKind, Reason, Sent
from millgate.library.threaded_driver import ThreadedDriver, Waiter

P = ParamSpec("P")
R = TypeVar("R")

_NO_DEADLINE_S: Final = 86_400.0
"""A day: longer than anything that is queued."""
_BLOCKS: Final = (
    "`with gate.slot()` would block this thread's event loop while it waits: write `async with gate.slot()`, and call a "
    "function that the gate limits and that is not async by `asyncio.to_thread`"
)
_NOT_ASYNCIO: Final = (
    "no loop of asyncio runs here: under trio write `with gate.slot()` in a thread (trio.to_thread.run_sync)"
)
_HANGUPS: Final = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt)


class Yielded(Exception):  # noqa: N818 - it is an answer, not an error: "not now"
    """The gate said no: come back in `retry_after_s`, or, where `retry` is False, do not come back."""

    def __init__(self, reason: Reason, retry_after_s: float, retry: bool) -> None:
        super().__init__(reason, retry_after_s, retry)
        self.reason = reason
        self.retry_after_s = retry_after_s
        self.retry = retry

    def __str__(self) -> str:
        advice = f"come back in {self.retry_after_s:.1f} s" if self.retry else "coming back is of no use"
        return f"{self.reason}: {advice}"


class Gate:
    """At most `max_inflight` slots at once; the others wait within bounds or are refused.

    `max_tokens` bounds the tokens of all running slots (a slot that is larger alone runs alone). `max_queue` bounds
    how many wait (None: every caller that can begin within `max_wait_s`; 0: none). `deadline_s` refuses what cannot be
    finished by then. `expected_s` is how long a slot is believed to take before any was seen. For threads and for
    any number of asyncio loops of one process: after a fork the child's gate begins anew.
    """

    def __init__(
        self,
        max_inflight: int,
        *,
        max_tokens: int | None = None,
        max_queue: int | None = None,
        max_wait_s: float | None = 10.0,
        deadline_s: float | None = None,
        expected_s: float = 1.0,
        name: str = "here",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        _check("max_inflight", max_inflight, 1)
        _check("max_tokens", max_tokens, 1)
        _check("max_queue", max_queue, 0)
        _check("max_wait_s", max_wait_s, 0)
        _check("deadline_s", deadline_s, 0.001)
        _check("expected_s", expected_s, 0)
        if expected_s == math.inf:
            raise ValueError("expected_s is inf, the time of a slot ends")
        lane = LaneSettings(
            name=name,
            ttft_slo_s=deadline_s or _NO_DEADLINE_S,
            deadline_s=deadline_s or _NO_DEADLINE_S,
            deadline_from=DeadlineFrom.FIRST_ATTEMPT if deadline_s else DeadlineFrom.ATTEMPT,
            max_queue=max_queue,
            max_wait_s=max_wait_s,
        )
        # All of a slot's time is time to its one token: the core learns it as a line over the tokens at work.
        prior = ServicePrior(
            ttft_base_s=expected_s, ttft_per_token_s=0.0, tpot_base_s=0.0, tpot_per_stream_s=0.0, certain=True
        )
        engine = EngineSettings(name, max_inflight, prefill_tokens=max_tokens, prior=prior)
        self._driver = ThreadedDriver(Settings((lane,), (engine,)), clock)

    def slot(
        self,
        *,
        tokens: int = 1,
        streams: int = 1,
        tenant: str = "",
        key: bytes | str | None = None,
        max_wait_s: float | None = None,
        time_allowed_s: float | None = None,
    ) -> "Slot":
        """Return one piece of work to be put into a `with` or an `async with`.

        Entering runs, waits, or raises Yielded. It takes `streams` of `max_inflight` at once (a request for several
        answers); more than there are can never run. `tenant` shares the line fairly. Give the same `key` when the same
        work comes back after a refusal: it then keeps its place. `max_wait_s` and `time_allowed_s` (until finished)
        only shorten what the gate allows.
        """
        _check("tokens", tokens, 0)
        _check("streams", streams, 1)
        _check("max_wait_s", max_wait_s, -math.inf)
        _check("time_allowed_s", time_allowed_s, -math.inf)
        arrival = Arrived(
            self._driver.next_attempt(),
            tenant=tenant,
            prompt_bytes=round(tokens * PRIOR_BYTES_PER_TOKEN),
            max_tokens=1,
            answers=streams,
            time_allowed_s=time_allowed_s,
            max_wait_s=max_wait_s,
            fingerprint=None if key is None else partial(int, _digest(key)),
        )
        return Slot(self._driver, arrival)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function, coroutine function or async generator: every call takes a slot of one token."""
        return self.limit()(function)

    def limit(
        self, *, tokens: int | Callable[..., int] = 1, tenant: str = ""
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate a function: every call takes a slot; `tokens` may be computed from the call's arguments."""

        def slot_for(*args: Any, **kwargs: Any) -> Slot:
            return self.slot(tokens=tokens(*args, **kwargs) if callable(tokens) else tokens, tenant=tenant)

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            return cast("Callable[P, R]", _wrapped(function, slot_for))

        return decorate

    def snapshot(self) -> Snapshot:
        """Return the gate's numbers as they are now."""
        return self._driver.snapshot()

    @property
    def inflight(self) -> int:
        """How many of its `max_inflight` are taken now."""
        return self._driver.snapshot().engines[0].running

    @property
    def waiting(self) -> int:
        """How many wait now."""
        return self._driver.snapshot().lanes[0].queued

    def drain(self) -> None:
        """Refuse every caller that waits or comes from now on; what runs goes on."""
        self._driver.post(Draining())


class Slot:
    """One piece of work at a gate; enter it once, with `with` or `async with`.

    An exception that leaves the block counts as a failure, a cancellation as a client that left.
    """

    def __init__(self, driver: ThreadedDriver, arrival: Arrived) -> None:
        self._driver = driver
        self._number = arrival.attempt
        self._arrival = arrival
        self._entered = False
        self._failed = False
        self.waited_s = 0.0
        """How long it waited before it ran."""

    # ---- synchronous

    def __enter__(self) -> Self:
        if _get_running_loop() is not None:
            raise RuntimeError(_BLOCKS)
        told = threading.Event()
        waiter = Waiter(told.set)
        self._ask(waiter)
        try:
            while waiter.decision is None:
                if not told.wait(self._driver.wake_in_s()):
                    self._driver.tick()
        except BaseException:
            self._abandon()
            raise
        return self._take(waiter.decision)

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        self._leave(error)

    # ---- asynchronous

    async def __aenter__(self) -> Self:
        if (loop := _get_running_loop()) is None:
            raise RuntimeError(_NOT_ASYNCIO)
        told = asyncio.Event()
        waiter = Waiter(lambda: loop.call_soon_threadsafe(told.set))
        self._ask(waiter)
        try:
            while waiter.decision is None:
                # A plain timer: in Python 3.11.2 the time-out of a task that was ever cancelled ends as a cancellation.
                timer = loop.call_later(self._driver.wake_in_s(), told.set)
                try:
                    await told.wait()
                finally:
                    timer.cancel()
                told.clear()
                self._driver.tick()
        except BaseException:
            self._abandon()
            raise
        return self._take(waiter.decision)

    async def __aexit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        self._leave(error)

    # ---- both

    def fail(self) -> None:
        """Count this work as failed although no exception leaves the block."""
        self._failed = True

    def _ask(self, waiter: Waiter) -> None:
        if self._entered:
            raise RuntimeError("a slot can be entered once; ask the gate for another")
        self._entered = True
        self._driver.ask(self._arrival, waiter)

    def _take(self, decision: Admit | Yield) -> Self:
        if isinstance(decision, Yield):
            raise Yielded(decision.reason, decision.retry_after_s, decision.retry)
        self.waited_s = decision.waited_s
        return self

    def _abandon(self) -> None:
        """The caller is gone, perhaps in the very moment of the admission."""
        self._driver.forget(self._number)
        self._driver.post(ClientGone(self._number), Released(self._number))

    def _leave(self, error: BaseException | None) -> None:
        number = self._number
        if isinstance(error, _HANGUPS):
            self._driver.post(ClientGone(number), Released(number))
        elif error is not None or self._failed:
            self._driver.post(Failed(number, FailureKind.BROKEN, Sent.REQUEST), Released(number))
        else:
            self._driver.post(
                FirstToken(number), Finished(number, output_tokens=self._arrival.answers), Released(number)
            )


def _wrapped(function: Callable[..., Any], slot_for: Callable[..., Slot]) -> Callable[..., Any]:
    """Return the function with a slot around every call, in the function's own colour."""
    if inspect.isasyncgenfunction(function):

        @wraps(function)
        async def stream(*args: Any, **kwargs: Any) -> Any:
            async with slot_for(*args, **kwargs), aclosing(function(*args, **kwargs)) as items:
                async for item in items:
                    yield item

        return stream
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            async with slot_for(*args, **kwargs):
                return await function(*args, **kwargs)

        return call
    if inspect.isgeneratorfunction(function):
        raise TypeError(f"{function.__qualname__} is a generator: use `with gate.slot()` inside it")

    @wraps(function)
    def plain(*args: Any, **kwargs: Any) -> Any:
        with slot_for(*args, **kwargs):
            return function(*args, **kwargs)

    return plain


def _digest(key: bytes | str) -> int:
    if not isinstance(key, bytes | bytearray | memoryview | str):  # as numbers of a database are
        raise TypeError(f"key is {key!r}, give a str or bytes")
    data = key.encode(errors="surrogatepass") if isinstance(key, str) else key
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")


def _check(name: str, value: float | None, least: float) -> None:
    if value is not None and not value >= least:  # so that NaN is none
        raise ValueError(f"{name} is {value}, the least is {least}")
