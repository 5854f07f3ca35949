"""Whether what a gate may take fits into its container or machine: the kernel kills it where memory ends, and files are sockets."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from millgate.config.units import format_size
from millgate.wiring.chosen import ChosenNumber

# docs/capacity.md: the idle process, its appointments, its records, and the reader of long bodies before it reads one.
_WITHOUT_BODIES: Final = 103_000_000
# The reader takes up to so many times a body of JSON that it reads (docs/security.md).
_READ: Final = 5
# docs/capacity.md: what 1,024 open files have room for, the limit of most hosts.
_USUAL_CLIENTS: Final = 462


def memory_choice(
    byte_budget: int, body_bytes: int, workers: int, root: Path = Path("/")
) -> list[ChosenNumber]:
    """Return a line of the banner where all bounds together are more than there is; none where they fit."""
    most = workers * (_WITHOUT_BODIES + byte_budget + _READ * body_bytes)
    there = memory_bytes(root)
    if most <= there:
        return []
    why = (
        f"may be killed: the gate takes up to {most / 1e6:.0f} MB, and its container or machine has {there / 1e6:.0f}; "
        "lower this and limits.body, or give it more"
    )
    return [ChosenNumber("limits.byte_budget", format_size(byte_budget), why)]


def connections_choice(most_clients: int) -> list[ChosenNumber]:
    """Return a line of the banner where the limit of open files leaves room for few clients; none where it is that of most hosts."""
    if most_clients >= _USUAL_CLIENTS:
        return []
    why = "clients at once in each process: the hard limit of open files (ulimit -Hn) has room for no more; raise it"
    return [ChosenNumber("limits.connections", str(most_clients), why)]


def memory_bytes(root: Path = Path("/")) -> int:
    """Return how much memory this process may have: by its cgroup, of either version, and by the machine."""
    least = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for file in _limit_files(root):
        with suppress(OSError, ValueError):  # there is no such file, or it says `max`
            least = min(least, int(file.read_text(encoding="ascii")))
    return least


def _limit_files(root: Path) -> list[Path]:
    """Return where limits of its cgroup and those above it may stand; a container sees its own as the topmost."""
    mounted, files = root / "sys/fs/cgroup", []
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers not in {"", "memory"}:
                continue
            top = mounted / controllers
            name = "memory.limit_in_bytes" if controllers else "memory.max"
            own = top / path.lstrip("/")
            files += [folder / name for folder in (own, *own.parents) if folder.is_relative_to(top)]
    return files
