"""A server's stderr where no terminal reads it: every line is JSON, whichever part of the process writes it.

The log of the process writes JSON by itself (`observe/logs.py`). Here are the others: the banner, errors that end a command,
warnings, the loggers of libraries, and failures that nothing has caught. They go through the log's thread: a reader of stderr
that has stopped costs lines, and holds neither the loop nor the end of the process.
"""

import atexit
import contextlib
import io
import logging
import sys
import threading
from types import TracebackType

from millgate.observe.logs import json_line, places, stderr_writer


def write_json(level: str, event: str, **fields: object) -> None:
    """Write one line to stderr; a closed stderr is ignored."""
    with contextlib.suppress(OSError):
        sys.stderr.write(json_line(level, event, fields) + "\n")
        sys.stderr.flush()


def take_over() -> None:
    """Have warnings, loggers and uncaught failures of this process write JSON from now on, and no line wait for its reader."""
    sys.stderr = _Lines()
    atexit.register(stderr_writer().flush)
    sys.excepthook = _uncaught
    threading.excepthook = lambda thread: _uncaught(thread.exc_type, thread.exc_value, thread.exc_traceback)
    sys.unraisablehook = lambda lost: _uncaught(lost.exc_type, lost.exc_value, lost.exc_traceback)
    logging.basicConfig(handlers=[_JsonHandler(logging.WARNING)])
    logging.captureWarnings(True)


class _Lines(io.TextIOBase):
    """Stands for stderr: a thread writes what is written here."""

    def write(self, text: str) -> int:
        """Have it written soon, or lost and counted."""
        stderr_writer().add(text.encode("utf-8", "backslashreplace"), max(1, text.count("\n")))
        return len(text)


def _uncaught(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    """Tell kind and place of a failure, as the gateway does; its text may quote what a client sent."""
    del trace
    write_json("error", "uncaught failure", kind=kind.__name__, where=[] if error is None else places(error))


class _JsonHandler(logging.Handler):
    """Writes the records of the standard library's loggers."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record's logger and first line; the frames of an exception follow by place, as everywhere."""
        error = record.exc_info[1] if record.exc_info else None
        where = {} if error is None else {"kind": type(error).__name__, "where": places(error)}
        message = record.getMessage().partition("\n")[0]
        write_json(record.levelname.lower(), "library message", logger=record.name, message=message, **where)
