"""Which engines answer for a model, and what waits for them: routes, and the pools that they form.

A *route* is the set of engines that serve a model. Work waits by lane and route, so that a full engine stops only
what needs it. A *pool* is a set of engines that share work: routes that overlap are one pool. Permits come free by
pool, so expected waits and appointments are counted by pool too. With one pool, the usual case,
every question here is one attribute.
"""

from collections.abc import Iterable, Sequence

from millgate.core.state.engine import Engine
from millgate.core.state.pool import Pool, Route
from millgate.core.tickets import Appointments


class Routes:
    """Finds the route of a model; built when engines come or leave, and told when one goes up or down."""

    __slots__ = ("_by_model", "_pinned", "_pool_of", "_unlisted", "every", "pools")

    def __init__(
        self, engines: Sequence[Engine], max_appointments: int, now: float, before: "Routes | None" = None
    ) -> None:
        serving = _serving(engines)
        groups = _overlapping(serving.values())
        known = [] if before is None else [pool.appointments for pool in before.pools]
        if len(known) != len(groups):
            # The first keep their memory; a request that returns to another pool is a new one there.
            known = [*known[:1], *(Appointments(max_appointments // len(groups)) for _ in groups)][
                : len(groups)
            ]
        self.pools: list[Pool] = [
            Pool(group, appointments, now) for group, appointments in zip(groups, known, strict=True)
        ]
        self._pool_of: dict[Engine, Pool] = {engine: pool for pool in self.pools for engine in pool.engines}
        if before is not None:
            self._pool_of.update(before.of_retired(now))
        by_engines: dict[tuple[Engine, ...], Route] = {}
        for members in serving.values():
            pool = self._pool_of[members[0]] if members else self.pools[0]
            by_engines.setdefault(members, Route(members, pool))
        self.every = list(by_engines.values())
        self._unlisted = by_engines[serving[None]]
        self._by_model = {
            model: by_engines[members] for model, members in serving.items() if model is not None
        }
        self._pinned = {engine.settings.name: Route((engine,), self._pool_of[engine]) for engine in engines}

    def pool_of(self, engine: Engine) -> Pool:
        """Return the pool of this engine."""
        return self._pool_of[engine]

    def of_retired(self, now: float) -> dict[Engine, Pool]:
        """Return a pool for each engine that is no longer configured and has permits out: it is there alone."""
        retired = [engine for engine in self._pool_of if engine.retired and engine.gate.streams]
        return {engine: self._pool_of[engine].left_to(engine, now) for engine in retired}

    def of(self, model: str) -> Route:
        """Return the route of this model."""
        return self._by_model.get(model, self._unlisted) if self._by_model else self._unlisted

    def pinned(self, engine: str, model: str) -> Route:
        """Return the route of what only this engine can answer; the model's own if the engine is not ours."""
        route = self._pinned.get(engine)
        return self.of(model) if route is None else route

    def turned(self) -> None:
        """Read anew which engines are up."""
        for route in (*self.every, *self._pinned.values()):
            route.turned()
        for pool in self.pools:
            pool.capacity_forecast.unsettle()


def _serving(engines: Sequence[Engine]) -> dict[str | None, tuple[Engine, ...]]:
    """Return the engines of each listed model; None stands for every model that no engine lists."""
    listed = {model: None for engine in engines for model in engine.settings.models}
    serving: dict[str | None, tuple[Engine, ...]] = {
        model: tuple(engine for engine in engines if _serves(engine, model)) for model in listed
    }
    unlisted = tuple(engine for engine in engines if not engine.settings.models)
    # Aliases and adapters: a model that no engine lists goes to the only set of engines there is (design section 10).
    alike = list(dict.fromkeys(serving.values()))
    serving[None] = alike[0] if not unlisted and len(alike) == 1 else unlisted
    return serving


def _serves(engine: Engine, model: str) -> bool:
    return not engine.settings.models or model in engine.settings.models


def _overlapping(sets: Iterable[tuple[Engine, ...]]) -> list[list[Engine]]:
    """Join the sets that share an engine; there is always at least one group, if an empty one."""
    groups: list[list[Engine]] = []
    for members in sets:
        joined = list(members)
        apart = []
        for group in groups:
            if any(engine in members for engine in group):
                joined += [engine for engine in group if engine not in joined]
            else:
                apart.append(group)
        groups = [*apart, joined] if joined else apart
    return groups or [[]]
