"""Reloading: one at a time, the last word wins, and what is wrong changes nothing."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, Protocol

from millgate.core.settings import Settings
from millgate.gateway.app import Gateway
from millgate.gateway.discovery import Discovery
from millgate.gateway.notify import ServiceNotifier
from millgate.gateway.settings import GatewaySettings
from millgate.observe.logs import ProcessLog
from millgate.runtime.adapters import Adapters
from millgate.runtime.gauges import Gauges

SOME: Final = 20
"""So many names stand in one line of the log; a count beside them says how many there are."""


class Configuration(NamedTuple):
    """Everything that a reload may bring: for the gateway around the core, and for the core."""

    gateway: GatewaySettings
    core: Settings
    resized: tuple[Mapping[str, object], ...] = ()
    """Of each engine whose limits follow from what it tells and are others now: its name, the limits, and those before."""
    came: tuple[str, ...] = ()
    """The engines that are new, and `gone`: those that are no longer there."""
    gone: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    """The settings that the file, variables and flags give another value now, and the items of lists by name (`tenants.acme`)."""
    taken: Callable[[], None] = lambda: None
    """To be called when it is in force: what is fetched next is built on it."""


class ReloadError(Exception):
    """The new configuration cannot be used; the message says where it is wrong, a line for each problem."""


Fetch = Callable[[], Awaitable[Configuration]]
"""Reads the configuration anew; raises ReloadError."""


class EngineSizes(Protocol):
    """The engines that are found and what they tell of themselves, and the configuration that follows from it."""

    @property
    def discovery(self) -> Discovery:
        """What looks for engines."""

    def told(self, engine: str, gauges: Gauges) -> bool:
        """Take what an engine says; return whether its limits may be others now."""

    def lists(self, engine: str, adapters: Adapters) -> bool:
        """Take which adapters an engine says that it has; return whether that changes anything."""

    async def fit(self) -> Configuration:
        """Return the configuration in force with the engines, adapters and limits of now; raises ReloadError."""

    async def refill(self) -> Configuration:
        """Return the configuration in force with what the file of engines says now; raises ReloadError."""


class Reloader:
    """Reloads one gateway whenever `ask` is called; asked again meanwhile, it reloads once more afterwards.

    `fit` returns the same configuration with the engines that are found, and with what they tell of themselves, now;
    `refill` the same with what the file of engines says now.
    """

    def __init__(
        self,
        gateway: Gateway,
        fetch: Fetch | None,
        log: ProcessLog,
        notifier: ServiceNotifier,
        fit: Fetch | None = None,
        refill: Fetch | None = None,
    ) -> None:
        self._gateway = gateway
        self._fetch = fetch
        self._fit = fit
        self._refill = refill
        self._refused: set[Fetch] = set()
        self._log = log
        self._notifier = notifier
        self._asked: set[Fetch] = set()
        self._task: asyncio.Task[None] | None = None

    def ask(self) -> None:
        """Reload soon; a gateway that is leaving is left alone."""
        self._begin(self._fetch)

    def ask_to_refill(self) -> None:
        """Take the engines that their file names now, soon."""
        self._begin(self._refill)

    def ask_to_fit(self) -> None:
        """Take the engines that are found now, and the limits that follow from what they tell, soon."""
        self._begin(self._fit)

    def _begin(self, fetch: Fetch | None) -> None:
        if fetch is None:
            return
        self._asked.add(fetch)
        if self._task is None and not self._gateway.draining:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Forget a reload that is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _run(self) -> None:
        try:
            while self._asked and not self._gateway.draining:
                # The whole configuration comes with its engines, found and told, and their file with what they tell.
                widest_first = (self._fetch, self._refill, self._fit)
                fetch = next(each for each in widest_first if each is not None and each in self._asked)
                narrower, self._asked = self._asked - {fetch}, set()
                is_taken = await (self._resize(fetch) if fetch is self._fit else self._once(fetch))
                if not is_taken:  # what is wrong with the file is nothing against the engines that were found
                    self._asked |= narrower
        finally:
            self._task = None

    async def _resize(self, fit: Fetch) -> bool:
        """Take new engines and limits; both come from outside, so they can be wrong, and then change nothing. Return whether they are taken."""
        try:
            wanted = await fit()
            await self._take(wanted)
        except (ReloadError, OSError) as error:
            self._log.error("engines refused, the old ones stay in force", problems=str(error).splitlines())
            return False
        for limits in wanted.resized:
            self._log.info("engine limits", **limits)
        self._tell_engines(wanted)
        return True

    async def _take(self, wanted: Configuration) -> tuple[str, ...]:
        fixed = await self._gateway.adopt(wanted.gateway, wanted.core)
        wanted.taken()
        return fixed

    def _tell_engines(self, wanted: Configuration) -> None:
        if wanted.came or wanted.gone:
            self._log.info("engines changed", came=list(wanted.came), gone=list(wanted.gone))

    async def _once(self, fetch: Fetch) -> bool:
        gateway = self._gateway
        self._notifier.reloading()
        gateway.reloads += 1
        try:
            wanted = await fetch()
            fixed = await self._take(wanted)
        except (ReloadError, OSError) as error:
            gateway.failed_reloads += 1
            self._refused.add(fetch)
            self._log.error(
                "configuration refused, the old one stays in force", problems=str(error).splitlines()
            )
            return False
        else:
            # A whole configuration that is accepted has accepted the file of engines too.
            self._refused = set() if fetch is self._fetch else self._refused - {fetch}
            self._tell_engines(wanted)
            changed = {"count": len(wanted.changed), "changed": list(wanted.changed[:SOME])}
            if fixed:
                self._log.warning(
                    "configuration reloaded, but some of it needs a restart",
                    needs_restart=list(fixed),
                    **changed,
                )
            else:
                self._log.info("configuration reloaded", **changed)
            return True
        finally:
            gateway.reload_success = not self._refused
            self._notifier.ready()
