"""What could have been good at most, and what can surely be: the bracket in which every gateway's goodput lies.

Upper bounds (all count requests; each takes the most it could under one necessary condition alone):

- *path*: a request whose prefill alone is longer than its TTFT objective, or that no engine holds, can never be good;
- *work*: engine work that no schedule can save, on all engines together, until the last deadline (knapsack: shortest
  work first is best when every request counts one);
- *steps*: every output token needs a place in some step of the largest batch, and a step takes at least its base;
- *memory*: KV tokens held over time, at the fastest pace possible;
- *windows*: prompts that come and are due within a window must be prefilled within it (Horn's condition, applied
  to disjoint windows of one length, the best length and offset).

Lower bracket: schedules that could really be run on the capacity that full batches attain. They are first come first
served with hopeless ones dropped at no cost, and the same with all sizes known. There the largest waiting request
gives way whenever a request would be late (Moore 1968, Hodgson). The *size-blind line* is what remains when the
sizes are unknown: each window's capacity over its demand.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from heapq import heappop, heappush
from itertools import groupby
from math import inf
from statistics import fmean
from typing import NamedTuple

from millgate.engine.profile import EngineProfile
from millgate.sim.bounds.work import least_work_s, step_share_s, usual_batch
from millgate.sim.jobs import Job

_WINDOWS_PER_SLO = (2.0, 5.0, 20.0)
_OFFSETS = (0.0, 0.5)


class _Need(NamedTuple):
    """What one request needs, in seconds of one engine and token-seconds of KV memory; prefill without end of what none can hold."""

    at_s: float
    prefill_s: float
    work_s: float
    steps_s: float
    attained_s: float
    kv_token_s: float


@dataclass(frozen=True, slots=True)
class Bounds:
    """Shares of all requests. `upper` is the least of the five bounds, `best` the better of the two schedules."""

    requests: int
    load: float
    path: float
    work: float
    steps: float
    memory: float
    windows: float
    upper: float
    size_blind: float
    first_come: float
    clairvoyant: float

    @property
    def best(self) -> float:
        """The most that some schedule surely reaches."""
        return max(self.first_come, self.clairvoyant)

    def as_dict(self) -> dict[str, float]:
        """Return plain data for JSON."""
        return {**asdict(self), "best": self.best}


def bound(jobs: Iterable[Job], profile: EngineProfile, engines: int, ttft_slo_s: float) -> Bounds:
    """Return the bracket for these jobs on this fleet; raises ValueError when there is no job."""
    coming = list(jobs)
    if not coming:
        raise ValueError("trace: holds no request")
    needs = _needs(coming, profile)
    possible = [need for need in needs if need.prefill_s <= ttft_slo_s]
    span_s = needs[-1].at_s + ttft_slo_s + _longest_tail_s(coming, profile)
    total = len(needs)
    path = len(possible) / total
    work = _fill([need.work_s for need in possible], engines * span_s) / total
    steps = _fill([need.steps_s for need in possible], engines * span_s) / total
    memory = _fill([need.kv_token_s for need in possible], engines * profile.kv_tokens * span_s) / total
    windows = _windows(possible, engines, ttft_slo_s) / total
    demand_s = sum(need.attained_s for need in needs)
    return Bounds(
        requests=total,
        load=demand_s / (engines * max(needs[-1].at_s, 1e-9)),
        path=path,
        work=work,
        steps=steps,
        memory=memory,
        windows=windows,
        upper=min(path, work, steps, memory, windows),
        size_blind=_size_blind(needs, engines, ttft_slo_s) / total,
        first_come=_schedule(possible, engines, ttft_slo_s, knows_sizes=False) / total,
        clairvoyant=_schedule(possible, engines, ttft_slo_s, knows_sizes=True) / total,
    )


def _needs(jobs: Sequence[Job], profile: EngineProfile) -> list[_Need]:
    prompt, output = fmean(job.prompt_tokens for job in jobs), fmean(job.output_tokens for job in jobs)
    batch = usual_batch(profile, prompt, output, profile.max_num_seqs)
    return [_need(job, profile, batch) for job in jobs]


def _need(job: Job, profile: EngineProfile, batch: float) -> _Need:
    prompt, output = job.prompt_tokens, job.output_tokens
    prefill_s = least_work_s(profile, prompt, 1) if prompt + output <= profile.kv_tokens + 1 else inf
    work_s = least_work_s(profile, prompt, output)
    steps_s = step_share_s(profile, output, profile.max_num_seqs)
    attained_s = work_s + step_share_s(profile, output, batch)
    fastest_s = (profile.decode_base_ms + profile.decode_per_sequence_ms) / 1e3
    kv_token_s = prompt / 2 * prefill_s + (prompt + output / 2) * output * fastest_s
    return _Need(job.at_s, prefill_s, work_s, steps_s, attained_s, kv_token_s)


def _longest_tail_s(jobs: Sequence[Job], profile: EngineProfile) -> float:
    """Return a time after the last deadline for the first token in which every answer has surely ended."""
    slowest_s = (
        profile.decode_base_ms
        + profile.decode_per_sequence_ms * profile.max_num_seqs
        + profile.decode_per_kv_token_ms * profile.kv_tokens
    ) / 1e3
    return slowest_s * max(job.output_tokens for job in jobs)


def _fill(sizes: Sequence[float], room: float) -> float:
    """Return how many fit, smallest first, the last one in part."""
    count = 0.0
    for size in sorted(sizes):
        if size > room:
            return count + room / size
        room -= size
        count += 1.0
    return count


def _windows(needs: Sequence[_Need], engines: int, ttft_slo_s: float) -> float:
    """Return the least bound over disjoint windows; a request that straddles two windows is free in both."""
    least = inf
    for slos in _WINDOWS_PER_SLO:
        length_s = slos * ttft_slo_s
        for offset in _OFFSETS:
            fitting = 0.0
            for index, group in groupby(needs, key=lambda need: (need.at_s + offset * length_s) // length_s):
                end_s = (index + 1) * length_s - offset * length_s
                members = list(group)
                inside = [need.prefill_s for need in members if need.at_s + ttft_slo_s <= end_s]
                fitting += len(members) - len(inside) + _fill(inside, engines * length_s)
            least = min(least, fitting)
    return least


def _size_blind(needs: Sequence[_Need], engines: int, ttft_slo_s: float) -> float:
    """Return how many remain when each window serves the share that its capacity is of its demand.

    The last window ends with the last deadline: what an engine could do after that serves no request.
    """
    length_s = _WINDOWS_PER_SLO[1] * ttft_slo_s
    last_s = needs[-1].at_s + ttft_slo_s
    served = 0.0
    for index, group in groupby(needs, key=lambda need: need.at_s // length_s):
        sizes = [need.attained_s for need in group]
        room_s = engines * (min((index + 1.0) * length_s, last_s) - index * length_s)
        served += len(sizes) * min(1.0, room_s / sum(sizes))
    return served


def _schedule(needs: Sequence[_Need], engines: int, ttft_slo_s: float, *, knows_sizes: bool) -> int:
    """Return how many one server as fast as the fleet serves in time, in order of arrival.

    With sizes known the largest that still waits is dropped for all behind it whenever a request would start
    too late; without, the request that would start too late is dropped.
    """
    served = 0
    free_at = 0.0
    backlog: list[tuple[float, int, float]] = []
    waiting: dict[int, float] = {}
    starts: list[tuple[float, int]] = []
    for number, need in enumerate(needs):
        now, size_s = need.at_s, need.attained_s / engines
        while starts and starts[0][0] <= now:
            waiting.pop(heappop(starts)[1], None)
        free_at = max(free_at, now)
        if free_at - now + need.prefill_s <= ttft_slo_s:
            served += 1
        else:
            while backlog and backlog[0][1] not in waiting:
                heappop(backlog)
            if not knows_sizes or not backlog or -backlog[0][0] <= size_s:
                continue
            _, largest, largest_s = heappop(backlog)
            del waiting[largest]
            free_at -= largest_s
        waiting[number] = size_s
        heappush(starts, (free_at, number))
        heappush(backlog, (-size_s, number, size_s))
        free_at += size_s
    return served
