"""Which adapters (LoRA) are loaded on which engine? What it takes to load one is a part of what an engine costs.

An engine has room for some of them at once, and loads another in the place of the one that was used least recently, as vLLM does
(`--max-loras`). So requests for an adapter stay where it is, until they would wait there for longer than it takes to load it elsewhere.
"""


class _Slots:
    """The adapters of one engine: those that it may be asked for, and those that are loaded with their last use, least recently used first."""

    __slots__ = ("load_s", "loaded", "loads", "names", "slots")

    def __init__(self, names: tuple[str, ...], slots: int, load_s: float) -> None:
        self.names, self.slots, self.load_s = frozenset(names), slots, load_s
        self.loaded: dict[str, float] = {}
        self.loads = 0

    def use(self, name: str, now: float) -> None:
        """Have this one loaded, in the place of another if none is free."""
        if name in self.loaded:
            del self.loaded[name]
        else:
            self.loads += 1
            while len(self.loaded) >= self.slots:
                del self.loaded[next(iter(self.loaded))]
        self.loaded[name] = now

    def displaces_s(self, service_s: float, now: float) -> float:
        """Return what it costs to take the place of another: that is waited for while it is in use, and loaded again."""
        if len(self.loaded) < self.slots:
            return 0.0
        last_used_at = next(iter(self.loaded.values()))
        return self.load_s + max(0.0, last_used_at + service_s - now)


class Adapters:
    """The adapters of all engines, which are known by their numbers in the index of prefixes; `names` are those of any."""

    __slots__ = ("_engines", "names")

    def __init__(self) -> None:
        self._engines: dict[int, _Slots] = {}
        self.names: frozenset[str] = frozenset()

    def enrol(self, number: int, names: tuple[str, ...], slots: int, load_s: float) -> None:
        """This engine may be asked for these; what is loaded there stays so."""
        before = self._engines.pop(number, None)
        if names:
            fresh = self._engines[number] = _Slots(names, slots, load_s)
            if before is not None:
                fresh.loads = before.loads
                fresh.loaded = dict(
                    [each for each in before.loaded.items() if each[0] in fresh.names][-slots:]
                )
        self._named()

    def retire(self, number: int) -> None:
        """This engine is gone; another one may have its number."""
        if self._engines.pop(number, None) is not None:
            self._named()

    def _named(self) -> None:
        self.names = frozenset([name for each in self._engines.values() for name in each.names])

    def forget(self, number: int) -> None:
        """This engine begins anew: nothing is loaded."""
        slots = self._engines.get(number)
        if slots is not None:
            slots.loaded = {}

    def cost_s(self, number: int, model: str, service_s: float, now: float) -> float:
        """Return what a request for this model adds by loading its adapter there, where a request takes so long."""
        slots = self._engines.get(number)
        if slots is None or model not in slots.names or model in slots.loaded:
            return 0.0
        return slots.load_s + slots.displaces_s(service_s, now)

    def use(self, number: int, model: str, now: float) -> None:
        """A request for this model starts there."""
        slots = self._engines.get(number)
        if slots is not None and model in slots.names:
            slots.use(model, now)

    def loads(self, number: int) -> int:
        """Return how many were loaded there."""
        slots = self._engines.get(number)
        return 0 if slots is None else slots.loads
