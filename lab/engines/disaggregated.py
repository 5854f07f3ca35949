"""Prefill and decode apart: some engines compute prompts, others generate, and the KV of each prompt goes over a link.

A request is prefilled on the engine with the fewest prompt tokens before it, sent, and decoded on the engine with the fewest
tokens. The engine that prefilled keeps the prompt's blocks until the first token has come from the other one, as its lease is
renewed till then. Of a client that leaves in between it keeps them to the end of the lease. Source of these rules: vLLM's NIXL
connector (`docs/features/nixl_connector_usage.md`, lease of 30 s). There are two simplifications. Blocks for a prompt are taken
on the decoding engine when it is admitted there, not while it is sent. And what that engine has cached is sent all the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from millgate.core.settings import KV_LEASE_S
from millgate.core.words import FailureKind, Sent
from millgate.engine.profile import EngineProfile
from millgate.engine.sequences import EngineSequence
from millgate.sim.engines.batched import BatchedStation
from millgate.sim.engines.contract import EngineTotals, GaugeReading, Reports, added_up
from millgate.sim.engines.handoffs import KvLink, LinkSpeed
from millgate.sim.jobs import Job
from millgate.sim.loop import ENGINES, Loop


@dataclass(slots=True)
class _HandOff:
    """Where one request is: prefilled on one engine, on its way, decoded on another."""

    job: Job
    prefill: BatchedStation
    is_prefilled: bool = False
    decode: BatchedStation | None = None


class DisaggregatedPool:
    """Prefilling and decoding engines behind one name; times are virtual seconds."""

    def __init__(
        self,
        name: str,
        loop: Loop,
        reports: Reports,
        profile: EngineProfile,
        *,
        prefills: int,
        decodes: int,
        link: LinkSpeed,
        abort_lag_s: float = 0.1,
    ) -> None:
        self.name = name
        self._loop = loop
        self._reports = reports
        self._link = KvLink(link)
        self._requests: dict[int, _HandOff] = {}

        def station(role: str, number: int, listener: Reports) -> BatchedStation:
            return BatchedStation(
                f"{name}-{role}-{number}",
                loop,
                listener,
                profile.step_model(),
                profile.limits(),
                abort_lag_s=abort_lag_s,
            )

        prefilling = _Leg(_nothing, self._prefilled, self._failed)
        decoding = _Leg(self._first_token, self._finished, self._failed)
        self.prefill = [station("prefill", number, prefilling) for number in range(prefills)]
        self.decode = [station("decode", number, decoding) for number in range(decodes)]
        self._prompt_tokens = {each.name: 0 for each in self.prefill}
        self._context_tokens = {each.name: 0 for each in self.decode}

    def start(self, attempt: int, job: Job) -> None:
        """Prefill this attempt where the fewest prompt tokens are before it."""
        station = min(self.prefill, key=lambda each: self._prompt_tokens[each.name])
        self._requests[attempt] = _HandOff(job, station)
        self._prompt_tokens[station.name] += job.prompt_tokens
        station.put(EngineSequence(attempt, job.prompt_tokens, 1, job.prefix_ids, pins_kv=True))

    def hang_up(self, attempt: int) -> None:
        """Its client has left; a prompt that was computed for it stays to the end of its lease."""
        request = self._requests.pop(attempt, None)
        if request is None:
            return
        self._discount(request)
        if request.decode is not None:
            request.decode.hang_up(attempt)
        elif not request.is_prefilled:
            request.prefill.hang_up(attempt)
        self._loop.at(self._loop.now + KV_LEASE_S, request.prefill.unpin, attempt, ENGINES)

    def produced(self, attempt: int) -> int:
        """Output tokens made so far."""
        request = self._requests.get(attempt)
        return 0 if request is None or request.decode is None else request.decode.produced(attempt)

    def read(self) -> GaugeReading:
        """Return what runs and waits on all engines together, prompts on their way among those that wait."""
        readings = [station.read() for station in self._stations]
        present = sum([reading.running + reading.waiting for reading in readings], 0)
        running = sum([reading.running for reading in readings], 0)
        waiting = sum([reading.waiting for reading in readings], 0) + max(0, len(self._requests) - present)
        return GaugeReading(running, waiting, max([reading.kv_share or 0.0 for reading in readings]))

    def totals(self) -> EngineTotals:
        """Return tokens computed on all engines; the first token of the prefilling ones is thrown away and counts."""
        return added_up([station.totals() for station in self._stations])

    @property
    def _stations(self) -> Sequence[BatchedStation]:
        return [*self.prefill, *self.decode]

    # ---- what its engines report

    def _prefilled(self, attempt: int, _output_tokens: int) -> None:
        request = self._requests.get(attempt)
        if request is None:
            return
        self._discount(request)
        request.is_prefilled = True
        arrives_at = self._link.send(self._loop.now, request.job.prompt_tokens)
        self._loop.at(arrives_at, self._arrived, attempt, ENGINES)

    def _arrived(self, attempt: int) -> None:
        request = self._requests.get(attempt)
        if request is None:
            return
        station = request.decode = min(self.decode, key=lambda each: self._context_tokens[each.name])
        job = request.job
        self._context_tokens[station.name] += _tokens(job)
        station.put(
            EngineSequence(attempt, job.prompt_tokens, job.output_tokens, job.prefix_ids, is_handed_over=True)
        )

    def _first_token(self, attempt: int) -> None:
        request = self._requests.get(attempt)
        if request is not None:
            request.prefill.unpin(attempt)
            self._reports.first_token(attempt)

    def _finished(self, attempt: int, output_tokens: int) -> None:
        request = self._requests.pop(attempt, None)
        if request is not None:
            self._discount(request)
            self._reports.finished(attempt, output_tokens)

    def _failed(self, attempt: int, kind: FailureKind, sent: Sent, hint_s: float | None) -> None:
        request = self._requests.pop(attempt, None)
        if request is None:
            return
        self._discount(request)
        self._loop.at(self._loop.now + KV_LEASE_S, request.prefill.unpin, attempt, ENGINES)
        self._reports.failed(attempt, kind, sent, hint_s)

    def _discount(self, request: _HandOff) -> None:
        """Take a request off the account of the engine that it is with."""
        if request.decode is not None:
            self._context_tokens[request.decode.name] -= _tokens(request.job)
        elif not request.is_prefilled:
            self._prompt_tokens[request.prefill.name] -= request.job.prompt_tokens


class _Leg:
    """The reports of one role's engines, each to its own listener."""

    def __init__(
        self,
        first_token: Callable[[int], None],
        finished: Callable[[int, int], None],
        failed: Callable[[int, FailureKind, Sent, float | None], None],
    ) -> None:
        self._first_token = first_token
        self._finished = finished
        self._failed = failed

    def first_token(self, attempt: int) -> None:
        """The first token of this leg is out."""
        self._first_token(attempt)

    def finished(self, attempt: int, output_tokens: int, cached_tokens: int | None = None) -> None:
        """The leg is over."""
        del cached_tokens
        self._finished(attempt, output_tokens)

    def failed(self, attempt: int, kind: FailureKind, sent: Sent, hint_s: float | None) -> None:
        """The engine does not (or no longer) work for this leg."""
        self._failed(attempt, kind, sent, hint_s)


def _nothing(_attempt: int) -> None:
    """The token of a prefilling engine is thrown away."""


def _tokens(job: Job) -> int:
    return job.prompt_tokens + job.output_tokens
