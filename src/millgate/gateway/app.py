"""The gateway: builds every room around one governor, serves, drains, and takes everything down again."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from millgate.cluster.contract import Store
from millgate.core.events import Draining, Tick
from millgate.core.governor.verbs import Core
from millgate.core.instruments import StepObserver
from millgate.core.settings import Settings
from millgate.core.snapshot import Snapshot
from millgate.gateway.cluster import Membership, open_store
from millgate.gateway.doors import Doors, WorkerPlace
from millgate.gateway.fleet import Fleet
from millgate.gateway.kept_quotas import KeptQuotas
from millgate.gateway.settings import ClusterSettings, GatewaySettings, LineAddress
from millgate.gateway.told_news import ToldNews
from millgate.http1.server import ByteBudget, HttpServer
from millgate.observe.door import ClusterSnapshot, DoorSnapshot, ServiceSnapshot
from millgate.observe.live.page_model import open_feed
from millgate.observe.observers import Observers
from millgate.observe.prometheus import Exposition, HeptaminiCollector
from millgate.runtime.callers import Callers
from millgate.runtime.clock import MonotonicClock, boot_time
from millgate.runtime.driver import Driver
from millgate.servers.admin.server import AdminServer
from millgate.servers.admin.source import Readiness, Views
from millgate.servers.http import HttpDoor
from millgate.servers.line import LineDoor
from millgate.servers.requests.routes import EngineRoute
from millgate.sockets.descriptors import Descriptors

if TYPE_CHECKING:
    from millgate.gateway.extproc import ExtprocDoor

# How often a drain looks whether everything has ended: far below any supervisor's timeout for a process to leave.
_DRAIN_LOOK_S = 0.02
# The core cancels at the end of the grace; cancelled streams and last answers get this long to leave the sockets.
_DRAIN_MARGIN_S = 1.0
_ENGINE_SHARE = 0.5
"""Of the descriptors that clients and engines have together: every client that was let in can have one to an engine."""


class Gateway:
    """One gate in one process; build it on the loop that runs it.

    `governor` decides and must name its engines as `settings.engines` does. `store` takes the place of the cluster's
    own. Use: `start`, then `drain`, then `stop`; `stop` alone cuts everything.
    """

    def __init__(
        self,
        governor: Core,
        settings: GatewaySettings,
        *,
        observers: Sequence[StepObserver] = (),
        place: WorkerPlace | None = None,
        store: Store | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        if place is not None and not place.line:  # the file has one since the gate was started
            settings = replace(settings, line=None)
        self.settings = settings
        first_attempt = 1 if place is None else place.first_attempt
        self.driver = Driver(governor, MonotonicClock(), loop, first_attempt)
        self.driver.observers.extend(observers)
        self.draining = False
        self.reloads = self.failed_reloads = 0
        self.reload_success = True
        self.lines_dropped: Callable[[], int] = lambda: 0
        self.fleet = Fleet(settings.engines, settings.upstream, self.driver, MonotonicClock())
        """The engines, with their connections and what watches them."""
        callers = Callers(settings.callers, secret=b"" if place is None else place.secret)
        self.door = HttpDoor(self.driver, self.fleet.routes, settings.door, callers)
        self.driver.lag, self.door.lag.on_late = self.door.lag, partial(self.driver.post, Tick())
        budget = ByteBudget(settings.byte_budget)
        self.descriptors = Descriptors(self._other_connections, engine_share=_ENGINE_SHARE)
        self.server = HttpServer(
            self.door,
            limits=settings.server,
            budget=budget,
            tenant_of=self.door.entry.tenant,
            descriptors=self.descriptors,
        )
        self.line = None if settings.line is None else _line_door(self, settings.line, budget)
        self.extproc = self._open_extproc(budget)
        self.doors = Doors(self.server, self.line, place)
        self.observers = self._open_eyes()
        self.cluster = _join(settings.cluster, self.driver, store, self.door)
        self.kept_quotas = KeptQuotas(settings.quotas_file, self.driver, place)
        self.door.is_ready = lambda: self.ready().ready
        self.exposition = self._open_exposition()
        self.views = self._open_views()
        self.admin = self._open_admin()

    def _open_extproc(self, budget: ByteBudget) -> "ExtprocDoor | None":
        address = self.settings.extproc
        if address is None:
            return None
        from millgate.gateway.extproc import ExtprocDoor  # noqa: PLC0415 - its libraries are an extra

        return ExtprocDoor(address, self.door, budget, lambda: self.ready().ready)

    def _open_eyes(self) -> Observers:
        observers = Observers(
            self.settings.observers,
            boot=self.door.boot,
            first_lane=self.driver.snapshot().lanes[0].name,
            tenants=self.settings.callers.names,
            workers=self.settings.workers,
            defer=asyncio.get_running_loop().call_later,
        )
        self.driver.observers.append(observers.accounting)
        self.door.on_named = self.door.shedding.on_named = observers.accounting.named
        if observers.traces is not None:
            self.door.on_begun, self.door.traced = observers.accounting.begun, observers.traces.onward
        for door in (self.door,) if self.line is None else (self.door, self.line):
            door.on_upstream_named = observers.accounting.upstream_named
            door.on_cause = observers.accounting.failed_because
        return observers

    def _open_exposition(self) -> Exposition:
        exposition = Exposition(
            self.driver.snapshot,
            partial(_door_snapshot, self),
            partial(_service_snapshot, self),
            self.observers.traffic,
        )
        if self.line is not None and self.settings.line is not None and self.settings.line.metrics:
            exposition.add(HeptaminiCollector(self.line.readings))
        return exposition

    def _open_views(self) -> Views:
        words = str if self.cluster is None else self.cluster.words
        live = open_feed(
            self.driver.snapshot, self.driver.explain, self.observers, words, partial(_failing, self.fleet)
        )
        return Views(
            self.driver.snapshot,
            self.driver.explain,
            self.ready,
            self.exposition.render_in_pieces,
            live,
            traffic=self.observers.traffic,
            standings=lambda: self.fleet.standings,
            why=self.observers.why,
            cluster=self.cluster_snapshot,
        )

    def _open_admin(self) -> AdminServer | None:
        address = self.settings.admin
        if address is None or self.doors.is_shared:  # the supervisor has opened it
            return None
        return AdminServer(self.views, address.host, address.port, token=address.token, hosts=address.hosts)

    def cluster_snapshot(self) -> ClusterSnapshot | None:
        """Return this replica's lease, None where no limits are shared."""
        return None if self.cluster is None else self.cluster.snapshot()

    def ready(self) -> Readiness:
        """Return whether work should come here, with the state of each part."""
        return _readiness(self.driver.snapshot(), self.cluster, is_open=not self.draining)

    async def start(self) -> None:
        """Serve; raises OSError when an address is taken or not ours, with nothing left open."""
        if self.cluster is not None:
            self.cluster.on_loss = self.fleet.look
            self.cluster.on_lease = self.kept_quotas.start  # what is left is a part of its share
            self.cluster.start()
        try:
            await self.doors.open(self.settings)
            if self.extproc is not None:
                await self.extproc.listen(self.settings.engines, self.fleet.routes)
            if self.admin is not None:
                await self.admin.start()
        except OSError:
            await self.stop()
            raise
        if self.cluster is None:
            self.kept_quotas.start()
        self.door.start()
        self.fleet.start()

    @property
    def port(self) -> int:
        """The port of the HTTP door, 0 until it is open."""
        return self.doors.port

    @property
    def line_port(self) -> int:
        """The port of the line door, 0 until it is open or where there is none."""
        return self.doors.line_port

    async def adopt(self, settings: GatewaySettings, core: Settings) -> tuple[str, ...]:
        """Take new settings while serving; return those that need a restart, which stay as they were.

        Nothing that runs or waits is lost: lower limits only keep new work out, removed engines finish what they have.
        OSError changes nothing.
        """
        before = self.settings
        extproc = self.extproc
        found = [] if extproc is None else await extproc.renew(settings.engines, settings.extproc)
        if before.ssl is not None or settings.ssl is not None:
            await self.server.listeners.secure(settings.ssl)
        kept = settings.keeping(before)
        if self.line is not None and kept.line is not None and kept.line.ssl is not None:
            await self.line.listeners.secure(kept.line.ssl)
        self.settings = kept
        self.server.adopt(settings.server, settings.byte_budget)
        self.door.adopt(self.settings.door)
        self.door.entry.replace(settings.callers)
        self.fleet.adopt(settings.engines, settings.upstream)
        if extproc is not None:
            extproc.adopt(found, self.fleet.routes)
        _reroute(self, self.door.engines)
        self.driver.reconfigure(core)
        _reroute(self, {})
        if extproc is not None:
            extproc.forget_others(found)
        self.fleet.tell()
        there = self.driver.snapshot()  # with the lanes and engines that end what they have
        lanes, engines = [each.name for each in there.lanes], [each.name for each in there.engines]
        self.observers.adopt([core.lanes[0].name, *lanes], settings.callers.names, engines)
        return settings.needing_restart(before)

    async def drain(self) -> None:
        """Refuse new work, let running work end within the grace, and return when nothing is left.

        Queued attempts are yielded at once; connections close after their answer. Readiness turns to 503 first.
        """
        self.draining = True
        self.server.drain()
        if self.extproc is not None:
            self.extproc.drain()
        grace_s = self.settings.drain_grace_s
        self.driver.post(Draining(grace_s))
        if self.line is not None:
            self.line.drain()
        loop = asyncio.get_running_loop()
        by = loop.time() + grace_s + _DRAIN_MARGIN_S
        while (self.under_way or _connections(self)) and loop.time() < by:
            if not self.under_way:
                by = min(by, loop.time() + _DRAIN_MARGIN_S)
            await asyncio.sleep(_DRAIN_LOOK_S)

    @property
    def under_way(self) -> int:
        """How many requests and jobs are not over, over all doors."""
        return self.door.ongoing + (self.line.ongoing if self.line is not None else 0)

    def _other_connections(self) -> int:
        """Return how many connections are open that are no client's: to engines, and of the admin door."""
        return self.fleet.connections + (self.admin.connections if self.admin is not None else 0)

    async def stop(self) -> None:
        """Close every door and connection at once; harmless when never started."""
        self.door.stop()
        self.fleet.stop()
        await self.kept_quotas.stop()
        if self.cluster is not None:
            await self.cluster.leave()
        await self.server.close()
        if self.extproc is not None:
            await self.extproc.close()
        if self.line is not None:
            await self.line.close()
        self.fleet.close()
        if self.admin is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self.admin.stop()
        self.door.long_bodies.close()
        self.driver.close()
        self.observers.close()


def _join(
    cluster: ClusterSettings | None, driver: Driver, store: Store | None, door: HttpDoor
) -> Membership | None:
    """Return the membership; by a store of several hosts, clients without tickets are known at all of them."""
    if cluster is None:
        return None
    key = door.settings.ticket_key
    if store is not None or key is None:
        return Membership(cluster, driver, boot_time, store or open_store(cluster))
    redis, now = open_store(cluster), asyncio.get_running_loop().time
    told = ToldNews(redis, cluster.replica, key, cluster.renew_every_s, now, redis.now)
    door.told_clients, door.tickets.wall = told.clients, redis.now
    return Membership(cluster, driver, boot_time, redis, told)


def _reroute(gateway: Gateway, before: Mapping[str, EngineRoute]) -> None:
    """Show the doors the engines as they are now, before the core may name a new one, and `before` those that it may name still."""
    gateway.door.engines = {**before, **{route.name: route for route in gateway.fleet.routes}}
    if gateway.line is not None:
        gateway.line.engines = gateway.door.engines


def _connections(gateway: Gateway) -> int:
    return gateway.server.connections + (gateway.line.connections if gateway.line is not None else 0)


def _failing(fleet: Fleet) -> str:
    return "; ".join([f"{each.name}: {each.failing}" for each in fleet.standings if each.failing])


def _readiness(snapshot: Snapshot, cluster: Membership | None, *, is_open: bool) -> Readiness:
    detail = {"gate": "open" if is_open else "draining"}
    for each in snapshot.engines:  # an open breaker keeps no gate away: only requests show that it may close
        detail[f"engine {each.name}"] = "down" if not each.up else "breaker open" if each.is_shut else "up"
    if cluster is not None:
        detail["cluster"] = cluster.readiness
        is_open = is_open and cluster.is_open
    return Readiness(is_open and snapshot.is_served, detail)


def _service_snapshot(gateway: Gateway) -> ServiceSnapshot:
    return ServiceSnapshot(
        reload_success=gateway.reload_success,
        reloads=gateway.reloads,
        failed_reloads=gateway.failed_reloads,
        loop_lag_s=gateway.door.lag.lag_s,
        worst_loop_lag_s=gateway.door.lag.worst_s,
        log_lines_dropped=gateway.lines_dropped(),
        attempt_lines_dropped=gateway.observers.lines_dropped,
        cluster=gateway.cluster_snapshot(),
        traces_dropped=gateway.observers.traces_dropped,
    )


def _door_snapshot(gateway: Gateway) -> DoorSnapshot:
    door, server, extproc = gateway.door, gateway.server, gateway.extproc
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
        coalesced=door.shared.merged,
        **({} if extproc is None else extproc.counts()),
    )


def _line_door(gateway: Gateway, address: LineAddress, budget: ByteBudget) -> LineDoor:
    """Return the line door, which shares with the HTTP door what a process has one of."""
    door = gateway.door
    return LineDoor(
        gateway.driver,
        gateway.fleet.routes,
        address.door,
        budget,
        boot=door.boot,
        descriptors=gateway.descriptors,
        long_bodies=door.long_bodies,
        marker=door.marker,
        session_number=door.entry.callers.session_number,
        models=lambda: door.settings.models,
    )
