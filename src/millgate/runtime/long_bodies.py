"""Long bodies are read in a process of their own, so that the event loop goes on beside the longest of them.

The process is started for the first long body and ended when none has come for a while. It is a fresh interpreter
without the environment, the descriptors and the terminal of this one. A body that it dies of is refused, and the next
one gets a new process.
"""

import asyncio
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from millgate.dialects.contract import BadInputError, RequestFacts
from millgate.dialects.far_reading import Question, frame, read_reply

LONG_BYTES: Final = 1024 * 1024
"""A body beyond this is read elsewhere: a megabyte of the costliest kind holds the loop for 15 ms, a usual one for 1 ms."""
_SLICE_BYTES: Final = 256 * 1024
"""What one turn of the loop copies: 0.1 ms."""
_LONGEST_S: Final = 30.0
"""A reader that takes longer for one body hangs: 32 MB take half a second of CPU time at the most."""
_IDLE_S: Final = 60.0
"""After this long without a long body the process gives its 20 MB back."""
_REAP_S: Final = 0.05
_REPLY_BYTES: Final = 65_536
_STARTED_BY: Final = ("LD_LIBRARY_PATH", "PYTHONHOME")  # those of environment modules start by them alone
_CODE: Final = "import sys; from millgate.dialects.far_reading import serve; serve(int(sys.argv[1]))"


class ReaderLostError(Exception):
    """The process has ended, hung or could not be started: nothing is known of the body."""


class ReaderFaultError(Exception):
    """The reader raised what is no refusal; the text is the name of that, and nothing of the body."""


Outcome = RequestFacts | BadInputError | ReaderLostError | ReaderFaultError
"""What became of a body: its facts, or why there are none."""


class WaitingBody:
    """One body that is to be read; `told` is called once with the outcome, unless its client has left before."""

    def __init__(self, question: Question, body: bytes, told: Callable[[Outcome], None]) -> None:
        self.question = question
        self.body = body
        self.told: Callable[[Outcome], None] | None = told

    def gone(self) -> None:
        """Tell nothing to a client that has left; a body that is not yet on its way is not read at all."""
        self.told = None
        self.body = b""

    def tell(self, outcome: Outcome) -> None:
        """Tell it, and drop the body and the listener, which may hold this: a cycle would keep the body for long."""
        told, self.told = self.told, None
        self.body = b""
        if told is not None:
            told(outcome)


class LongBodies:
    """Reads bodies one after the other, in the order in which they came. Build it on the loop that runs it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[WaitingBody] = deque()
        self._current: WaitingBody | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._unsent: deque[memoryview] = deque()
        self._reply = bytearray()
        self._timer: asyncio.TimerHandle | None = None

    def read(self, question: Question, body: bytes, told: Callable[[Outcome], None]) -> WaitingBody:
        """Read this body; `told` is called in a later turn of the loop."""
        waiting = WaitingBody(question, body, told)
        self._waiting.append(waiting)
        if self._current is None:
            self._next()
        return waiting

    def close(self) -> None:
        """End the process; nothing that waits is told. The next body starts another one."""
        self._waiting.clear()
        self._current = None
        process = self._process
        self._end()
        if process is not None:
            process.wait()

    @property
    def running(self) -> bool:
        """Whether there is a process."""
        return self._process is not None

    # ---- one body after the other

    def _next(self) -> None:
        """Send the next body that is still wanted, or wait for one."""
        self._current = self._take()
        if self._current is None:
            self._until(_IDLE_S, self._end)
            return
        try:
            line = self._line or self._start()
        except OSError:
            self._loop.call_soon(self._lose)
            return
        question, body = self._current.question, self._current.body
        self._unsent += (memoryview(frame(question)), memoryview(body))
        self._until(_LONGEST_S, self._lose)
        self._loop.add_writer(line, self._send)

    def _take(self) -> WaitingBody | None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if waiting.told is not None:
                return waiting
        return None

    def _send(self) -> None:
        line, unsent = self._line, self._unsent
        assert line is not None
        try:
            sent = line.send(unsent[0][:_SLICE_BYTES])
        except BlockingIOError:
            return
        except OSError:
            self._lose()
            return
        unsent[0] = unsent[0][sent:]
        if not unsent[0]:
            unsent.popleft()
        if not unsent:
            self._loop.remove_writer(line)

    def _receive(self) -> None:
        """Take the reply to the body that was sent; the end of the process is one too."""
        assert self._line is not None
        try:
            data = self._line.recv(_REPLY_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or self._current is None:
            self._lose()
            return
        self._reply += data
        reply = read_reply(self._reply)
        if reply is None:
            return
        self._reply.clear()
        if reply.facts is not None:
            self._tell(_with_tuples(RequestFacts(*reply.facts)))
        elif reply.refused is not None:
            message, field, status, code = reply.refused
            self._tell(BadInputError(message, field, status=status, code=code))
        else:
            self._tell(ReaderFaultError(reply.fault))

    def _lose(self) -> None:
        """End a process that is of no use any more; what it was reading is lost."""
        self._end()
        if self._current is not None:
            self._tell(ReaderLostError())

    def _tell(self, outcome: Outcome) -> None:
        """Go on to the next body, then tell what became of this one."""
        current = self._current
        self._next()
        if current is not None:
            current.tell(outcome)

    # ---- the process

    def _start(self) -> socket.socket:
        """Start the process; OSError where that is not possible."""
        line, other = socket.socketpair()
        with other:
            try:
                self._process = subprocess.Popen(  # noqa: S603 - nothing in it is a client's
                    [sys.executable, "-P", "-c", _CODE, str(other.fileno())],
                    env={name: value for name, value in os.environ.items() if name in _STARTED_BY}
                    | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                    pass_fds=[other.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError:
                line.close()
                raise
        line.setblocking(False)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SLICE_BYTES)
        self._line = line
        self._loop.add_reader(line, self._receive)
        return line

    def _end(self) -> None:
        """Let go of the process and end it."""
        self._until(0.0, None)
        self._unsent.clear()
        self._reply.clear()
        line, self._line = self._line, None
        if line is not None:
            self._loop.remove_reader(line)
            self._loop.remove_writer(line)
            line.close()
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            self._reap(process)

    def _reap(self, process: "subprocess.Popen[bytes]") -> None:
        """Wait for its end without standing still."""
        if process.poll() is None:
            self._loop.call_later(_REAP_S, self._reap, process)

    def _until(self, wait_s: float, then: Callable[[], None] | None) -> None:
        """Call this when so much time has passed, in place of what was to be called before."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if then is None else self._loop.call_later(wait_s, then)


def _with_tuples(facts: RequestFacts) -> RequestFacts:
    """Make tuples of lists again: MessagePack has none, and the core's compiled code takes no list for one."""
    shape: Any = facts.shape
    marks: Any = facts.marks
    return facts._replace(
        shape=None if shape is None else tuple(shape),
        marks=None if marks is None else tuple(map(tuple, marks)),
    )
