"""One engine behind one gate whose limit adapts, in virtual time: the smallest loop that a limiter can close.

Jobs arrive at their own times, wait in a short bounded queue, take a permit and run on a batched engine. Once a
second the loop looks at every stream, reads the engine's gauges and hands the limit its reading, as the governor
does. No lanes, quotas or hints: what differs between two runs is the limiter alone.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from millgate.core.limits.gate import EngineGate, Limit, LimitReading
from millgate.core.limits.signal import Signal
from millgate.core.sizing.service_demand import ServiceTime
from millgate.core.words import FailureKind, Sent
from millgate.engine.profile import EngineProfile
from millgate.sim.engines.batched import BatchedStation
from millgate.sim.engines.contract import Station
from millgate.sim.jobs import Job
from millgate.sim.loop import CLIENTS, WATCHES, Loop

TICK_S = 1.0
COMPARED_SHARE = 0.9
"""Limits are compared by the TPOT that nine answers in ten keep, known sooner than a higher quantile."""
# More than this never waits: under overload the queue is always full, and its length changes nothing.
_QUEUE = 64


class Moment(NamedTuple):
    """One second of a run: the limit at its tick, what ran, and the engine's output tokens so far."""

    at_s: float
    limit: int
    inflight: int
    output_tokens: int


class Answered(NamedTuple):
    """One whole answer: when it began, and its mean time per output token."""

    first_at_s: float
    tpot_s: float


@dataclass(slots=True)
class Stream:
    """One running answer, as the gate sees it."""

    job: Job
    expected_ttft_s: float
    admitted_at: float
    first_at: float | None = None
    looked_at: float = 0.0
    seen_tokens: int = 0


@dataclass(slots=True)
class Trace:
    """What a run showed: every second, and every answer of two tokens or more."""

    moments: list[Moment] = field(default_factory=list)
    answers: list[Answered] = field(default_factory=list)

    def tokens_per_s(self, from_s: float, until_s: float) -> float:
        """Return output tokens a second between two whole seconds of the run."""
        made = {round(moment.at_s): moment.output_tokens for moment in self.moments}
        return (made[round(until_s)] - made[round(from_s)]) / (until_s - from_s)

    def tpot_s(self, from_s: float, share: float = COMPARED_SHARE) -> float:
        """Return what this share of the answers kept, of those that began after this time; ValueError without any."""
        tpots = sorted(each.tpot_s for each in self.answers if each.first_at_s >= from_s)
        if not tpots:
            raise ValueError(f"no answer began after {from_s:g} s")
        return tpots[min(len(tpots) - 1, int(share * len(tpots)))]

    def limits(self, from_s: float, until_s: float) -> list[int]:
        """Return the limit of every second between two times."""
        return [moment.limit for moment in self.moments if from_s <= moment.at_s <= until_s]


class LimiterLoop:
    """Runs jobs through gate, engine and limit; `telemetry_delay_s` is how old every reading is, `share` of answers are steered.

    `station` is the engine as the gate meets it; a test may put something between the two.
    """

    def __init__(
        self,
        profile: EngineProfile,
        jobs: Iterator[Job],
        limit: Limit,
        *,
        telemetry_delay_s: float = 0.0,
        share: float = COMPARED_SHARE,
    ) -> None:
        self.loop = Loop()
        self.trace = Trace()
        self.gate = EngineGate(limit)
        self.signal = Signal(0.0, profile.prior(), share)
        self.engine = BatchedStation(profile.name, self.loop, self, profile.step_model(), profile.limits())
        self.station: Station = self.engine
        self._service = ServiceTime(profile.prior())
        self._jobs = jobs
        self._queued: deque[Job] = deque()
        self._streams: dict[int, Stream] = {}
        self._attempts = 0
        self._delay_s = telemetry_delay_s
        self._next_arrival()
        self.loop.at(TICK_S, self._tick, None, WATCHES)

    def run(self, until_s: float) -> Trace:
        """Let time go by and return what happened so far."""
        self.loop.run(until_s)
        return self.trace

    # ---- users

    def _next_arrival(self) -> None:
        job = next(self._jobs, None)
        if job is not None:
            self.loop.at(job.at_s, self._arrive, job, CLIENTS)

    def _arrive(self, job: Job) -> None:
        if len(self._queued) < _QUEUE:
            self._queued.append(job)
            self._admit()
        self._next_arrival()

    def _admit(self) -> None:
        gate = self.gate
        while self._queued and gate.has_room(0, 0):
            job = self._queued.popleft()
            self._attempts += 1
            expected_s = self._service.ttft_s(job.prompt_tokens + gate.prefill_tokens)
            self._streams[self._attempts] = Stream(job, expected_s, self.loop.now)
            gate.take(self._attempts, 0, job.prompt_tokens)
            self.signal.inflight(gate.streams)
            self.station.start(self._attempts, job)

    # ---- what the engine reports

    def first_token(self, attempt: int) -> None:
        """Note it, and give the prefill share back."""
        stream, now = self._streams[attempt], self.loop.now
        stream.first_at = stream.looked_at = now
        stream.seen_tokens = 1
        self.signal.first_token(now - stream.admitted_at - stream.expected_ttft_s)
        self.gate.prefilled(attempt)

    def finished(self, attempt: int, output_tokens: int, cached_tokens: int | None = None) -> None:
        """Close the account and let the next one in."""
        del cached_tokens
        stream, now = self._streams.pop(attempt), self.loop.now
        first_at = stream.first_at if stream.first_at is not None else now
        self._look(stream, output_tokens)
        tpot_s = (now - first_at) / max(1, output_tokens - 1)
        self.signal.finished(first_at, tpot_s)
        if output_tokens > 1:
            self.trace.answers.append(Answered(first_at, tpot_s))
        self._release(attempt)

    def failed(self, attempt: int, _kind: FailureKind, _sent: Sent, _hint_s: float | None) -> None:
        """Count it and let the next one in."""
        del self._streams[attempt]
        self.signal.failed()
        self.loop.at(self.loop.now, self._release, attempt)

    def _release(self, attempt: int) -> None:
        self.gate.release(attempt)
        self.signal.inflight(self.gate.streams)
        self._admit()

    # ---- once a second

    def _look(self, stream: Stream, tokens: int) -> None:
        now = self.loop.now
        if stream.first_at is not None:
            self.signal.progressed(tokens - stream.seen_tokens, now - stream.looked_at)
            stream.seen_tokens, stream.looked_at = tokens, now

    def _tick(self, _nothing: None) -> None:
        for attempt, stream in self._streams.items():
            self._look(stream, self.station.produced(attempt))
        gauges, now = self.station.read(), self.loop.now
        reading = self.signal.read(now, gauges.kv_share, gauges.waiting)
        if reading is not None:
            self.loop.at(now + self._delay_s, self._observe, reading, WATCHES)
        made = self.station.totals().output_tokens
        self.trace.moments.append(Moment(now, self.gate.stream_limit, self.gate.streams, made))
        self.loop.at(now + TICK_S, self._tick, None, WATCHES)

    def _observe(self, reading: LimitReading) -> None:
        self.gate.learns(reading)
        self._admit()
