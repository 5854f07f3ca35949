"""Engines that come and go: looks names up and a file over, and says when there is something new.

A look-up runs in a thread, off the loop's path, one at a time for each name. One that fails, or finds nothing,
keeps the last answer: a name server that is down must not take the engines out, and whether they are there their health pages
say.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from millgate.observe.logs import ProcessLog
from millgate.sockets.addresses import Resolve, resolve

MOST_ADDRESSES: Final = 64
"""Of one name: as many as a gate may have engines."""
FILE_LOOK_S: Final = 1.0
"""Between two looks at the file: far below the minute in which Kubernetes brings a changed ConfigMap to a pod."""
FIRST_LOOK_S: Final = 3.0
"""How long a start or a reload waits for the first answer to a name: less than the default timeout of one name server, 5 s."""

Stamp = tuple[int, int, int]
StampOf = Callable[[Path], Stamp | None]
"""Returns what tells one state of a file from another, None where there is no file."""


@dataclass(frozen=True, slots=True)
class DiscoverySettings:
    """The names whose addresses are engines, and the file of engines with the state in which it was read."""

    names: tuple[str, ...] = ()
    every_s: float = 5.0
    file: str | None = None
    stamp: Stamp | None = None


class Discovery:
    """Watches names and a file on the running loop. Use: `find`, `aim`, `start`, both again at each reload, `stop`."""

    def __init__(self, stamp_of: StampOf, look_up: Resolve = resolve) -> None:
        self.found: dict[str, tuple[str, ...]] = {}
        """The addresses of each name that has been answered."""
        self._stamp_of = stamp_of
        self._look_up = look_up
        self._settings = DiscoverySettings()
        self._failures: dict[str, str] = {}
        self._overfull: set[str] = set()
        self._looking: dict[str, asyncio.Task[None]] = {}
        self._watching: asyncio.Task[None] | None = None
        self._log: ProcessLog | None = None
        self._on_addresses: Callable[[], None] | None = None
        self._on_file: Callable[[], None] | None = None

    async def find(self, names: Iterable[str]) -> None:
        """Look those of these names up that have no answer yet, for `FIRST_LOOK_S` at most."""
        looks = {asyncio.ensure_future(self._look(name)): name for name in names if name not in self.found}
        if looks:
            _done, late = await asyncio.wait(looks, timeout=FIRST_LOOK_S)
            for look in late:
                look.cancel()
                self._failed(looks[look], f"no answer within {FIRST_LOOK_S:.0f} s")

    def aim(self, settings: DiscoverySettings) -> None:
        """Watch these from now on, and forget what was found for other names."""
        self._settings = settings
        self.found = {name: self.found[name] for name in settings.names if name in self.found}
        self._failures = {name: self._failures[name] for name in settings.names if name in self._failures}
        if self._log is not None:
            self._watch()

    def start(self, log: ProcessLog, on_addresses: Callable[[], None], on_file: Callable[[], None]) -> None:
        """Watch: `on_addresses` is called when a name has other addresses, `on_file` when the file has changed."""
        self._log, self._on_addresses, self._on_file = log, on_addresses, on_file
        for name, why in self._failures.items():
            self._complain(name, why)
        self._watch()

    def stop(self) -> None:
        """Watch no more."""
        self._log = None
        for task in self._looking.values():
            task.cancel()
        self._looking.clear()
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None

    def _watch(self) -> None:
        loop, settings = asyncio.get_running_loop(), self._settings
        for name in [name for name in self._looking if name not in settings.names]:
            self._looking.pop(name).cancel()
        for name in settings.names:
            if name not in self._looking:
                self._looking[name] = loop.create_task(self._keep_looking(name))
        if self._watching is not None:
            self._watching.cancel()
        self._watching = None
        if settings.file is not None:
            self._watching = loop.create_task(self._watch_file(Path(settings.file), settings.stamp))

    # ---- names

    async def _keep_looking(self, name: str) -> None:
        while True:
            await asyncio.sleep(self._settings.every_s)
            if await self._look(name) and self._on_addresses is not None:
                self._on_addresses()

    async def _look(self, name: str) -> bool:
        """Look a name up; return whether it has other addresses than before."""
        before = self.found.get(name, ())
        try:
            answer = await self._look_up(name)
        except OSError as error:
            self._failed(name, error.strerror or str(error))
            return False
        if not answer:
            self._failed(name, "the answer holds no address")
            return False
        if self._failures.pop(name, None) is not None and self._log is not None:
            self._log.info("name found again", name=name, addresses=len(answer))
        self.found[name] = tuple(sorted(self._bounded(name, answer)))
        return self.found[name] != before

    def _bounded(self, name: str, answer: tuple[str, ...]) -> tuple[str, ...]:
        """Return as many addresses as there may be; those that are known stay, or a full gate would exchange its engines."""
        if len(answer) <= MOST_ADDRESSES:
            self._overfull.discard(name)
            return answer
        if name not in self._overfull and self._log is not None:
            self._overfull.add(name)
            self._log.warning(
                "name has too many addresses", name=name, addresses=len(answer), most=MOST_ADDRESSES
            )
        known = self.found.get(name, ())
        return tuple(sorted(answer, key=lambda each: each not in known))[:MOST_ADDRESSES]

    def _failed(self, name: str, why: str) -> None:
        if name not in self._failures:
            self._failures[name] = why
            self._complain(name, why)

    def _complain(self, name: str, why: str) -> None:
        if self._log is not None:
            kept = len(self.found.get(name, ()))
            self._log.warning(
                "name not found, its engines stay as they are", name=name, why=why, engines=kept
            )

    # ---- the file

    async def _watch_file(self, file: Path, read: Stamp | None) -> None:
        """Say so when the file is another than the one that was read, and the same in two looks: it may be being written."""
        before: Stamp | None = read
        while True:
            await asyncio.sleep(FILE_LOOK_S)
            try:
                now = await asyncio.to_thread(self._stamp_of, file)
            except RuntimeError:  # no thread is left
                continue
            if now != read and now == before and self._on_file is not None:
                read = now
                self._on_file()
            before = now
