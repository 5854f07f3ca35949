"""Which engines answer for a model, and what waits for them: routes, and the pools that they form.

A *route* is the set of engines that serve a model. Work waits by lane and route, so that a full engine stops only
what needs it. A *pool* is a set of engines that share work: routes that overlap are one pool. Permits come free by
pool, so expected waits and the places of yielded clients are counted by pool too. With one pool, the usual case,
every question here is one attribute.
"""

from collections.abc import Iterable, Sequence

from millgate.core.governor.capacity_forecast import CapacityForecast
from millgate.core.governor.records import Attempt, Engine, Pool, Route
from millgate.core.tickets import Places


class Routes:
    """Finds the route of a model; built when engines come or leave, and told when one goes up or down."""

    __slots__ = ("_by_model", "_engines", "_pinned", "_unlisted", "every", "pools")

    def __init__(
        self,
        engines: Sequence[Engine],
        attempts: dict[int, Attempt],
        max_places: int,
        known: Sequence[Places],
        now: float,
    ) -> None:
        self._engines = {engine.settings.name: engine for engine in engines}
        self._pinned: dict[str, Route] = {}
        serving = _serving(engines)
        groups = _overlapping(serving.values())
        if len(known) != len(groups):
            # The first keep their memory; who comes back to another pool is a new request there.
            known = [*known[:1], *(Places(max_places // len(groups)) for _ in groups)][: len(groups)]
        self.pools = [
            Pool(group, places, CapacityForecast(attempts, group), now)
            for group, places in zip(groups, known, strict=True)
        ]
        by_engines: dict[tuple[Engine, ...], Route] = {}
        for members in serving.values():
            pool = next(pool for pool in self.pools if not members or members[0] in pool.engines)
            by_engines.setdefault(members, Route(members, pool))
        self.every = list(by_engines.values())
        self._unlisted = by_engines[serving[None]]
        self._by_model = {
            model: by_engines[members] for model, members in serving.items() if model is not None
        }

    def of(self, model: str) -> Route:
        """Return the route of this model."""
        return self._by_model.get(model, self._unlisted) if self._by_model else self._unlisted

    def pinned(self, engine: str, model: str) -> Route:
        """Return the route of what only this engine can answer; the model's own if the engine is not ours."""
        known = self._engines.get(engine)
        if known is None:
            return self.of(model)
        route = self._pinned.get(engine)
        if route is None:
            route = self._pinned[engine] = Route((known,), known.pool)
            route.up = (known,) if known.up else ()
        return route

    def turned(self) -> None:
        """Read anew which engines are up."""
        for route in (*self.every, *self._pinned.values()):
            route.up = tuple(engine for engine in route.engines if engine.up)
        for pool in self.pools:
            pool.capacity_forecast.unsettle()


def _serving(engines: Sequence[Engine]) -> dict[str | None, tuple[Engine, ...]]:
    """Return who serves each listed model; None stands for every model that nobody lists."""
    listed = {model: None for engine in engines for model in engine.settings.models}
    serving: dict[str | None, tuple[Engine, ...]] = {
        model: tuple(engine for engine in engines if engine.serves(model)) for model in listed
    }
    unlisted = tuple(engine for engine in engines if not engine.settings.models)
    # Aliases and adapters: a model that nobody lists goes to the only set of engines there is (design section 10).
    alike = list(dict.fromkeys(serving.values()))
    serving[None] = alike[0] if not unlisted and len(alike) == 1 else unlisted
    return serving


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
