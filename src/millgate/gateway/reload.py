"""Reloading: one at a time, the last word wins, and what is wrong changes nothing."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, Protocol

from millgate.core.settings import Settings
from millgate.gateway.app import Gateway
from millgate.gateway.notify import Notifier
from millgate.gateway.settings import GatewaySettings
from millgate.observe.logs import ProcessLog
from millgate.runtime.gauges import Gauges


class Configuration(NamedTuple):
    """Everything that a reload may bring: for the gateway around the core, and for the core."""

    gateway: GatewaySettings
    core: Settings
    resized: tuple[Mapping[str, object], ...] = ()
    """Of each engine whose limits follow from what it tells and are others now: its name, the limits, and those before."""


class ReloadError(Exception):
    """The new configuration cannot be used; the message says where it is wrong, a line for each problem."""


Fetch = Callable[[], Awaitable[Configuration]]
"""Reads the configuration anew; raises ReloadError."""


class EngineSizes(Protocol):
    """What engines tell of themselves, and the configuration that follows from it."""

    def told(self, engine: str, gauges: Gauges) -> bool:
        """Take what an engine says; return whether its limits may be others now."""

    async def fit(self) -> Configuration:
        """Return the configuration in force with the limits that follow; raises ReloadError."""


class Reloader:
    """Reloads one gateway whenever `ask` is called; asked again meanwhile, it reloads once more afterwards.

    `fit` returns the same configuration with what engines tell of themselves now.
    """

    def __init__(
        self,
        gateway: Gateway,
        fetch: Fetch | None,
        log: ProcessLog,
        notifier: Notifier,
        fit: Fetch | None = None,
    ) -> None:
        self._gateway = gateway
        self._fetch = fetch
        self._fit = fit
        self._log = log
        self._notifier = notifier
        self._asked = self._asked_to_fit = False
        self._task: asyncio.Task[None] | None = None

    def ask(self) -> None:
        """Reload soon; a gateway that is leaving is left alone."""
        self._asked = True
        self._begin()

    def ask_to_fit(self) -> None:
        """Take the limits that follow from what engines tell now, soon."""
        self._asked_to_fit = True
        self._begin()

    def _begin(self) -> None:
        if self._task is None and not self._gateway.draining:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Forget a reload that is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _run(self) -> None:
        try:
            while (self._asked or self._asked_to_fit) and not self._gateway.draining:
                asked, self._asked, self._asked_to_fit = self._asked, False, False
                if asked and self._fetch is not None:
                    await self._once(self._fetch)
                elif self._fit is not None:
                    await self._resize(self._fit)
        finally:
            self._task = None

    async def _resize(self, fit: Fetch) -> None:
        """Take new limits of engines; what they tell was read from a page, so it can be wrong, and then changes nothing."""
        try:
            wanted = await fit()
        except ReloadError as error:
            self._log.error("limits refused, the old ones stay in force", problems=str(error).splitlines())
            return
        if wanted.resized:
            await self._gateway.adopt(wanted.gateway, wanted.core)
        for limits in wanted.resized:
            self._log.info("engine limits", **limits)

    async def _once(self, fetch: Fetch) -> None:
        gateway = self._gateway
        self._notifier.reloading()
        gateway.reloads += 1
        try:
            wanted = await fetch()
            fixed = await gateway.adopt(wanted.gateway, wanted.core)
        except (ReloadError, OSError) as error:
            gateway.failed_reloads += 1
            gateway.reload_success = False
            self._log.error(
                "configuration refused, the old one stays in force", problems=str(error).splitlines()
            )
        else:
            gateway.reload_success = True
            if fixed:
                self._log.warning(
                    "configuration reloaded, but some of it needs a restart", needs_restart=list(fixed)
                )
            else:
                self._log.info("configuration reloaded")
        finally:
            self._notifier.ready()
