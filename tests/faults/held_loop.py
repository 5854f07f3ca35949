"""How long untrusted bytes hold the event loop: the most CPU time of its thread in one of its turns.

A turn is all that the loop does between two looks at its sockets, so it is at least as long as any of its callbacks. CPU
time, as a busy machine makes every wall clock late. Clients and engines run in threads of their own, whose time is not
counted, and the loop is uvloop, as in the product.
"""

import asyncio
import contextlib
import math
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine

from lab.upstream import answers

from millgate.core.settings import EngineSettings, LaneSettings, Settings
from millgate.gateway import EngineAddress, Gateway, GatewaySettings
from millgate.gateway.settings import LineAddress
from millgate.sockets.loop import GateLoop
from millgate.wiring.governor import build_governor

MOST_S = 0.050
"""The bar, on a machine that copies a body of 32 MB in half of it."""
_BODY_BYTES = 32 * 1024 * 1024
_COPIES = 2
_HEAD_END = b"\r\n\r\n"
_PATIENCE_S = 60.0
_PIECE_BYTES = 1024 * 1024


def bar_s() -> float:
    """Return the bar for this machine as it is now: no input costs a turn more than two copies of the longest body."""
    body, took_s = b"a" * _BODY_BYTES, []
    for _ in range(3):
        began_s = time.thread_time()
        bytearray(body)
        took_s.append(time.thread_time() - began_s)
    return max(MOST_S, _COPIES * min(took_s))


class Turns:
    """Runs in every turn of the loop, which therefore never sleeps."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._worst_s = 0.0
        self._at_s = time.thread_time()
        self.count = 0
        self._turn()

    def _turn(self) -> None:
        now_s = time.thread_time()
        self._worst_s = max(self._worst_s, now_s - self._at_s)
        self._at_s = now_s
        self.count += 1
        self._handle = self._loop.call_soon(self._turn)

    def _begin(self) -> None:
        """Forget what was, the time of this turn too."""
        self._worst_s = 0.0
        self._at_s = time.thread_time()

    async def during(self, asked: Callable[[], bytes]) -> tuple[bytes, float]:
        """Ask in a thread; return what was said and the longest turn meanwhile.

        What is over the bar is asked again, five times in all, and the least counts: beside a busy neighbour CPU time is
        longer too, and what holds the loop by itself does so every time.
        """
        least_s = math.inf
        for _ in range(5):
            self._begin()
            said = await asyncio.to_thread(asked)
            least_s = min(least_s, self._worst_s)
            if least_s <= MOST_S:
                break
        return said, least_s

    def stop(self) -> None:
        """Let the loop sleep again."""
        self._handle.cancel()


class BluntEngine:
    """Takes requests of any size and says the same bytes to each, then closes."""

    def __init__(self) -> None:
        self.says = answers.whole(answers.completion("hello"))
        self.bodies_bytes: list[int] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                line, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=[line], daemon=True).start()

    def _answer(self, line: socket.socket) -> None:
        with line, contextlib.suppress(OSError):
            head = b""
            while _HEAD_END not in head:
                data = line.recv(65_536)
                if not data:
                    return
                head += data
            head, _, rest = head.partition(_HEAD_END)
            if b"/metrics" in head or b"/health" in head:
                line.sendall(answers.whole(b"", 200))
                return
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            came = len(rest)
            while came < length and (data := line.recv(_PIECE_BYTES)):
                came += len(data)
            self.bodies_bytes.append(came)
            line.sendall(self.says)

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()


def tell(port: int, data: list[bytes], *, until: bytes = b"") -> bytes:
    """Send this on a connection of its own and return what comes until its end, or until these bytes have come."""
    said = bytearray()
    with socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_S) as line:
        for piece in data:
            line.sendall(piece)
        with contextlib.suppress(ConnectionError):
            while came := line.recv(_PIECE_BYTES):
                said += came
                if until and until in said:
                    break
    return bytes(said)


def request(path: bytes, body: bytes, kind: bytes = b"application/json") -> list[bytes]:
    """Return a request that asks for the end of its connection behind the answer, head and body apart."""
    head = b"POST %b HTTP/1.1\r\nhost: gate\r\nconnection: close\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
    return [head % (path, kind, len(body)), body]


def at_leisure(scene: Coroutine[None, None, None]) -> None:
    """Run a scene on the loop of the gateway, for as long as many large bodies take."""
    with asyncio.Runner(loop_factory=GateLoop) as runner:
        runner.run(scene)


@contextlib.asynccontextmanager
async def measured() -> AsyncIterator[tuple[Gateway, BluntEngine, Turns]]:
    """Serve a gateway with a line door and measure the turns of its loop.

    All limits are the defaults but for the deadlines: a prompt of 32 MB is more than engines are expected to read in those.
    """
    engine = BluntEngine()
    lanes = [LaneSettings(name, ttft_slo_s=3600.0, deadline_s=3600.0) for name in ("interactive", "line")]
    core = Settings(lanes=tuple(lanes), engines=(EngineSettings("engine", 8),))
    settings = GatewaySettings(
        engines=(EngineAddress("engine", "127.0.0.1", engine.port),),
        port=0,
        line=LineAddress("127.0.0.1", 0),
    )
    gateway = Gateway(build_governor(core, time.monotonic()), settings)
    await gateway.start()
    turns = Turns()
    try:
        yield gateway, engine, turns
    finally:
        turns.stop()
        await gateway.stop()
        engine.close()
