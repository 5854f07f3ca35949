"""Child processes that cannot outlive a demo: started, awaited until ready, asked to stop, made to stop.

Each child is `python -m millgate ...`, or a program that it is compared with, in a session of its own. So a
Ctrl-C in the terminal reaches this process alone and this process decides what happens to its children. Killed, it
cannot decide any more: then the kernel ends them.
"""

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import IO, Self

READY_WITHIN_S = 20.0
"""A Python process with a web framework starts in 1 to 2 s; ten times that on a busy two-core machine."""
STOP_WITHIN_S = 3.0
"""After this a child that was asked to stop is killed: a demo has nothing to drain for."""
LAST_LINES = 20
COMMAND = (sys.executable, "-u", "-P", "-m", "millgate")
"""What a child runs unless told otherwise: this package. Without `-P` a `redis.py` in the working directory were the library."""
_PATH = os.pathsep.join(filter(None, sys.path))


_PR_SET_PDEATHSIG = 1
"""From <sys/prctl.h>; only Linux has it, elsewhere a killed parent leaves its children."""
_LIBRARY = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class ChildError(RuntimeError):
    """A child did not start or died; the text carries the last lines that it wrote."""


class Child:
    """One running child, whose stderr is read for its whole life so that it never blocks on it.

    `inherited` are file descriptors that it keeps from this process.
    """

    def __init__(
        self, arguments: Sequence[str], program: Sequence[str] | None = None, inherited: Sequence[int] = ()
    ) -> None:
        self.name = f"millgate {arguments[0]}" if program is None else Path(program[0]).name
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._found: dict[str, str] = {}
        self._news = threading.Condition()
        self._patterns: dict[str, re.Pattern[str]] = {}
        self._process = subprocess.Popen(
            [*(program or COMMAND), *arguments],
            pass_fds=inherited,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=partial(_die_with, os.getpid()),  # noqa: PLW1509 - one system call, no lock is taken
            env={**os.environ, "PYTHONPATH": _PATH, "NO_COLOR": "1", "COLUMNS": "200"},
        )
        assert self._process.stderr is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stderr,), daemon=True)

    def await_ready(self, patterns: dict[str, str], within_s: float = READY_WITHIN_S) -> dict[str, str]:
        """Return the first group of each pattern once all have appeared on the child's stderr.

        Raises ChildError when the child dies first or takes too long.
        """
        self._patterns = {name: re.compile(pattern) for name, pattern in patterns.items()}
        self._reader.start()
        ends_at = time.monotonic() + within_s
        with self._news:
            while len(self._found) < len(patterns):
                left_s = ends_at - time.monotonic()
                if left_s <= 0 or self._process.poll() is not None:
                    raise ChildError(f"{self.name} did not become ready:\n{self._last_words()}")
                self._news.wait(min(left_s, 0.1))
        return dict(self._found)

    def check(self) -> None:
        """Raise ChildError when the child has died."""
        if self._process.poll() is not None:
            raise ChildError(f"{self.name} ended with {self._process.returncode}:\n{self._last_words()}")

    def ask_to_stop(self) -> None:
        """Send SIGTERM to a child that still runs."""
        if self._process.poll() is None:
            self._process.terminate()

    def stop(self) -> None:
        """End the child: asked at first, killed when it does not listen; returns when it is gone."""
        self.ask_to_stop()
        try:
            self._process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._reader.is_alive():
            self._reader.join(1.0)
        assert self._process.stderr is not None
        self._process.stderr.close()

    @property
    def process_id(self) -> int:
        """The operating system's number for this child."""
        return self._process.pid

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            with self._news:
                self._lines.append(line.rstrip())
                for name, pattern in self._patterns.items():
                    if name not in self._found and (match := pattern.search(line)):
                        self._found[name] = match[1]
                self._news.notify_all()

    def _last_words(self) -> str:
        return "\n".join(self._lines) or "(it wrote nothing)"


class Children:
    """A `with` block that owns children: whatever ends the block, Ctrl-C and SIGTERM included, ends them."""

    def __init__(self) -> None:
        self._children: list[Child] = []

    def start(
        self, arguments: Sequence[str], program: Sequence[str] | None = None, inherited: Sequence[int] = ()
    ) -> Child:
        """Start `millgate`, or another program, with these arguments; it is stopped with the block at the latest."""
        child = Child(arguments, program, inherited)
        self._children.append(child)
        return child

    def stop(self, child: Child) -> None:
        """Stop one child before the block ends."""
        child.stop()
        self._children.remove(child)

    def __enter__(self) -> Self:
        if _in_main_thread():
            signal.signal(signal.SIGTERM, _leave)
        return self

    def __exit__(self, *_: object) -> None:
        if _in_main_thread():
            # A second Ctrl-C must not leave half of them behind; stopping is bounded.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        for child in self._children:
            child.ask_to_stop()
        while self._children:
            self._children.pop().stop()
        if _in_main_thread():
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _die_with(parent: int) -> None:
    """Run in the child before its program: ask for SIGTERM when the parent dies, and look whether it has."""
    if _LIBRARY is not None:
        _LIBRARY.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)


def _in_main_thread() -> bool:
    """Only there may signal handlers be set."""
    return threading.current_thread() is threading.main_thread()


def _leave(number: int, frame: FrameType | None) -> None:
    """Turn SIGTERM into an ordinary exit, so that `with` blocks end; 128 + signal is the shell's convention."""
    del frame
    raise SystemExit(128 + number)
