"""Who accepts for a worker that has ended or does not answer: a neighbour, on the sockets of both."""

import contextlib

from millgate.gateway.workers.crew import Crew
from millgate.gateway.workers.messages import WorkerVerb
from millgate.gateway.workers.process import WorkerProcess, WorkerSilentError


class StandIns:
    """The neighbours that accept for other slots than their own, at most one for each slot."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._by_slot: dict[int, WorkerProcess] = {}

    async def cover(self, slot: int) -> None:
        """Have a neighbour that answers accept for this slot, too, if there is one; again after it has ended or hangs itself."""
        old = self._by_slot.get(slot)
        if old is not None and old.serves and old.answers:
            return
        for neighbour in self._crew.serving:
            if neighbour.answers and neighbour.slot != slot:
                self._by_slot[slot] = neighbour
                await _try(neighbour, WorkerVerb.COVER, slot)
                await _try(old, WorkerVerb.UNCOVER, slot)
                return

    async def uncover(self, slot: int) -> None:
        """Have no neighbour accept for this slot: its own worker does."""
        await _try(self._by_slot.pop(slot, None), WorkerVerb.UNCOVER, slot)


async def _try(worker: WorkerProcess | None, verb: WorkerVerb, slot: int) -> None:
    if worker is not None and worker.serves:
        with contextlib.suppress(WorkerSilentError):
            await worker.ask(verb, str(slot).encode())
