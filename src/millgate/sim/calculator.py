"""From a rate and a latency to numbers for a configuration, by two rules side by side, each with its reasoning.

Little's law says how many are inside on average, the load. Two rules say how many streams that load needs. The
*square-root rule* (load + 2 x its square root, twice the load below ten) leaves room for the randomness of arrivals.
Then 3 to 4 % wait for loads of 5 to 100 (Erlang C). *Twice the load* leaves room for a latency that doubles as well,
which is what a loaded engine's latency does. The queue is what can be served within the longest wait that a
user would bear, not a constant.

The share that waits is Erlang's C: exact for exponential latencies and hardly another for any other law. The mean wait
is its M/M/c value times (1 + cv^2) / 2: Allen and Cunneen's approximation for Poisson arrivals, exact for one
stream (Pollaczek and Khinchine). Both take requests to come independently.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp, expm1, log, sqrt
from typing import NamedTuple

from millgate.engine.profile import EngineProfile
from millgate.sim.bounds.work import least_work_s, step_share_s, usual_batch
from millgate.sim.experiments.contract import ExperimentResult, SeriesPoint, estimate

# Below this load twice the load is the safer rule, above it wasteful if latency stays.
_SMALL_LOAD = 10.0
# An engine planned for more than this share of its capacity has no room for a busy minute.
_PLANNED_SHARE = 0.8
# The 95 % point of the normal law.
_NORMAL_P95 = 1.6449
# The picture goes from half of the latency to three times, in steps of a fiftieth.
_PICTURED_FIFTIETHS = range(25, 151)

SQUARE_ROOT, TWICE = "square root", "twice the load"


@dataclass(frozen=True, slots=True)
class Latency:
    """How long requests take from first byte to last token: seconds on average, and standard deviation over mean."""

    mean_s: float
    cv: float = 1.0

    @classmethod
    def of_quantiles(cls, p50_s: float, p95_s: float) -> "Latency":
        """Return the lognormal law with these quantiles; ValueError unless 0 < p50 < p95."""
        if not 0.0 < p50_s < p95_s:
            raise ValueError(f"must be above the p50 of {p50_s:g} s, got {p95_s:g} s")
        variance = (log(p95_s / p50_s) / _NORMAL_P95) ** 2
        return cls(p50_s * exp(variance / 2.0), sqrt(expm1(variance)))


@dataclass(frozen=True, slots=True)
class Load:
    """What is to be served: requests per second, their latency, and how many times as long it may become."""

    rate_per_s: float
    latency: Latency
    latency_factor: float = 2.0
    prompt_tokens: float = 1000.0
    output_tokens: float = 250.0

    @property
    def streams(self) -> float:
        """Return how many are inside on average (Little)."""
        return self.rate_per_s * self.latency.mean_s


class Row(NamedTuple):
    """One number by either rule, why it is that, and how it is written: 'count', 'share', 'seconds' or 'times'."""

    name: str
    square_root: float
    twice: float
    why: str
    form: str = "count"


def advise(load: Load, max_wait_s: float, profile: EngineProfile | None = None) -> list[Row]:
    """Return what to set by either rule, and what it bears; with a profile, on how many engines."""
    inside = load.streams
    rules = (streams_for(inside), ceil(2.0 * inside))
    factor, mean_s, cv = load.latency_factor, load.latency.mean_s, load.latency.cv
    law = f"{load.rate_per_s:g} a second x {mean_s:.3g} s each (cv {cv:.2g})"
    later = f"the same with {factor:g} times the latency, a load of {factor * inside:.1f}"
    rows = [
        _row("mean streams", (inside, inside), f"Little's law: {law}"),
        _row("max_inflight, all engines", rules, "load + 2 x its root (2 x load below 10), or 2 x load"),
        _row("share that waits", [waiting(c, inside) for c in rules], "Erlang C", "share"),
        _row(
            "mean wait",
            [mean_wait_s(c, load.rate_per_s, load.latency) for c in rules],
            "Allen and Cunneen: M/M/c x (1 + cv^2) / 2",
            "seconds",
        ),
        _row("latency may grow", [c / inside for c in rules], "until every stream is always taken", "times"),
        _row(f"share that waits, x {factor:g}", [waiting(c, factor * inside) for c in rules], later, "share"),
        _row(
            f"share refused, x {factor:g}",
            [max(0.0, 1.0 - c / (factor * inside)) for c in rules],
            "what no stream is left for, whatever the queue",
            "share",
        ),
        _row(
            "max_queue",
            [ceil(c / mean_s * max_wait_s) for c in rules],
            f"what full streams serve in the {max_wait_s:g} s that a user would wait",
        ),
    ]
    return rows if profile is None else rows + _engines(load, rules, profile)


def streams_for(load: float) -> int:
    """Return the streams that keep the share that waits near 3 to 4 %."""
    root = load + 2.0 * sqrt(load)
    return ceil(max(2.0 * load, root) if load < _SMALL_LOAD else root)


def waiting(streams: int, load: float) -> float:
    """Return the share of requests that find every stream taken; all of them once the load is no less than the streams."""
    return erlang_c(streams, load) if load < streams else 1.0


def mean_wait_s(streams: int, rate_per_s: float, latency: Latency) -> float:
    """Return the mean wait of all requests, those that do not wait included; the load is below the streams."""
    load = rate_per_s * latency.mean_s
    memoryless_s = erlang_c(streams, load) / (streams - load) * latency.mean_s
    return memoryless_s * (1.0 + latency.cv**2) / 2.0


def picture(load: Load) -> ExperimentResult:
    """Return the share that waits by either rule while latency goes from half to three times what it is."""
    inside = load.streams
    rules = ((SQUARE_ROOT, streams_for(inside)), (TWICE, ceil(2.0 * inside)))
    metric = "waits_share"
    places = tuple(
        SeriesPoint(
            f"{streams}: {name}", step / 50.0, {metric: estimate([waiting(streams, inside * step / 50.0)])}
        )
        for name, streams in rules
        for step in _PICTURED_FIFTIETHS
    )
    question = (
        f"{load.rate_per_s:g} requests a second of {load.latency.mean_s:.3g} s: who waits when latency moves?"
    )
    labels = ("latency, in times of today's", "share that waits (Erlang C)")
    return ExperimentResult("size", question, metric, *labels, False, places, {})


def _row(name: str, values: Sequence[float], why: str, form: str = "count") -> Row:
    square_root, twice = values
    return Row(name, square_root, twice, why, form)


def _engines(load: Load, rules: tuple[int, int], profile: EngineProfile) -> list[Row]:
    """Return on how many engines that runs: what streams, KV memory and work each need, and the most of them."""
    prompt, output = load.prompt_tokens, load.output_tokens
    batch = usual_batch(profile, prompt, output, profile.max_num_seqs)
    prefill_s = least_work_s(profile, prompt, 1.0)
    request_s = least_work_s(profile, prompt, output) + step_share_s(profile, output, batch)
    context = prompt + output / 2.0
    for_work = ceil(load.rate_per_s * request_s / _PLANNED_SHARE)
    for_streams, for_kv = (
        [ceil(streams * each / most) for streams in rules]
        for each, most in ((1.0, profile.max_num_seqs), (context, profile.kv_tokens))
    )
    engines = [max(for_work, *needs) for needs in zip(for_streams, for_kv, strict=True)]
    inflight = [ceil(streams / each) for streams, each in zip(rules, engines, strict=True)]
    prefill = [load.rate_per_s * prefill_s / each for each in engines]
    milliseconds = f"{1e3 * request_s:.3g} ms of engine time a request, {1e3 * prefill_s:.3g} of it prefill"
    return [
        _row("KV tokens", [c * context for c in rules], f"contexts of {context:,.0f} tokens on average"),
        _row("engines for the streams", for_streams, f"{profile.name}: max_num_seqs {profile.max_num_seqs}"),
        _row("engines for the KV tokens", for_kv, f"{profile.kv_tokens:,} tokens each"),
        _row("engines for the work", (for_work, for_work), f"{milliseconds}; at {_PLANNED_SHARE:.0%}"),
        _row("engines", engines, "the most of these three"),
        _row("max_inflight, each engine", inflight, "the streams over the engines"),
        _row("prefill, of an engine's time", prefill, "prompts read, whatever decodes beside them", "share"),
    ]


def erlang_b(servers: int, offered: float) -> float:
    """Share of calls lost by `servers` without a queue, by the stable recursion (Erlang, 1917); times in mean services."""
    blocked = 1.0
    for count in range(1, servers + 1):
        blocked = offered * blocked / (count + offered * blocked)
    return blocked


def erlang_c(servers: int, offered: float) -> float:
    """Share of calls that wait for one of `servers`."""
    lost = erlang_b(servers, offered)
    load = offered / servers
    return lost / (1.0 - load * (1.0 - lost))
