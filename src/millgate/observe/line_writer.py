"""Lines for a file or standard output, written by a thread in batches, never in the way of a request.

The path appends lines, many at a time, to a bounded list. A thread takes what has gathered and writes it. A full disk, a
closed pipe or a reader that has stopped costs lines, which are counted, and never a request.
"""

import contextlib
import os
import select
import threading
import time
from collections import deque
from pathlib import Path
from typing import Final

MOST_WAITING_LINES: Final = 20_000
"""Lines between the path and a slow disk; at some 500 bytes each they hold 10 MB (INV-5)."""
STDOUT: Final = "-"
"""The path that means standard output."""
_BATCH_S: Final = 0.1
"""How long lines gather before they are written: at 5,000 attempts a second 500 lines for one write."""
_LAST_WORDS_S: Final = 1.0
_LOOK_S: Final = 0.01
_STDOUT: Final = 1
_AT_ONCE: Final = getattr(os, "O_NONBLOCK", 0)  # none on Windows
_PIPE_BYTES: Final = getattr(select, "PIPE_BUF", 512)  # Windows does not say; POSIX's least


class LineWriter:
    """Writes to the file at `path`, to standard output for `-`, or to a descriptor; raises OSError when it cannot be opened.

    At most `most_waiting` lines wait for it.
    """

    def __init__(self, path: str | int, most_waiting: int = MOST_WAITING_LINES) -> None:
        self._most_waiting = most_waiting
        self._crowded_out = 0
        self._unwritten = 0
        self._path = _STDOUT if path == STDOUT else path
        self._is_ours = isinstance(self._path, str)
        self._taken = 0
        self._done = 0
        self._waiting: deque[tuple[bytes, int]] = deque()
        self._told = False
        self._wake = threading.Event()
        self._ending = False
        self._reopening = False
        self._torn = False
        self._descriptor: int | None = _open(self._path)
        self._thread = threading.Thread(target=self._run, name="line writer", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """How many lines were lost: too many waited, or they could not be written."""
        # One counter for each thread, as with lines taken and done: neither waits for the other.
        return self._crowded_out + self._unwritten

    # ---- on the path

    def add(self, lines: bytes, count: int) -> None:
        """Write so many whole lines soon, or drop and count them when too many wait."""
        if self._taken - self._done + count > self._most_waiting:
            self._crowded_out += count
            return
        self._taken += count
        self._waiting.append((lines, count))
        if not self._told:
            self._told = True
            self._wake.set()

    def reopen(self) -> None:
        """Open the file anew soon and before the next line: its old name may have been moved away."""
        self._reopening = True
        self._wake.set()

    def flush(self) -> None:
        """Return when what waits is written or lost, within about a second."""
        by = time.monotonic() + _LAST_WORDS_S
        while self._done < self._taken and time.monotonic() < by:
            time.sleep(_LOOK_S)

    def close(self) -> None:
        """Write what waits, within about a second, and stop."""
        self._ending = True
        self._wake.set()
        self._thread.join(_LAST_WORDS_S)

    # ---- in the thread

    def _run(self) -> None:
        while not self._ending:
            self._wake.wait()
            if not self._ending:
                time.sleep(_BATCH_S)
            self._wake.clear()
            self._told = False
            self._write_waiting()
        self._write_waiting()
        if self._descriptor is not None and self._is_ours:
            os.close(self._descriptor)

    def _write_waiting(self) -> None:
        """Write what has gathered, piece by piece as it came: one piece of all would be copied once more."""
        batch = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if self._reopening or self._descriptor is None:
            self._open_again()
        for lines, count in batch:
            if not self._write(lines):
                self._unwritten += count
            self._done += count

    def _open_again(self) -> None:
        self._reopening = False
        if not self._is_ours:
            return
        before, self._descriptor = self._descriptor, None
        with contextlib.suppress(OSError):  # a full file server may say so at the close
            if before is not None:
                os.close(before)
        with contextlib.suppress(OSError):
            self._descriptor = _open(self._path)
            self._torn = self._torn and os.fstat(self._descriptor).st_size > 0

    def _write(self, data: bytes) -> bool:
        """Write lines whole; return False when they could not be, which loses all of them but what is on the disk."""
        if self._descriptor is None:
            return False
        if self._torn:
            data = b"\n" + data
        try:
            while data:
                data = data[os.write(self._descriptor, self._piece(data)) :]
                self._torn = True
        except OSError:
            return False
        self._torn = False
        return True

    def _piece(self, data: bytes) -> bytes:
        """Return what is written at once: of what workers share, whole lines that a pipe takes undivided (pipe(7))."""
        whole = 0 if self._is_ours else data.rfind(b"\n", 0, _PIPE_BYTES) + 1
        return data[:whole] if whole else data


def try_path(path: str) -> None:
    """Open this path as a writer would, and leave no new file behind; raises OSError when it cannot be opened."""
    if path == STDOUT:
        return
    was_there = Path(path).exists()
    os.close(_open(path))
    if not was_there:
        Path(path).resolve().unlink()  # where a link leads


def _open(path: str | int) -> int:
    if isinstance(path, int):
        return path
    # A named pipe without a reader is an error (ENXIO), where a blocking open would wait for one without a word.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _AT_ONCE, 0o640)
    if _AT_ONCE:
        os.set_blocking(descriptor, True)
    return descriptor
