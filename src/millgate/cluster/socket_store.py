"""A store in another process of this host: renewals go to it over a Unix socket, one frame each way.

The processes of one gate share its limits through the one that started them (gateway/workers): it keeps the shares in
memory and ends with the gate. Its address is a name in Linux's abstract namespace (unix(7)): no file is left behind, and none
has to be writable. Such a name has no owner, so that each side looks at the other's user.
"""

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

import msgspec

from millgate.cluster.contract import FencedError, Granted, Renewal, Store, StoreUnavailableError
from millgate.cluster.frames import FrameConnection

MOST_STORE_FRAME_BYTES: Final = 1024 * 1024
"""A renewal has some 100 bytes a shared number."""
MOST_PEERS: Final = 256
ANSWER_WITHIN_S: Final = 0.5
"""Two renewals: the answer of a store in memory takes a millisecond, also on a busy machine."""
ENGINE_LETS_GO_S: Final = 0.5
"""From the end of a process until its shares are free: the kernel closes its connections at once, and an engine ends their
streams at its next look, 0.3 s later where nothing is known (core/sizing)."""
_CREDENTIALS: Final = struct.Struct("3i")
"""`struct ucred` of unix(7): process, user, group."""
# Of Linux alone; what needs them is not begun where they are not (`lacking`).
_PEER: Final[int] = getattr(socket, "SO_PEERCRED", 0)
_pidfd_open: Final[Any] = getattr(os, "pidfd_open", None)


def lacking() -> str:
    """Return what this system lacks to share a store among processes; nothing where it can."""
    if _pidfd_open is None:
        return "this is not Linux"
    try:
        os.close(_pidfd_open(os.getpid()))
    except OSError as error:
        return f"the kernel has no pidfd_open(2), in Linux since 5.3: {error.strerror}"
    return ""


class StoreQuestion(NamedTuple):
    """One frame to the store: a renewal, or the replica and epoch that give everything back."""

    number: int
    renewal: Renewal | None
    leaving: tuple[str, int] | None = None


class StoreAnswer(NamedTuple):
    """One frame back: what was granted, or why nothing was."""

    number: int
    granted: Granted | None
    refused: str = ""
    is_fenced: bool = False


_encode = msgspec.msgpack.encode
_read_question = msgspec.msgpack.Decoder(StoreQuestion).decode
_read_answer = msgspec.msgpack.Decoder(StoreAnswer).decode


class SocketStore:
    """Asks the store at this address, connecting when it is first asked and again whenever the connection has ended."""

    def __init__(self, address: str, within_s: float = ANSWER_WITHIN_S) -> None:
        self._address = address
        self._within_s = within_s
        self._connection: FrameConnection | None = None
        self._number = 0
        self._waiting: dict[int, asyncio.Future[StoreAnswer]] = {}

    async def renew(self, renewal: Renewal) -> Granted:
        """Renew this replica's leases; StoreUnavailableError when they cannot be, FencedError when they have ended."""
        answer = await self._ask(renewal, None)
        if answer.is_fenced:
            raise FencedError(answer.refused)
        if answer.granted is None:
            raise StoreUnavailableError(answer.refused)
        return answer.granted

    async def leave(self, replica: str, epoch: int) -> None:
        """Give back everything that this replica holds; StoreUnavailableError when that could not be said."""
        answer = await self._ask(None, (replica, epoch))
        if answer.refused:
            raise StoreUnavailableError(answer.refused)

    async def close(self) -> None:
        """End the connection; leases stay until they end."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _ask(self, renewal: Renewal | None, leaving: tuple[str, int] | None) -> StoreAnswer:
        """Send one question and wait for its own answer: one that comes too late is dropped."""
        self._number = number = self._number + 1
        answer: asyncio.Future[StoreAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            async with asyncio.timeout(self._within_s):
                connection = await self._connected()
                connection.send(_encode(StoreQuestion(number, renewal, leaving)))
                return await answer
        except TimeoutError:
            raise StoreUnavailableError(f"no answer within {self._within_s:g} s") from None
        except OSError as error:
            raise StoreUnavailableError(f"cannot be reached: {error.strerror or error}") from None
        finally:
            self._waiting.pop(number, None)

    async def _connected(self) -> FrameConnection:
        if self._connection is not None and self._connection.is_open:
            return self._connection
        loop = asyncio.get_running_loop()
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            await loop.sock_connect(sock, "\0" + self._address)
            _refuse_strangers(sock)
        except OSError:
            sock.close()
            raise
        connection = FrameConnection(self._take, lambda: self._end(connection), MOST_STORE_FRAME_BYTES)
        self._connection = connection
        await loop.create_unix_connection(lambda: connection, sock=sock)
        return connection

    def _take(self, frame: bytes) -> None:
        answer = _read_answer(frame)
        waiting = self._waiting.pop(answer.number, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def _end(self, connection: FrameConnection) -> None:
        """Fail every question that waits: the process at the other end may have ended."""
        if connection is not self._connection:
            return
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            if not each.done():
                each.set_exception(StoreUnavailableError("the connection has ended"))


class StoreServer:
    """Serves one store to other processes of this user, from `start` until `close`.

    A process that ends gives back what its replicas hold, `lets_go_s` later. Its end is seen by the kernel's own notice (a
    pidfd) and not by a closed connection: a process that lives may have lost that, and its streams go on.
    """

    def __init__(self, store: Store, lets_go_s: float = ENGINE_LETS_GO_S) -> None:
        self._store = store
        self._lets_go_s = lets_go_s
        self._listener: asyncio.AbstractServer | None = None
        self._peers: set[_Peer] = set()
        self._processes: dict[int, _Process] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.address = ""

    async def start(self) -> None:
        """Listen under a new name, which is `address` from now on."""
        self.address = f"millgate-{os.getpid()}-{os.urandom(8).hex()}"
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.bind("\0" + self.address)
        sock.setblocking(False)
        self._listener = await asyncio.get_running_loop().create_unix_server(
            lambda: _Peer(self), sock=sock, backlog=MOST_PEERS
        )

    async def close(self) -> None:
        """Stop serving and end every connection; the store itself stays open."""
        if self._listener is not None:
            self._listener.close()
        for peer in tuple(self._peers):
            peer.close()
        while self._processes:
            self._processes.popitem()[1].forget()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- what peers ask

    def enter(self, peer: "_Peer", sock: socket.socket) -> "_Process | None":
        """Take a connection in and return its process; None for one of another user, or one too many."""
        try:
            process_id = _refuse_strangers(sock)
        except OSError:
            return None
        if len(self._peers) >= MOST_PEERS:
            return None
        self._peers.add(peer)
        if process_id not in self._processes:
            self._processes[process_id] = _Process(process_id, self._lost)
        return self._processes[process_id]

    def leave(self, peer: "_Peer") -> None:
        """Forget a connection that has closed."""
        self._peers.discard(peer)

    def answer(self, peer: "_Peer", process: "_Process", question: StoreQuestion) -> None:
        """Ask the store and send its answer."""
        self._run(self._answer(peer, process, question))

    async def _answer(self, peer: "_Peer", process: "_Process", question: StoreQuestion) -> None:
        renewal, leaving, granted = question.renewal, question.leaving, None
        try:
            if renewal is not None:
                granted = await self._store.renew(renewal)
                process.leases[renewal.replica] = renewal, granted
            elif leaving is not None:
                process.leases.pop(leaving[0], None)
                await self._store.leave(*leaving)
            answer = StoreAnswer(question.number, granted)
        except FencedError as error:
            answer = StoreAnswer(question.number, None, str(error), is_fenced=True)
        except StoreUnavailableError as error:
            answer = StoreAnswer(question.number, None, str(error) or "no reason given")
        peer.send(_encode(answer))

    # ---- processes that end

    def _lost(self, process: "_Process") -> None:
        self._processes.pop(process.number, None)
        self._run(self._give_back(process.leases))

    async def _give_back(self, leases: dict[str, tuple[Renewal, Granted]]) -> None:
        """Report for a process that has ended that nothing of what it held is used any more, and leave for it."""
        await asyncio.sleep(self._lets_go_s)
        for renewal, granted in leases.values():
            with contextlib.suppress(StoreUnavailableError, FencedError):  # the lease ends by itself
                answer = await self._store.renew(_unused(renewal, granted))
                await self._store.leave(renewal.replica, answer.epoch)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Process:
    """One process that holds leases: the last of its `leases` by replica; `on_end` is called once when it has ended."""

    def __init__(self, number: int, on_end: Callable[["_Process"], None]) -> None:
        self.number = number
        self.leases: dict[str, tuple[Renewal, Granted]] = {}
        self._on_end = on_end
        self._watched = _pidfd_open(number)
        asyncio.get_running_loop().add_reader(self._watched, self._ended)

    def forget(self) -> None:
        asyncio.get_running_loop().remove_reader(self._watched)
        os.close(self._watched)

    def _ended(self) -> None:
        self.forget()
        self._on_end(self)


class _Peer(FrameConnection):
    """One connection of a process that shares the store."""

    def __init__(self, server: StoreServer) -> None:
        super().__init__(self._take, self._leave, MOST_STORE_FRAME_BYTES)
        self._server = server
        self._process: _Process | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Serve a process of this user, and close the connection of any other."""
        super().connection_made(transport)
        self._process = self._server.enter(self, transport.get_extra_info("socket"))
        if self._process is None:
            self.close()

    def _take(self, frame: bytes) -> None:
        if self._process is None:
            return
        try:
            question = _read_question(frame)
        except msgspec.DecodeError:
            self.close()
            return
        self._server.answer(self, self._process, question)

    def _leave(self) -> None:
        self._server.leave(self)


def _unused(renewal: Renewal, granted: Granted) -> Renewal:
    """Return the renewal of a replica that uses nothing and wants nothing."""
    holdings = tuple(
        holding._replace(used=0.0, wanted=0.0, floor=0.0, lingers_s=0.0, seen=None)
        for holding in renewal.holdings
    )
    return renewal._replace(epoch=granted.epoch, applied=granted.number, holdings=holdings, lines=())


def _refuse_strangers(sock: socket.socket) -> int:
    """Return the process at the other end; raises PermissionError where it is another user's."""
    size = _CREDENTIALS.size
    process_id, user, _group = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, _PEER, size))
    if user != os.geteuid():
        raise PermissionError(f"the process at the other end is user {user}'s")
    return int(process_id)
