"""A worker's end of the channel: what the supervisor orders is carried out here, and what it must know is told.

A worker whose supervisor has ended ends at once: the leases of its streams have ended with the supervisor, and the next gate
would let in as many again.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from millgate.cluster.frames import FrameConnection
from millgate.cluster.socket_store import SocketStore
from millgate.gateway.app import Gateway
from millgate.gateway.doors import WorkerPlace
from millgate.gateway.workers.messages import (
    UNASKED,
    News,
    Reply,
    WorkerNews,
    WorkerOrder,
    WorkerReport,
    WorkerStart,
    WorkerVerb,
    encode,
    read_kept,
    read_order,
    read_start,
)
from millgate.observe.live.page_model import PageModel
from millgate.servers.admin.answers import DecisionQuery, ExplainQuery
from millgate.servers.admin.source import LocalSource
from millgate.servers.http.kept_answers import Keeper, KeptAnswers
from millgate.servers.requests.told_clients import ToldClient, ToldClients, encode_told, read_told

RETIRES_WITHIN_S: Final = 5.0
"""How long a worker that is replaced serves what its kept connections still ask: SDKs and proxies that use a connection at
all use it within seconds."""
_LOOK_S: Final = 0.05
_LAST_WORDS_S: Final = 1.0
_TOGETHER_S: Final = 0.02
_ORPHANED: Final = 1


class WorkerSide:
    """The worker's end of the channel: `started` is what it is told at first, `notifier` what it tells of its service."""

    def __init__(self) -> None:
        self.started: asyncio.Future[WorkerStart] = asyncio.get_running_loop().create_future()
        self._channel = FrameConnection(self._take, self._end)
        self._gateway: Gateway | None = None
        self._running = b""
        self._kept = KeptAnswers()
        self._kept.on_new = self._tell_kept
        self._told: ToldClients | None = None
        self._untold: list[ToldClient] = []
        self._is_ready = False
        self.text: Callable[[], str] = str
        """Returns what the configuration's file said that is in force."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._orders: Mapping[WorkerVerb, Callable[[bytes], Awaitable[bytes]]] = {
            WorkerVerb.REPORT: self._report,
            WorkerVerb.PICTURE: self._picture,
            WorkerVerb.HISTORY: self._history,
            WorkerVerb.WHY: self._why,
            WorkerVerb.DECISIONS: self._decisions,
            WorkerVerb.EXPLAIN: self._explain,
            WorkerVerb.COVER: self._cover,
            WorkerVerb.UNCOVER: self._uncover,
            WorkerVerb.RETIRE: self._retire,
        }

    async def connect(self, descriptor: int) -> WorkerStart:
        """Talk over this inherited socket, and return what the supervisor says first."""
        sock = socket.socket(fileno=descriptor)
        sock.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: self._channel, sock=sock)
        return await self.started

    @property
    def place(self) -> WorkerPlace:
        """This worker's place among all of them, known once it is connected."""
        start = self.started.result()
        return WorkerPlace(start.slot, start.number, start.http, start.line, start.ticket_key)

    def store(self) -> SocketStore | None:
        """Return the supervisor's store; None where the configuration names one."""
        address = self.started.result().store
        return SocketStore(address) if address else None

    def serves(self, gateway: Gateway, running: bytes) -> None:
        """Answer for this gateway from now on; `running` is what its banner would say."""
        self._gateway, self._running = gateway, running
        if (told := gateway.door.told_clients) is not None:
            told.tell_too(self._tell_told)
            self._told = told
        gateway.door.kept_answers, gateway.door.told_clients = self._kept, self._told

    def failed(self, text: str, code: int) -> None:
        """Tell why this worker cannot serve."""
        self._tell(WorkerNews(News.FAILED, text, code))

    async def farewell(self) -> None:
        """Tell the last counts, and end the channel."""
        told = asyncio.Event()
        self._channel.on_end = told.set
        if self._gateway is not None:
            self._tell(WorkerNews(News.LEFT, running=await self._report(b"")))
        self._channel.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await told.wait()

    # ---- what the gateway tells instead of systemd (see `ServiceNotifier`)

    def ready(self) -> None:
        """Every door listens, or a reload is over."""
        assert self._gateway is not None
        kind = News.RELOADED if self._is_ready else News.READY
        self._is_ready = True
        grace_s = self._gateway.settings.drain_grace_s
        self._tell(WorkerNews(kind, self.text(), running=self._running, grace_s=grace_s))

    def reloading(self) -> None:
        """The supervisor has asked for it, and tells systemd itself."""

    def stopping(self, status: str) -> None:
        """The supervisor has asked for it, and tells systemd itself."""

    def close(self) -> None:
        """Nothing is kept that would have to be ended."""

    # ---- the channel

    def _tell(self, news: WorkerNews) -> None:
        self._channel.send(encode(Reply(UNASKED, encode(news))))

    def _tell_kept(self, answer_id: str, keeper: Keeper) -> None:
        self._tell(WorkerNews(News.KEPT, running=encode([(answer_id, *keeper)])))

    def _tell_told(self, client: ToldClient) -> None:
        """Tell of those of some milliseconds together: no hint is as short, and a storm refuses thousands a second."""
        if not self._untold:
            asyncio.get_running_loop().call_later(_TOGETHER_S, self._tell_all_told)
        self._untold.append(client)

    def _tell_all_told(self) -> None:
        told, self._untold = self._untold, []
        self._tell(WorkerNews(News.TOLD, running=encode_told(told)))

    def _take(self, frame: bytes) -> None:
        order = read_order(frame)
        if order.verb is WorkerVerb.START:
            start = read_start(order.content)
            now = asyncio.get_running_loop().time
            self._told = ToldClients(start.ticket_key, self._tell_told, now)
            self.started.set_result(start)
            return
        if order.verb is WorkerVerb.KEPT:
            for answer_id, engine, tenant in read_kept(order.content):
                self._kept.add(answer_id, Keeper(engine, tenant), is_news=False)
            return
        if order.verb is WorkerVerb.TOLD:
            assert self._told is not None, "the first order is to start"
            for client in read_told(order.content):
                self._told.learn(client)
            return
        task = asyncio.get_running_loop().create_task(self._carry_out(order))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, order: WorkerOrder) -> None:
        try:
            reply = Reply(order.number, await self._orders[order.verb](order.content))
        except Exception as error:  # noqa: BLE001 - a supervisor that waits for an answer gets one
            reply = Reply(order.number, error=type(error).__name__)
        self._channel.send(encode(reply))

    def _end(self) -> None:
        os._exit(_ORPHANED)

    # ---- orders

    @property
    def _served(self) -> Gateway:
        assert self._gateway is not None, "the supervisor asks workers that are ready"
        return self._gateway

    @property
    def _source(self) -> LocalSource:
        return LocalSource(self._served.views)

    @property
    def _model(self) -> PageModel:
        live = self._served.views.live
        assert live is not None
        return live.page_model

    async def _report(self, _: bytes) -> bytes:
        gateway, model = self._served, self._model
        ready = gateway.ready()
        report = WorkerReport(
            records=gateway.exposition.read(),
            line=gateway.line.readings() if gateway.line is not None else None,
            ready=ready.ready,
            detail=dict(ready.detail),
            standings=tuple(gateway.fleet.standings),
            banner=model.verdict(),
            host=model.host,
        )
        return encode(report)

    async def _picture(self, _: bytes) -> bytes:
        return encode(self._model.paint())

    async def _history(self, _: bytes) -> bytes:
        return encode(self._model.history())

    async def _why(self, wanted: bytes) -> bytes:
        return encode(await self._source.attempts(wanted.decode()))

    async def _decisions(self, query: bytes) -> bytes:
        return encode(await self._source.decisions(msgspec.json.decode(query, type=DecisionQuery)))

    async def _explain(self, query: bytes) -> bytes:
        explained = await self._source.explanation(msgspec.json.decode(query, type=ExplainQuery))
        return msgspec.json.encode(explained)

    async def _cover(self, slot: bytes) -> bytes:
        await self._served.doors.cover(int(slot), self._served.settings)
        return b""

    async def _uncover(self, slot: bytes) -> bytes:
        self._served.doors.uncover(int(slot))
        return b""

    async def _retire(self, _: bytes) -> bytes:
        """Accept no more, and return when no connection is left or the last have had their time."""
        gateway = self._served
        gateway.doors.retire()
        for _look in range(int(RETIRES_WITHIN_S / _LOOK_S)):
            if not gateway.server.connections:
                break
            await asyncio.sleep(_LOOK_S)
        return b""
