"""What a gateway was like before a test, and that it is like that again."""

import contextlib
from collections.abc import Iterator

from lab.upstream import FakeUpstream

from faults.process import GateProcess, until
from faults.talk import chat

# What comes and goes by itself: the watch of the engine's metrics page, the admin door's client, and the line to the reader of long bodies, which
# stays for a minute after the last.
_OWN_CONNECTIONS = 3

MOST_GROWTH = 0.05
"""Memory may end 5 % above where it began, beyond what malloc keeps for the next large body."""

KEPT_BYTES = 2 * 4 * 1024 * 1024
"""glibc gives nothing back before twice the largest block that it has freed is free at the heap's end (mallopt(3))."""


@contextlib.contextmanager
def unchanged(gate: GateProcess, upstream: FakeUpstream) -> Iterator[None]:
    """Hold a gateway after a test against what it was before."""
    settle(gate, upstream)
    gate.begin()
    descriptors, resident_bytes = gate.descriptors, gate.resident_bytes
    yield
    settle(gate, upstream)
    gate.ended()
    most = descriptors + _OWN_CONNECTIONS
    until(lambda: gate.descriptors <= most, what=f"{gate.descriptors} descriptors, {most} before")
    until(lambda: _has_shrunk(gate, resident_bytes), what="memory has grown")


def serve_one(gate: GateProcess) -> None:
    """Let the engine answer once: failures of several tests in a row would have it taken for down."""
    talk = gate.connect()
    talk.ask(chat())
    assert talk.answer().status in {200, 503}
    gate.hang_up()


def _has_shrunk(gate: GateProcess, before_bytes: int) -> bool:
    """Compare memory; what malloc only keeps for later, the next large body takes and gives back."""
    if gate.resident_bytes <= before_bytes * (1 + MOST_GROWTH) + KEPT_BYTES:
        return True
    talk = gate.connect()
    talk.ask(chat("x" * 4_000_000))
    assert talk.answer().status in {200, 503}
    gate.hang_up()
    gate.ended()
    return False


def settle(gate: GateProcess, upstream: FakeUpstream) -> None:
    """Let everybody leave."""
    assert gate.alive, gate.errors()
    gate.hang_up()
    upstream.on_loop(upstream.cut)


def warm_up(gate: GateProcess) -> None:
    """Let the process allocate what it keeps, so that memory is compared with a gate that has worked."""
    many = {str(number): 1 for number in range(200_000)}
    bodies = [chat(stream=True), chat("x" * 4_000_000), chat(logit_bias=many), chat(metadata=many)]
    for body in bodies + bodies[::-1]:
        talk = gate.connect()
        talk.ask(body)
        assert talk.answer().status in {200, 400, 503}
        gate.hang_up()
