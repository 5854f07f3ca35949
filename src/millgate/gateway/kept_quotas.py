"""What was used of quotas, kept in a file while no gate runs: a budget of a day outlives a restart.

Each worker writes a file of its own, `PATH.SLOT`, and a process alone writes `PATH`. A process that starts counts what
all of them say together, and the first process of a gate puts them together in `PATH`.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec

from millgate.core.events import QuotasKept, QuotaUse
from millgate.gateway.doors import WorkerPlace
from millgate.runtime.driver import Driver

WRITTEN_EVERY_S: Final = 10.0
"""What a killed process has used since its last writing is forgotten; workers that start together have read before the first of them writes."""
_TOLD_EVERY_S: Final = 1.0
"""Before that the core is told again and again: while workers and replicas join, its shares of quotas still move, and a bucket keeps no more than its share."""
_LAST_WORDS_S: Final = 2.0
"""A silent disk keeps no process from ending."""


class QuotaRecord(NamedTuple):
    """One file: what was used at this time, in seconds since 1970."""

    written_s: float
    uses: tuple[QuotaUse, ...]


_Used = Annotated[float, msgspec.Meta(ge=0.0)]
_Part = Annotated[float, msgspec.Meta(gt=0.0)]
_ROW = tuple[str, str | None, str | None, str | None, _Used, _Part]
"""The fields of `QuotaUse`: of a compiled record their types cannot be read. The core divides by a part."""
_read_rows = msgspec.json.Decoder(tuple[float, list[_ROW]]).decode


def _decode(content: bytes) -> QuotaRecord:
    written_s, rows = _read_rows(content)
    return QuotaRecord(written_s, tuple(QuotaUse(*row) for row in rows))


class KeptQuotas:
    """Tells the core what was used before, and writes down what is used; `place` None is a process alone. Without a path it does nothing.

    `on_trouble` is told why nothing can be kept, and an empty text when it can again. A file that is no record of
    quotas stays as it is.
    """

    def __init__(self, path: str | None, driver: Driver, place: WorkerPlace | None) -> None:
        self._path, self._driver = path or "", driver
        self._is_alone = place is None
        self._own = self._path if place is None else f"{path}.{place.slot}"
        self._is_started = False
        self._task: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()
        self._trouble = ""
        self.on_trouble: Callable[[str], None] = lambda _why: None

    def start(self) -> None:
        """Tell the core what was used before, and write from now on; for a second time nothing."""
        if self._is_started or not self._path:
            return
        self._is_started = True
        record = QuotaRecord(time.time(), ())
        try:
            record = put_together(self._path) if self._is_alone else read_uses(self._path, self._own)
        except OSError as error:
            self._turn(error.strerror or str(error))
        except msgspec.MsgspecError as error:
            self._turn(f"the file is no record of quotas: {error}")
            return
        # From here on the wall clock may be set, as it is soon after a machine has started.
        kept_at = time.monotonic() - max(0.0, time.time() - record.written_s)
        self._tell(record, kept_at)
        self._task = asyncio.get_running_loop().create_task(self._go_on(record, kept_at))

    async def stop(self) -> None:
        """Write for the last time; harmless when never started."""
        if self._task is None:
            return
        self._ending.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._task, _LAST_WORDS_S)

    async def _go_on(self, record: QuotaRecord, kept_at: float) -> None:
        first_at = time.monotonic() + WRITTEN_EVERY_S
        while time.monotonic() < first_at and not await self._ends_within(_TOLD_EVERY_S):
            self._tell(record, kept_at)
        while not self._ending.is_set():
            await self._write()
            await self._ends_within(WRITTEN_EVERY_S)
        await self._write()

    async def _ends_within(self, wait_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ending.wait(), wait_s)
        return self._ending.is_set()

    def _tell(self, record: QuotaRecord, kept_at: float) -> None:
        self._driver.post(QuotasKept(record.uses, time.monotonic() - kept_at))

    async def _write(self) -> None:
        write = partial(_write, self._own, QuotaRecord(time.time(), self._driver.quota_uses()))
        try:
            await asyncio.get_running_loop().run_in_executor(None, write)
        except OSError as error:
            self._turn(error.strerror or str(error))
        except RuntimeError as error:  # no thread is left
            self._turn(str(error))
        else:
            self._turn("")

    def _turn(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            self.on_trouble(trouble)


def put_together(path: str) -> QuotaRecord:
    """Write to `path` what it or the files of workers say, and return that; OSError where that cannot be, MsgspecError where one is no such record."""
    record = read_uses(path)
    _write(path, record)
    for each in _of_workers(path):
        each.unlink()
    return record


def read_uses(path: str, own: str = "") -> QuotaRecord:
    """Return what the worker before has written to `own`, or else the sum of what workers have, or else what a process alone has.

    Nothing is used where there are no files.
    OSError where a file cannot be read, MsgspecError where one is no such record.
    """
    files = _of_workers(path)
    records = [_decode(each.read_bytes()) for each in files if Path(own) not in files or each == Path(own)]
    if not records:
        with contextlib.suppress(FileNotFoundError):
            if content := Path(path).read_bytes():
                return _decode(content)
        return QuotaRecord(time.time(), ())
    return QuotaRecord(max([each.written_s for each in records]), tuple(_sum(records)))


def _sum(records: list[QuotaRecord]) -> Iterator[QuotaUse]:
    """Add up what workers used. Each has an even part of a bucket with an owner, and may never have met that owner."""
    sums: dict[tuple[str | None, ...], QuotaUse] = {}
    for use in [use for record in records for use in record.uses]:
        is_owned = use[1:4] != (None, None, None)
        before = sums.get(use[:4], use._replace(used=0.0, part=0.0))
        part = use.part * len(records) if is_owned else before.part + use.part
        sums[use[:4]] = before._replace(used=before.used + use.used, part=min(1.0, part))
    yield from sums.values()


def _of_workers(path: str) -> list[Path]:
    named = Path(path)
    beside = sorted(named.parent.iterdir())
    return [each for each in beside if each.stem == named.name and each.suffix[1:].isdigit()]


def _write(path: str, record: QuotaRecord) -> None:
    """Write a file that is the old one or the new one, whatever happens meanwhile."""
    unfinished = Path(f"{path}.{os.getpid()}.new")  # a worker and the one that replaces it may write at once
    mode = partial(os.open, mode=0o640)  # names of tenants, as in the log of attempts
    with open(unfinished, "wb", opener=mode) as file:
        file.write(msgspec.json.encode(record))
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
