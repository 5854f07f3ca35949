"""The adapters of one engine (LoRA): so many are in its memory at once, one that is not has to be loaded first.

As vLLM does it. Running requests use at most `max_loras` different adapters, a request for one more waits until a place is
free, and requests behind it that need no place go on. An adapter that no request uses stays until its place is needed; the
least recently used one goes first. Loading takes the same time for all. No clock: the caller tells the time.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

ADAPTER_LOAD_S: Final = 0.5
"""A usual time to load one from a local disk: some hundred megabytes."""


class AdapterStart(NamedTuple):
    """A request that may begin: at once, or when its adapter is loaded."""

    key: int
    at_s: float


class AdapterSlots:
    """Which adapters are loaded, by how many requests each is used, and which requests wait for a place."""

    def __init__(self, max_loras: int, load_s: float) -> None:
        if max_loras < 1:
            raise ValueError(f"max_loras: must be at least 1, got {max_loras}")
        self.max_loras = max_loras
        self.loads = 0
        self._load_s = load_s
        self._ready_at: OrderedDict[str, float] = OrderedDict()
        self._users: dict[str, int] = {}
        self._adapters: dict[int, str] = {}
        self._waiting: dict[int, str] = {}

    @property
    def running(self) -> tuple[str, ...]:
        """The adapters that requests use, by name."""
        return tuple(sorted(self._users))

    @property
    def waiting(self) -> tuple[str, ...]:
        """The adapters that requests wait for, by name."""
        return tuple(sorted(set(self._waiting.values())))

    def ask(self, adapter: str, key: int, now: float) -> AdapterStart | None:
        """Let a request use an adapter; None when it has to wait until `leave` names it."""
        if adapter not in self._ready_at and not self._load(adapter, now):
            self._waiting[key] = adapter
            return None
        return self._use(adapter, key, now)

    def leave(self, key: int, now: float) -> list[AdapterStart]:
        """Let a request go, whether it ran or waits, and return those that may begin in its place."""
        if self._waiting.pop(key, None) is not None:
            return []
        adapter = self._adapters.pop(key, None)
        if adapter is None:
            return []
        self._users[adapter] -= 1
        if self._users[adapter]:
            return []
        del self._users[adapter]
        return self._serve(now)

    def _serve(self, now: float) -> list[AdapterStart]:
        started = []
        for key, adapter in list(self._waiting.items()):
            if adapter in self._ready_at or self._load(adapter, now):
                del self._waiting[key]
                started.append(self._use(adapter, key, now))
        return started

    def _use(self, adapter: str, key: int, now: float) -> AdapterStart:
        self._users[adapter] = self._users.get(adapter, 0) + 1
        self._adapters[key] = adapter
        self._ready_at.move_to_end(adapter)
        return AdapterStart(key, max(now, self._ready_at[adapter]))

    def _load(self, adapter: str, now: float) -> bool:
        """Begin to load an adapter, in the place of an unused one if none is free; False when all are in use."""
        if len(self._ready_at) >= self.max_loras:
            unused = next((name for name in self._ready_at if name not in self._users), None)
            if unused is None:
                return False
            del self._ready_at[unused]
        self._ready_at[adapter] = now + self._load_s
        self.loads += 1
        return True
