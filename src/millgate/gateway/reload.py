"""Reloading: one at a time, the last word wins, and what is wrong changes nothing."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from millgate.core.settings import Settings
from millgate.gateway.app import Gateway
from millgate.gateway.notify import Notifier
from millgate.gateway.settings import GatewaySettings
from millgate.observe.logs import ProcessLog


class Configuration(NamedTuple):
    """Everything that a reload may bring: for the gateway around the core, and for the core."""

    gateway: GatewaySettings
    core: Settings


class ReloadError(Exception):
    """The new configuration cannot be used; the message says where it is wrong, a line for each problem."""


Fetch = Callable[[], Awaitable[Configuration]]
"""Reads the configuration anew; raises ReloadError."""


class Reloader:
    """Reloads one gateway whenever `ask` is called; asked again meanwhile, it reloads once more afterwards."""

    def __init__(self, gateway: Gateway, fetch: Fetch, log: ProcessLog, notifier: Notifier) -> None:
        self._gateway = gateway
        self._fetch = fetch
        self._log = log
        self._notifier = notifier
        self._asked = False
        self._task: asyncio.Task[None] | None = None

    def ask(self) -> None:
        """Reload soon; a gateway that is leaving is left alone."""
        if self._gateway.draining:
            return
        self._asked = True
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Forget a reload that is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _run(self) -> None:
        try:
            while self._asked and not self._gateway.draining:
                self._asked = False
                await self._once()
        finally:
            self._task = None

    async def _once(self) -> None:
        gateway = self._gateway
        self._notifier.reloading()
        gateway.reloads += 1
        try:
            wanted = await self._fetch()
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
