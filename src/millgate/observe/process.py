"""What this process costs: memory, processor time, open files, read from /proc on demand."""

import os
import resource
import threading
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessSnapshot:
    """The process at one instant; None where this system does not tell."""

    cpu_s: float
    resident_bytes: int | None
    open_files: int | None
    max_files: int | None
    threads: int


def read_process() -> ProcessSnapshot:
    """Return the numbers of this process; never raises."""
    times = os.times()
    soft_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return ProcessSnapshot(
        cpu_s=times.user + times.system,
        resident_bytes=_resident_bytes(),
        open_files=_open_files(),
        max_files=None if soft_limit == resource.RLIM_INFINITY else soft_limit,
        threads=threading.active_count(),
    )


def _resident_bytes() -> int | None:
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * resource.getpagesize()


def _open_files() -> int | None:
    try:
        return sum(1 for _ in Path("/proc/self/fd").iterdir()) - 1  # listing opens one itself
    except OSError:
        return None
