"""Clients that replicas on other hosts have told to come back: what workers of one host tell each other at once, replicas put on the store's board.

A balancer sends a client that comes back to any replica, and most clients bring no ticket. Where its own one has told
it, it would be a newcomer.
"""

import asyncio
import contextlib
from collections.abc import Callable
from time import time
from typing import Final

import msgspec

from millgate.cluster.contract import KEPT_S, Board, BoardRefusedError, StoreUnavailableError
from millgate.servers.requests.told_clients import ToldClient, ToldClients, encode_told, read_told

MOST_SAID: Final = 100
"""Clients that one replica tells of in one exchange: 2,000 a second. Those above are newcomers elsewhere."""
BUSY_PAUSE_S: Final = 0.05
"""Between two exchanges while there is news: the one that says it and the one that hears it are over by the shortest hint, 0.1 s."""
_BUSY_FOR_S: Final = 10.0


class ToldNews:
    """Tells other replicas of the clients that this one has told, and learns of theirs; `clients` are those that it has learned of.

    It asks every `pause_s` whether there is news. News of its own it tells at once, and for ten seconds after any news
    it asks every `BUSY_PAUSE_S`.

    `key` is the one of the cluster's tickets, `now` the core's clock, and `wall` the one that replicas have in common.
    `on_problem` hears once why the store refuses it the board, and with an empty text that it does no more; that the
    store does not answer at all the lease tells.
    """

    def __init__(
        self,
        board: Board,
        replica: str,
        key: bytes,
        pause_s: float,
        now: Callable[[], float],
        wall: Callable[[], float] = time,
    ) -> None:
        self.clients = ToldClients(key, self._tell, now, wall)
        self.on_problem: Callable[[str], None] = lambda _why: None
        self._board, self._replica, self._pause_s, self._now = board, replica, pause_s, now
        self._untold: list[ToldClient] = []
        self._place = self._problem = ""
        self._moved_at = now()
        self._is_busy_until, self._has_news = 0.0, asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Exchange news from now on; at first all that is kept is read."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def leave(self) -> None:
        """Say what is still to be said, and no more; harmless when never started."""
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._task = None
        if self._untold:
            await self.exchange()

    async def exchange(self) -> None:
        """Say and hear what there is. What cannot be said now is not said later, when its clients may be back already."""
        untold, self._untold = self._untold, []
        self._has_news.clear()
        try:
            heard = await self._board.exchange(
                self._replica, encode_told(untold) if untold else b"", self._place
            )
        except BoardRefusedError as problem:
            self._turned(str(problem))
            return
        except StoreUnavailableError:
            return
        self._turned("")
        self._go_on_from(heard.place)
        if untold or heard.said:
            self._is_busy_until = self._now() + _BUSY_FOR_S
        for said in heard.said:
            # What another version says is nothing that this one knows.
            with contextlib.suppress(msgspec.MsgspecError):
                for client in read_told(said):
                    self.clients.learn(client)

    def _go_on_from(self, place: str) -> None:
        """Note what is read. A board on which nothing is put for so long is over, and the places of a new one may be less where the store's clock went back."""
        now = self._now()
        if place != self._place:
            self._place, self._moved_at = place, now
        elif now - self._moved_at > KEPT_S:
            self._place = ""

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(BUSY_PAUSE_S)
            if self._now() >= self._is_busy_until:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._has_news.wait(), self._pause_s - BUSY_PAUSE_S)
            await self.exchange()

    def _tell(self, client: ToldClient) -> None:
        if len(self._untold) < MOST_SAID:
            self._untold.append(client)
            self._has_news.set()

    def _turned(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self.on_problem(problem)
