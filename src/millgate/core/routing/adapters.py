"""Which adapters (LoRA) are loaded on which engine, and which of them are in use?

An engine runs requests of so many adapters at once (vLLM's `--max-loras`), and loads another in the place of one that
no request uses, the one that was used least recently. So requests for an adapter stay where it is, until they would
wait there for longer than it takes to load it elsewhere. What an engine has no slot for it is not asked for: the gate
holds it, and `governor/adapter_turns` says whose turn is next.
"""

from collections.abc import Iterable
from math import inf


class AdapterPlaces:
    """The adapters of one engine: those that it may be asked for, those that are loaded with their last use, least recently used first, and the `users` of each.

    `since` is when the turn of each that is in use began, and `owners` the tenant that it began with. `kept` are slots
    that wait for an adapter, by its name: the one whose place it takes gets no new request here, and `empty_since` is
    when that was no longer in use. `elsewhere` are those that run here for others than this gate. `slots` None is
    unknown, and holds nothing.
    """

    def __init__(self) -> None:
        self.names: frozenset[str] = frozenset()
        self.slots: int | None = None
        self.told_slots: int | None = None
        self.is_learned = False
        self.load_s = 0.0
        self.loaded: dict[str, float] = {}
        self.loads = 0
        self.users: dict[str, dict[int, None]] = {}
        self.since: dict[str, float] = {}
        self.owners: dict[str, str] = {}
        self.kept: dict[str, str] = {}
        self.empty_since: dict[str, float] = {}
        self.elsewhere: tuple[str, ...] = ()
        self.seen_at = -inf

    def configured(self, names: tuple[str, ...], slots: int | None, load_s: float) -> None:
        """Take what the configuration says; what is loaded and in use stays so."""
        self.names, self.load_s = frozenset(names), load_s
        self.is_learned = slots is None
        self.slots = self.told_slots if slots is None else slots
        kept = [each for each in self.loaded.items() if each[0] in self.names]
        self.loaded = dict(kept[-(self.slots or 1) :])

    def seen(self, slots: int, running: tuple[str, ...], at: float) -> None:
        """Take what the engine says itself at this time: how many slots it has, where the configuration does not say, and which adapters run."""
        self.told_slots, self.seen_at = slots, at
        if self.is_learned:
            self.slots = slots
        self.elsewhere = tuple(
            [each for each in running if each not in self.users and self.empty_since.get(each, -inf) < at]
        )

    def forgets_elsewhere(self, before: float) -> None:
        """Take what was seen before this time for unknown."""
        if self.elsewhere and self.seen_at < before:
            self.elsewhere = ()

    def takes(self, name: str) -> bool:
        """Return whether a request for this one may start here now, as far as adapters are concerned."""
        if self.slots is None or name not in self.names:
            return True
        if name in self.users or name in self.elsewhere:
            return name not in self.kept.values()
        kept = [
            each
            for each, victim in self.kept.items()
            if each != name and victim not in self.users and victim not in self.elsewhere
        ]
        elsewhere = len([each for each in self.elsewhere if each not in self.users])
        return len(self.users) + elsewhere + len(kept) < self.slots

    def use(self, name: str, tenant: str, attempt: int, now: float) -> None:
        """Have this one loaded, in the place of one that is not in use if none is free."""
        if name in self.loaded:
            del self.loaded[name]
        else:
            self.loads += 1
            while len(self.loaded) >= (self.slots or 1):
                del self.loaded[self._least_recent()]
        self.loaded[name] = now
        if name not in self.users:
            self.users[name] = {}
            self.since[name], self.owners[name] = now, tenant
        self.users[name][attempt] = None

    def done(self, name: str, attempt: int, now: float) -> bool:
        """A request for this one has ended; return whether it is no longer in use."""
        users = self.users.get(name)
        if users is None or users.pop(attempt, self) is self or users:
            return False
        del self.users[name], self.since[name], self.owners[name]
        self.empty_since[name] = now
        return True

    def keep(self, name: str, victim: str) -> None:
        """Keep the slot of the `victim`, which gets no new request here, for this one."""
        self.kept[name] = victim

    def let_go(self, name: str) -> None:
        """Keep no slot for this one any longer."""
        self.kept.pop(name, None)

    def _least_recent(self) -> str:
        """Return the adapter whose place is taken next: one that is not in use, if there is any."""
        for name in self.loaded:
            if name not in self.users:
                return name
        return next(iter(self.loaded))

    def cost_s(self, name: str, service_s: float, now: float) -> float:
        """Return what it costs to load it: another that has its place is waited for while it is in use, and loaded again."""
        if name not in self.names or name in self.loaded:
            return 0.0
        if len(self.loaded) < (self.slots or 1):
            return self.load_s
        displaced = self._least_recent()
        if displaced not in self.users:
            return 2.0 * self.load_s
        return 2.0 * self.load_s + max(0.0, self.loaded[displaced] + service_s - now)


class Adapters:
    """The adapters of all engines, which are known by their numbers in the index of prefixes; `names` are those of any."""

    def __init__(self) -> None:
        self._engines: dict[int, AdapterPlaces] = {}
        self.names: frozenset[str] = frozenset()

    def enrol(self, number: int, names: tuple[str, ...], slots: int | None, load_s: float) -> None:
        """This engine may be asked for these; what is loaded there stays so."""
        known = self._engines.get(number) or AdapterPlaces()
        if names or known.users:
            self._engines[number] = known
            known.configured(names, slots, load_s)
        else:
            self._engines.pop(number, None)
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

    def of(self, number: int) -> AdapterPlaces | None:
        """Return the adapters of this engine, None where it has none."""
        return self._engines.get(number)

    def every(self) -> Iterable[AdapterPlaces]:
        """Return the adapters of each engine that has any."""
        return self._engines.values()

    def cost_s(self, number: int, model: str, service_s: float, now: float) -> float:
        """Return what a request for this model adds by loading its adapter there, where a request takes so long."""
        slots = self._engines.get(number)
        return 0.0 if slots is None else slots.cost_s(model, service_s, now)

    def load_s(self, number: int, model: str) -> float:
        """Return how long its first token waits for its adapter to be loaded there."""
        slots = self._engines.get(number)
        if slots is None or model not in slots.names or model in slots.loaded:
            return 0.0
        return slots.load_s

    def loads(self, number: int) -> int:
        """Return how many were loaded there."""
        slots = self._engines.get(number)
        return 0 if slots is None else slots.loads
