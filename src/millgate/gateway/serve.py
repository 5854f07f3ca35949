"""The process around the gateway: loop, signals, garbage collector, exit."""

import asyncio
import contextlib
import gc
import signal
from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from typing import Any

from millgate.cluster.contract import Store
from millgate.cluster.leases import LeaseStatus, RenewalState
from millgate.core.events import Draining, Tick
from millgate.core.governor.verbs import Core
from millgate.gateway.app import Gateway
from millgate.gateway.doors import WorkerPlace
from millgate.gateway.notices import EngineNotices, Notices, StateNotices
from millgate.gateway.notify import Notifier, ServiceNotifier
from millgate.gateway.reload import SOME, EngineSizes, Fetch, Reloader
from millgate.gateway.settings import GatewaySettings
from millgate.observe.logs import ProcessLog, places
from millgate.runtime.adapters import Adapters
from millgate.runtime.gauges import Gauges

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# A request leaves no cycle behind, so collections only cost; what is alive at the start never dies: freeze it. While
# users come everything young survives, and a collection takes 0.2 us for each of it: 2,000 objects stop the streams for
# 0.4 ms and a second generation for 2 ms, where 50,000 took 9 ms. The third, which looks at everything, is left for
# what millions of objects leave behind.
_GC_THRESHOLDS = (2_000, 5, 5_000)
# How often a drain says what it still waits for.
_TELL_EVERY_S = 1.0
_HELD_TELL_S = 60.0


class ProcessEnding(Enum):
    """How a gateway process ended: drained, or cut short by a second signal."""

    DRAINED = "drained"
    CUT_SHORT = "cut_short"


async def serve(
    governor: Core,
    settings: GatewaySettings,
    *,
    on_ready: Callable[[Gateway], None] | None = None,
    fetch: Fetch | None = None,
    sizes: EngineSizes | None = None,
    store: Store | None = None,
    place: WorkerPlace | None = None,
    notifier: ServiceNotifier | None = None,
) -> ProcessEnding:
    """Serve until SIGTERM or SIGINT, then drain; a second signal cuts everything at once; SIGHUP reloads by `fetch`.

    `sizes` is told what engines say of themselves, and returns the configuration that follows from it. `store` is asked
    for leases instead of the one that the settings name. `place` is that of one of several processes, `notifier` is
    told instead of systemd. `on_ready` is called when every door listens. Raises OSError when an address is taken or
    not ours.
    """
    loop = asyncio.get_running_loop()
    log = ProcessLog() if place is None else ProcessLog(worker=place.number)
    notifier = notifier or Notifier()
    gateway = Gateway(governor, settings, store=store, place=place)
    gateway.lines_dropped = lambda: log.dropped
    gateway.door.lag.on_stall = partial(log.warning, "the loop stood still")
    notices = Notices(log, loop.time)
    gateway.door.on_bad_request, gateway.door.on_unusable_usage = notices.bad_request, notices.unusable_usage
    gateway.observers.accounting.on_failure, gateway.door.shedding.on_shed = notices.failed, notices.shed
    gateway.door.on_refused, gateway.door.on_client_refused = notices.refused, notices.client_refused
    gateway.door.on_unknown, gateway.fleet.on_look = notices.unknown, notices.looked_up
    if gateway.line is not None:
        gateway.line.on_refused, gateway.line.on_unknown = notices.refused, notices.unknown
    gateway.door.on_given_up = lambda told: notices.given_up(told, gateway.settings.upstream.chunk_idle_s)
    turns = EngineNotices(log, loop.time, loop.call_later)
    gateway.fleet.on_turn = lambda each: notices.failing(each) if each.failing else turns.turned(each)
    _log_turns(gateway, log)
    states = StateNotices(log, gateway.driver.snapshot, partial(_losses, gateway), loop.call_later)
    states.certificates = lambda: gateway.settings.certificates
    states.tells_caps = gateway.cluster is None  # shares move several times a second: no step of a limiter
    reloader = _reloader(gateway, fetch, log, notifier, sizes)
    try:
        await gateway.start()
        loop.set_exception_handler(lambda _loop, context: _report(log, context))
        with _signals(gateway, None if fetch is None else reloader, log, place) as (asked, insisted):
            _tune_collector()
            if on_ready is not None:
                on_ready(gateway)
            notifier.ready()
            states.look()
            if sizes is not None:
                sizes.discovery.start(log, reloader.ask_to_fit, reloader.ask_to_refill)
            await asked.wait()
            if sizes is not None:
                sizes.discovery.stop()
            await reloader.stop()
            return await _leave(gateway, insisted, log, notifier)
    finally:
        notifier.close()
        states.stop()
        await gateway.stop()
        log.close()


def _log_turns(gateway: Gateway, log: ProcessLog) -> None:
    """Log when what the gate shares, keeps or tells fails, and when it is well again."""
    gateway.kept_quotas.on_trouble = partial(_turned, log, "quotas are not kept", "quotas are kept again")
    if gateway.cluster is not None:
        gateway.cluster.on_change = _LeaseNews(log).changed
        if gateway.cluster.told is not None:
            failing, well = (
                "refused clients are not told to others",
                "refused clients are told to others again",
            )
            gateway.cluster.told.on_problem = partial(_turned, log, failing, well)
    if gateway.observers.traces is not None:
        loop = asyncio.get_running_loop()
        turned = partial(_turned, log, "traces are not taken", "traces are taken again")
        gateway.observers.traces.on_turn(lambda why: loop.call_soon_threadsafe(turned, why))


def _turned(log: ProcessLog, failing: str, well: str, why: str) -> None:
    """Say that this fails and why, or that it is well again."""
    if why:
        log.warning(failing, why=why)
    else:
        log.info(well)


def _reloader(
    gateway: Gateway,
    fetch: Fetch | None,
    log: ProcessLog,
    notifier: ServiceNotifier,
    sizes: EngineSizes | None,
) -> Reloader:
    if sizes is None:
        return Reloader(gateway, fetch, log, notifier)
    reloader = Reloader(gateway, fetch, log, notifier, sizes.fit, sizes.refill)
    gateway.fleet.on_size = partial(_sized, sizes, reloader)
    gateway.fleet.on_adapters = partial(_listed, sizes, reloader, log)
    return reloader


@contextlib.contextmanager
def _signals(
    gateway: Gateway, reloader: Reloader | None, log: ProcessLog, place: WorkerPlace | None
) -> Iterator[tuple[asyncio.Event, asyncio.Event]]:
    """Catch what may be sent: the first event is a wish to end, the second one its repetition.

    Who signals every process of a gate, as `pkill` does, reaches workers twice, because their supervisor passes it on:
    only SIGINT is a repetition there.
    """
    asked, insisted = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def end(number: signal.Signals) -> None:
        if not asked.is_set():
            asked.set()
        elif place is None or number is signal.SIGINT:
            insisted.set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, end, number)
    if place is None:
        loop.add_signal_handler(signal.SIGUSR2, log.warning, "no workers to replace")
    if reloader is not None:
        loop.add_signal_handler(signal.SIGHUP, _hang_up, gateway, reloader)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP,))
    try:
        yield asked, insisted
    finally:
        for number in (*_SIGNALS, signal.SIGHUP, signal.SIGUSR2):
            loop.remove_signal_handler(number)
            if place is not None or number not in _SIGNALS:
                signal.signal(number, signal.SIG_IGN)


def _losses(gateway: Gateway) -> dict[str, int]:
    refused = gateway.server.refused_connections
    return {"connections refused": refused, "attempt lines lost": gateway.observers.lines_dropped}


class _LeaseNews:
    """Reports what this replica admits by: one line for each change. Leases that are held and renewed at once are told once a minute."""

    def __init__(self, log: ProcessLog) -> None:
        self._log, self._tells_at, self._is_told = log, 0.0, True

    def changed(self, status: LeaseStatus) -> None:
        if status.state is RenewalState.HOLDING:
            self._is_told = status.since >= self._tells_at
            self._tells_at = status.since + _HELD_TELL_S if self._is_told else self._tells_at
        self._is_told |= status.state not in {RenewalState.HOLDING, RenewalState.LEASED}
        if self._is_told:
            is_well = status.state in {RenewalState.LEASED, RenewalState.LEFT}
            why = {} if is_well else {"why": status.reason}
            tell = self._log.info if is_well else self._log.warning
            tell("cluster", state=status.state.value, replicas=status.replicas, **why)


def _sized(sizes: EngineSizes, reloader: Reloader, engine: str, gauges: Gauges) -> None:
    if sizes.told(engine, gauges):
        reloader.ask_to_fit()


def _listed(sizes: EngineSizes, reloader: Reloader, log: ProcessLog, engine: str, adapters: Adapters) -> None:
    if sizes.lists(engine, adapters):
        log.info("engine adapters", engine=engine, count=len(adapters), adapters=list(adapters)[:SOME])
        reloader.ask_to_fit()


def _hang_up(gateway: Gateway, reloader: Reloader) -> None:
    """Reload, and open the log of attempts anew: it may have been rotated."""
    gateway.observers.reopen()
    reloader.ask()


async def _leave(
    gateway: Gateway, insisted: asyncio.Event, log: ProcessLog, notifier: ServiceNotifier
) -> ProcessEnding:
    """Drain, unless a second signal insists."""
    drain = asyncio.ensure_future(gateway.drain())
    tell = asyncio.ensure_future(_tell(gateway, log, notifier, gateway.under_way))
    insist = asyncio.ensure_future(insisted.wait())
    await asyncio.wait((drain, insist), return_when=asyncio.FIRST_COMPLETED)
    for task in (drain, tell, insist):
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    if insisted.is_set():
        log.warning("cut short by a second signal", under_way=gateway.under_way)
        gateway.driver.post(Draining(0.0), Tick())  # else clients that are cut off are taken for gone
        return ProcessEnding.CUT_SHORT
    log.info("drained", under_way=gateway.under_way, cut=gateway.driver.cancelled)
    return ProcessEnding.DRAINED


async def _tell(gateway: Gateway, log: ProcessLog, notifier: ServiceNotifier, left: int) -> None:
    """Say that the process is leaving and what was `left` to wait for, and each second what is, while that changes."""
    told = -1
    while True:
        if left != told:
            told = left
            notifier.stopping(f"draining, {left} under way")
            log.info("draining", under_way=left, grace_s=gateway.settings.drain_grace_s)
        await asyncio.sleep(_TELL_EVERY_S)
        left = gateway.under_way


def _report(log: ProcessLog, context: dict[str, Any]) -> None:
    """Report an uncaught failure by kind and place; its text may quote what a client sent."""
    error = context.get("exception")
    where = [] if error is None else places(error)
    log.error("unexpected failure", what=context.get("message", ""), kind=type(error).__name__, where=where)


def _tune_collector() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
