"""The gateway: builds every room around one governor, serves, drains, and takes everything down again."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from millgate.core.events import Draining
from millgate.core.settings import Settings
from millgate.gateway.fleet import Fleet
from millgate.gateway.settings import GatewaySettings, LineAddress
from millgate.observe.door import DoorSnapshot, ServiceSnapshot
from millgate.observe.heptamini import HeptaminiCollector
from millgate.observe.live.opening import open_feed
from millgate.observe.observers import Observers
from millgate.observe.prometheus import Exposition
from millgate.runtime.callers import Callers
from millgate.runtime.clock import Clock, MonotonicClock
from millgate.runtime.descriptors import Descriptors
from millgate.runtime.driver import Core, Driver, StepObserver
from millgate.servers.admin.server import AdminServer
from millgate.servers.admin.views import Readiness, Views
from millgate.servers.http import HttpDoor
from millgate.servers.http1 import ByteBudget, HttpServer
from millgate.servers.line import LineDoor, LineRoute

# How often a drain looks whether everything has ended: far below any supervisor's timeout for a process to leave.
_DRAIN_LOOK_S = 0.02
# The core cancels at the end of the grace; cancelled streams and last answers get this long to leave the sockets.
_DRAIN_MARGIN_S = 1.0
_ENGINE_SHARE = 0.5
"""Of the descriptors that clients and engines have together: every client that was let in can have one to an engine."""


class Gateway:
    """One gate in one process; build it on the loop that runs it.

    `governor` decides and must name its engines as `settings.engines` does. Use: `start`, then `drain`, then
    `stop`; `stop` alone cuts everything.
    """

    def __init__(
        self,
        governor: Core,
        settings: GatewaySettings,
        *,
        observers: Sequence[StepObserver] = (),
        clock: Clock | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.settings = settings
        self.driver = Driver(governor, clock or MonotonicClock(), loop)
        self.driver.observers.extend(observers)
        self.draining = False
        self._clock = clock or MonotonicClock()
        self.reloads = 0
        self.failed_reloads = 0
        self.reload_success = True
        self.lines_dropped: Callable[[], int] = lambda: 0
        self._fleet = Fleet(settings.engines, settings.upstream, self.driver, self._clock)
        self.door = HttpDoor(self.driver, self._fleet.routes, settings.door, Callers(settings.callers))
        budget = ByteBudget(settings.byte_budget)
        self.descriptors = Descriptors(self._other_connections, engine_share=_ENGINE_SHARE)
        self.server = HttpServer(
            self.door,
            limits=settings.server,
            budget=budget,
            tenant_of=self.door.entry.tenant,
            descriptors=self.descriptors,
        )
        self.line = self._open_line(budget)
        self.line_port = 0
        self.observers = self._open_eyes()
        self.admin = self._open_admin()
        self.port = 0

    def _open_line(self, budget: ByteBudget) -> LineDoor | None:
        address = self.settings.line
        if address is None:
            return None
        routes = _line_routes(self._fleet)
        return LineDoor(
            self.driver,
            routes,
            address.door,
            budget,
            boot=self.door.boot,
            descriptors=self.descriptors,
            long_bodies=self.door.long_bodies,
            marker=self.door.marker,
        )

    def _open_eyes(self) -> Observers:
        observers = Observers(
            self.settings.observers,
            boot=self.door.boot,
            first_lane=self.driver.snapshot().lanes[0].name,
            tenants=[tenant.name for tenant in self.settings.callers.tenants],
            defer=asyncio.get_running_loop().call_later,
        )
        self.driver.observers.append(observers.accounting)
        self.door.on_named = self.door.shedding.on_named = observers.accounting.named
        self.door.on_upstream_named = observers.accounting.upstream_named
        if self.line is not None:
            self.line.on_upstream_named = observers.accounting.upstream_named
        return observers

    def _open_admin(self) -> AdminServer | None:
        address = self.settings.admin
        if address is None:
            return None
        exposition = Exposition(
            self.driver.snapshot, self._door_snapshot, self._service_snapshot, self.observers.traffic
        )
        if self.line is not None and self.settings.line is not None and self.settings.line.metrics:
            exposition.add(HeptaminiCollector(self.line.readings))
        live = open_feed(self.driver.snapshot, self.driver.explain, self.observers)
        views = Views(
            self.driver.snapshot,
            self.driver.explain,
            self.ready,
            exposition.render_in_pieces,
            live,
            traffic=self.observers.traffic,
            standings=lambda: self._fleet.standings,
            why=self.observers.why,
        )
        return AdminServer(views, address.host, address.port, token=address.token, hosts=address.hosts)

    def _door_snapshot(self) -> DoorSnapshot:
        door, server = self.door, self.server
        return DoorSnapshot(
            connections=server.connections,
            refused_connections=server.refused_connections,
            rejected=door.rejected,
            body_bytes=server.budget.held_bytes,
            body_limit_bytes=server.budget.limit_bytes,
            refused_callers=door.entry.refused,
            spoofed_fields=door.entry.callers.spoofed,
            shed=door.shedding.count,
            steering_fields=door.steered,
            unusable_usage=door.unusable_usage,
        )

    def _service_snapshot(self) -> ServiceSnapshot:
        return ServiceSnapshot(
            reload_success=self.reload_success,
            reloads=self.reloads,
            failed_reloads=self.failed_reloads,
            loop_lag_s=self.door.lag.lag_s,
            worst_loop_lag_s=self.door.lag.worst_s,
            log_lines_dropped=self.lines_dropped(),
            attempt_lines_dropped=self.observers.lines_dropped,
        )

    def ready(self) -> Readiness:
        """Return whether work should come here, with the state of each part."""
        snapshot = self.driver.snapshot()
        detail = {"gate": "draining" if self.draining else "open"}
        detail |= {f"engine {engine.name}": "up" if engine.up else "down" for engine in snapshot.engines}
        return Readiness(not self.draining and any(engine.up for engine in snapshot.engines), detail)

    async def start(self) -> None:
        """Serve; raises OSError when an address is taken or not ours, with nothing left open."""
        try:
            settings = self.settings
            self.port = await self.server.listen(settings.host, settings.port, settings.ssl)
            if self.line is not None and self.settings.line is not None:
                address = self.settings.line
                self.line_port = await self.line.listen(address.host, address.port, ssl=address.ssl)
            if self.admin is not None:
                await self.admin.start()
        except OSError:
            await self.stop()
            raise
        self.door.start()
        self._fleet.start()

    async def adopt(self, settings: GatewaySettings, core: Settings) -> tuple[str, ...]:
        """Take new settings while serving; return those that need a restart, which stay as they were.

        Nothing that runs or waits is lost: lower limits only keep new work out, removed engines finish what they have.
        """
        before = self.settings
        if before.ssl is not None or settings.ssl is not None:
            await self.server.secure(settings.ssl)
        line = self._secure_line(settings.line)
        self.settings = replace(
            settings,
            host=before.host,
            port=before.port,
            admin=before.admin,
            line=line,
            observers=before.observers,
        )
        self.server.adopt(settings.server, settings.byte_budget)
        self.door.adopt(settings.door)
        self.door.entry.replace(settings.callers)
        self._fleet.adopt(settings.engines, settings.upstream)
        self._reroute()
        self.driver.reconfigure(core)
        return _fixed(before, settings)

    def _secure_line(self, wanted: LineAddress | None) -> LineAddress | None:
        """Give the line door its new certificates, if it stays as it is otherwise; return its address from now on."""
        address = self.settings.line
        if self.line is None or address is None or wanted is None or _plain(address) != _plain(wanted):
            return address
        if _secured(address) is not _secured(wanted):
            return address
        if wanted.ssl is not None:
            self.line.secure(wanted.ssl)
        return wanted

    def _reroute(self) -> None:
        """Show the doors the engines as they are now, before the core may name a new one."""
        self.door.engines = {route.name: route for route in self._fleet.routes}
        if self.line is not None:
            self.line.engines = {route.name: route for route in _line_routes(self._fleet)}

    async def drain(self) -> None:
        """Refuse new work, let running work end within the grace, and return when nothing is left.

        Queued attempts are yielded at once; connections close after their answer. Readiness turns to 503 first.
        """
        self.draining = True
        self.server.drain()
        grace_s = self.settings.drain_grace_s
        self.driver.post(Draining(grace_s))
        if self.line is not None:
            self.line.drain()
        loop = asyncio.get_running_loop()
        by = loop.time() + grace_s + _DRAIN_MARGIN_S
        while (self._ongoing() or self._connections()) and loop.time() < by:
            if not self._ongoing():
                by = min(by, loop.time() + _DRAIN_MARGIN_S)
            await asyncio.sleep(_DRAIN_LOOK_S)

    @property
    def fleet(self) -> Fleet:
        """The engines, with their connections and what watches them."""
        return self._fleet

    @property
    def under_way(self) -> int:
        """How many requests and jobs are not over, over all doors."""
        return self._ongoing()

    def _ongoing(self) -> int:
        return self.door.ongoing + (self.line.ongoing if self.line is not None else 0)

    def _connections(self) -> int:
        return self.server.connections + (self.line.connections if self.line is not None else 0)

    def _other_connections(self) -> int:
        """Return how many connections are open that are no client's: to engines, and of the admin door."""
        return self._fleet.connections + (self.admin.connections if self.admin is not None else 0)

    async def stop(self) -> None:
        """Close every door and connection at once; harmless when never started."""
        self.door.stop()
        self._fleet.stop()
        await self.server.close()
        if self.line is not None:
            await self.line.close()
        self._fleet.close()
        if self.admin is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self.admin.stop()
        self.door.long_bodies.close()
        self.driver.close()
        self.observers.close()


def _line_routes(fleet: Fleet) -> list[LineRoute]:
    return [LineRoute(*route) for route in fleet.routes]


def _plain(line: LineAddress | None) -> LineAddress | None:
    """Leave out the context: of the same files there may be two."""
    return None if line is None else replace(line, ssl=None)


def _secured(line: LineAddress | None) -> bool:
    return line is not None and line.ssl is not None


def _fixed(before: GatewaySettings, after: GatewaySettings) -> tuple[str, ...]:
    """Name what differs and belongs to sockets that are open: addresses, and the other doors as a whole."""
    differing = {
        "listen.host": before.host != after.host,
        "listen.port": before.port != after.port,
        "admin": before.admin != after.admin,
        "records": before.observers != after.observers,
        "line": _plain(before.line) != _plain(after.line)
        or _secured(before.line) is not _secured(after.line),
    }
    return tuple(name for name, differs in differing.items() if differs)
