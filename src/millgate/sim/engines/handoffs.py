"""Prompts that one simulated engine reads for another: the governor says which two, and this carries the KV from one to the other.

The engine that reads keeps the prompt's blocks until the other one's first token. Where its answer never comes, or the
client leaves in between, it keeps them to the end of the lease. Every reading engine has a link of its own, and one
more where it sends at another speed. Blocks on the other engine are taken when the KV is there.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from millgate.core.events import Event, HandoffFailed, Prefilled
from millgate.core.settings import KV_LEASE_S
from millgate.core.words import FailureKind, Sent
from millgate.engine.sequences import EngineSequence
from millgate.sim.engines.batched import BatchedStation
from millgate.sim.jobs import Job
from millgate.sim.loop import ENGINES, Loop


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """How fast KV goes from engine to engine: `setup_s` for each prompt, and so many bytes."""

    setup_s: float = 0.002
    bytes_per_token: float = 327_680.0
    bytes_per_s: float = 50e9

    def transfer_s(self, tokens: int) -> float:
        """Seconds that these tokens occupy the link."""
        return tokens * self.bytes_per_token / self.bytes_per_s


class KvLink:
    """One link; prompts go over it one after the other, and setting one up does not hold up the next."""

    def __init__(self, speed: LinkSpeed) -> None:
        self._speed = speed
        self._free_at = 0.0

    def send(self, now: float, tokens: int) -> float:
        """Return when these tokens have arrived."""
        self._free_at = max(self._free_at, now) + self._speed.transfer_s(tokens)
        return self._free_at + self._speed.setup_s


@dataclass(slots=True)
class _UnderWay:
    """One request whose prompt is read on one engine and answered by another."""

    job: Job
    reader: BatchedStation
    writer: BatchedStation
    is_read: bool = False


class PromptTransfers:
    """Runs first legs, and starts second ones; is the listener to engines that only read.

    `links` are those between a reader and a writer that are not as `link` says. Where a reader of those that are
    `paired` (SGLang) fails a request, that is `lost`.
    """

    def __init__(
        self,
        loop: Loop,
        post: Callable[[Event], None],
        link: LinkSpeed,
        links: Mapping[tuple[str, str], LinkSpeed],
        lost: Callable[[int, FailureKind, Sent, float | None], None],
        paired: Collection[str] = (),
    ) -> None:
        self._loop = loop
        self._post = post
        self._lost, self._paired = lost, paired
        self._speed, self._speeds = link, links
        self._links: dict[tuple[str, LinkSpeed], KvLink] = {}
        self._requests: dict[int, _UnderWay] = {}
        self.stations: dict[str, BatchedStation] = {}

    def start(self, attempt: int, job: Job, reads: str, writes: str) -> None:
        """Let the first engine read the prompt of this attempt."""
        reader, writer = self.stations[reads], self.stations[writes]
        self._requests[attempt] = _UnderWay(job, reader, writer)
        reader.put(EngineSequence(attempt, job.prompt_tokens, 1, job.prefix_ids, pins_kv=True))

    def hang_up(self, attempt: int) -> None:
        """Its client has left, or its second engine has failed it: what was read stays to the end of the lease."""
        request = self._requests.pop(attempt, None)
        if request is None:
            return
        if not request.is_read:
            request.reader.hang_up(attempt)
        self._loop.at(self._loop.now + KV_LEASE_S, request.reader.unpin, attempt, ENGINES)

    def fetched(self, attempt: int) -> None:
        """The second engine has it: the first one lets go."""
        request = self._requests.pop(attempt, None)
        if request is not None:
            request.reader.unpin(attempt)

    # ---- what engines that read report

    def first_token(self, attempt: int) -> None:
        """The token of a reading engine is thrown away."""

    def finished(self, attempt: int, output_tokens: int, cached_tokens: int | None = None) -> None:
        """The prompt is read: send it, or keep it to the end of the lease where its client has left."""
        del output_tokens
        request = self._requests.get(attempt)
        if request is None:
            for station in self.stations.values():
                self._loop.at(self._loop.now + KV_LEASE_S, station.unpin, attempt, ENGINES)
            return
        request.is_read = True
        self._post(Prefilled(attempt, request.job.prompt_tokens, cached_tokens))
        speed = self._speeds.get((request.reader.name, request.writer.name), self._speed)
        link = self._links.setdefault((request.reader.name, speed), KvLink(speed))
        self._loop.at(link.send(self._loop.now, request.job.prompt_tokens), self._arrived, attempt, ENGINES)

    def failed(self, attempt: int, kind: FailureKind, sent: Sent, hint_s: float | None) -> None:
        """The second engine reads it itself, if it can."""
        request = self._requests.pop(attempt, None)
        if request is None:
            return
        self._post(HandoffFailed(attempt, kind))
        if request.reader.name in self._paired:
            self._lost(attempt, kind, sent, hint_s)
        else:
            request.writer.start(attempt, request.job)

    def _arrived(self, attempt: int) -> None:
        """Let the other engine answer; the reader has looked the prompt up in its cache, and that counts once."""
        request = self._requests.get(attempt)
        if request is not None:
            job = request.job
            whole = EngineSequence(attempt, job.prompt_tokens, job.output_tokens, job.prefix_ids)
            request.writer.put(whole._replace(is_handed_over=True, is_looked_up=False))
