"""An interrupt before a command begins: it would be a traceback, or be swallowed by what builds a schema."""

import os
import signal


def end_at_once() -> None:
    """Have an interrupt end this process until `raise_again`; one that is started with interrupts ignored goes on ignoring them."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def raise_again() -> None:
    """Have an interrupt be a KeyboardInterrupt again: a command that has begun has something to tidy up."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(*_: object) -> None:
    os._exit(130)  # `ExitCode.INTERRUPTED`, which takes longer to import than all this
