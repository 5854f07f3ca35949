"""The engines of a gateway: their connections and their watches, exchanged while requests run."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from millgate.core.snapshot import Snapshot
from millgate.gateway.settings import EngineAddress
from millgate.http1.client import UpstreamPool, UpstreamSettings
from millgate.runtime.adapters import Adapters, AdapterWatch
from millgate.runtime.clock import Clock
from millgate.runtime.driver import Driver
from millgate.runtime.engines import EngineWatch, discover, is_well
from millgate.runtime.gauges import Gauges
from millgate.runtime.health import EngineStanding, HealthSettings
from millgate.runtime.verdicts import tell_quotas
from millgate.runtime.watched import HealthCheck
from millgate.servers.requests.fields import with_credential
from millgate.servers.requests.routes import Bootstrap, EngineRoute
from millgate.sockets.addresses import Resolve, resolve

HEALTH = HealthSettings()
"""How engines are looked at; each names its own page, or none."""
_UNSEEN = "its health page has not answered yet"
_NOWHERE = "no address was found for its name"


class _Engine(NamedTuple):
    """One engine's connections, and what watches its gauges, its adapters and its health, over pools of its own."""

    address: EngineAddress
    pool: UpstreamPool
    watch_pools: tuple[UpstreamPool, UpstreamPool]
    watch: EngineWatch
    adapters: AdapterWatch
    check: HealthCheck

    def start(self) -> None:
        """Begin to watch; of a name without an address there is nothing to see."""
        if not self.address.host:
            return
        if not self.address.metered:
            if self.address.metrics is not None:
                self.watch.start()
            self.adapters.start()
        self.check.start()

    def stop(self) -> None:
        self.watch.stop()
        self.adapters.stop()
        self.check.stop()

    @property
    def pools(self) -> tuple[UpstreamPool, ...]:
        return self.pool, *self.watch_pools

    @property
    def route(self) -> EngineRoute:
        address = self.address
        return EngineRoute(
            address.name,
            self.pool,
            address.base_path.encode(),
            self.watch.on_hangup,
            _credential(address),
            address.kv_lease_s,
            None if address.bootstrap_port is None else Bootstrap(address.host, address.bootstrap_port),
            address.models,
            self.check,
            self.watch_pools[0],
        )


class Fleet:
    """Owns what connects a gateway to its engines; use on the loop that runs it."""

    def __init__(
        self, addresses: tuple[EngineAddress, ...], settings: UpstreamSettings, driver: Driver, clock: Clock
    ) -> None:
        self._driver = driver
        self._clock = clock
        self._settings = settings
        self._started = False
        self.on_turn: Callable[[EngineStanding], None] = _untold
        """Told when an engine has gone down, when it is up again, and of failures of one that is alone."""
        self.on_look: Callable[[str, str], None] = _untold
        """Told of each look-up of an engine's name how it failed, empty where it did not."""
        self.on_size: Callable[[str, Gauges], None] = _untold
        """Told what an engine says of its size, and when it says something else."""
        self.on_adapters: Callable[[str, Adapters], None] | None = None
        """Told which adapters an engine has, and when it has others."""
        self._engines = {address.name: self._connect(address) for address in addresses}
        self._retired: list[_Engine] = []

    @property
    def routes(self) -> list[EngineRoute]:
        """The ways to the engines, in the order of the settings."""
        return [engine.route for engine in self._engines.values()]

    @property
    def standings(self) -> list[EngineStanding]:
        """How the engines stand, in the order of the settings."""
        return [engine.check.standing for engine in self._engines.values()]

    @property
    def connections(self) -> int:
        """How many connections to engines are open or being made, those of engines that are no longer ours too."""
        return sum(pool.open for engine in (*self._engines.values(), *self._retired) for pool in engine.pools)

    def start(self) -> None:
        """Begin to watch."""
        self._started = True
        for engine in self._engines.values():
            engine.start()

    def tell(self) -> None:
        """Say to the core how each engine stands: it knows one that has moved, or has come back, as it was before."""
        for engine in self._engines.values():
            self._driver.post(engine.check.told)

    def look(self) -> None:
        """Read every engine's gauges soon, and once more after that."""
        for engine in self._engines.values():
            engine.watch.on_hangup()

    def stop(self) -> None:
        """Stop watching."""
        for engine in self._engines.values():
            engine.stop()

    def close(self) -> None:
        """Close every connection, those of engines that are no longer ours too."""
        for engine in (*self._engines.values(), *self._retired):
            for pool in engine.pools:
                pool.close()

    def adopt(self, addresses: tuple[EngineAddress, ...], settings: UpstreamSettings) -> None:
        """Reach these engines from now on; calls to others go on to their end.

        An engine that is where it was keeps its connections, but not those made with other certificates.
        """
        self._settings = settings
        before, self._engines = self._engines, {}
        for address in addresses:
            known = before.pop(address.name, None)
            if known is not None and known.address.place == address.place:
                for pool in known.pools:
                    pool.adopt(settings, address.ssl, address.server_name)
                self._engines[address.name] = known._replace(address=address)
                known.check.drain(address.drains)
                continue
            if known is not None:
                self._retire(known)
            self._engines[address.name] = fresh = self._connect(address)
            if self._started:
                fresh.start()
        for engine in before.values():
            self._retire(engine)

    def _retire(self, engine: _Engine) -> None:
        """Keep it while calls to it are under way: attempts hold on to its pool."""
        engine.stop()
        for pool in engine.watch_pools:
            pool.close()
        self._retired = [old for old in self._retired if old.pool.open]
        self._retired.append(engine)

    def _connect(self, address: EngineAddress) -> _Engine:
        make = partial(_pool, settings=self._settings, look_up=self._look_up)
        pool, watch_pool = make(address), make(address)
        base, name = address.base_path.encode(), address.name
        gauge_port, gauge_target = address.gauges
        gauge_pool = make(replace(address, port=gauge_port))
        watch = EngineWatch(name, gauge_pool, self._driver, self._clock, target=gauge_target)
        watch.on_size = lambda gauges: self.on_size(name, gauges)
        adapters = AdapterWatch(
            watch_pool,
            base + b"/v1/models",
            lambda: with_credential([], _credential(self._engines[name].address)),
            lambda: self.on_adapters is not None and watch.last.engine is not None,
            partial(self._listed, name),
        )
        page = address.health
        settings = replace(HEALTH, target=None if page is None else base + page.encode())
        alone = partial(self._is_alone, name)
        unseen = "" if address.is_up else _UNSEEN if address.host else _NOWHERE
        check = HealthCheck(
            name, watch_pool, self._driver, self._clock, settings, alone, unseen, drains=address.drains
        )
        check.on_turn = self._turned
        check.is_shut = partial(self._is_shut, name) if address.metered else None
        check.is_common = partial(self._is_common, name)
        check.listen(pool)
        pool.on_head = partial(tell_quotas, self._driver, name) if address.metered else None
        return _Engine(address, pool, (watch_pool, gauge_pool), watch, adapters, check)

    async def _look_up(self, name: str) -> tuple[str, ...]:
        try:
            found = await resolve(name)
        except OSError as failure:
            self.on_look(name, failure.strerror or str(failure))
            raise
        self.on_look(name, "")
        return found

    def _turned(self, standing: EngineStanding) -> None:
        self.on_turn(standing)  # which is set later

    def _listed(self, name: str, adapters: Adapters) -> None:
        if self.on_adapters is not None:
            self.on_adapters(name, adapters)

    def _is_shut(self, name: str) -> bool:
        return any(each.is_shut for each in self._driver.snapshot().engines if each.name == name)

    def _others(self, name: str, seen: Snapshot) -> list[str]:
        """Return the other engines of its pool that are ours."""
        pool = next((each.engines for each in seen.pools if name in each.engines), ())
        return [other for other in self._engines if other != name and other in pool]

    def _is_common(self, name: str) -> bool:
        """Return whether half of the others in its pool have failed requests with a status lately, those that are out for it too."""
        others, now = self._others(name, self._driver.snapshot()), self._clock.now()
        complaining = sum([self._engines[other].check.health.complains(now) for other in others])
        return bool(others) and 2 * complaining >= len(others)

    def _is_alone(self, name: str) -> bool:
        """Return whether no other engine of its pool takes work: no provider's account that pauses, or whose breaker is open."""
        seen = self._driver.snapshot()
        paused = {
            each.name for each in seen.engines if each.is_shut or (each.account and each.account.paused_s)
        }
        return not any(
            other not in paused and self._engines[other].check.takes_work
            for other in self._others(name, seen)
        )


def _untold(*_news: object) -> None:
    """Tell no one: what only runs for a while may have no log."""


def _credential(address: EngineAddress) -> bytes | None:
    return None if address.api_key is None else address.api_key.encode()


def _pool(address: EngineAddress, settings: UpstreamSettings, look_up: Resolve = resolve) -> UpstreamPool:
    return UpstreamPool(
        address.host,
        address.port,
        settings=settings,
        ssl=address.ssl,
        server_name=address.server_name,
        look_up=look_up,
        proxy=address.proxy,
    )


async def answers(address: EngineAddress, within_s: float = 2.0) -> bool:
    """Return whether an engine's health page answers in time, as `HealthCheck` judges it; without one it does."""
    if address.health is None:
        return True
    with closing(_pool(address, UpstreamSettings(connect_s=within_s))) as pool:
        return await is_well(pool, (address.base_path + address.health).encode(), within_s)


async def ask_engine(address: EngineAddress, within_s: float = 2.0) -> Gauges | None:
    """Read an engine's gauges and the size of its KV cache once; None when it shows no metrics page in time."""
    port, target = address.gauges
    with closing(_pool(replace(address, port=port), UpstreamSettings(connect_s=within_s))) as pool:
        return await discover(pool, target, within_s)
