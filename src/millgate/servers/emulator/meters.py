"""The engine's own accounts: histograms and per-second rows, and how `/metrics` and `/stats` show them."""

from collections import deque
from time import time
from typing import Final, NamedTuple

from millgate.engine.adapters import AdapterSlots
from millgate.engine.sequences import BatchLimits, BatchStatistics
from millgate.observe.histogram import Buckets, Histogram

SERIES_ROWS: Final = 900
"""Per-second rows kept: fifteen minutes of work."""


def _bounds(words: str) -> tuple[float, ...]:
    return tuple(map(float, words.split()))


TTFT_BOUNDS_S: Final = _bounds(
    "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 160 640 2560"
)
ITL_BOUNDS_S: Final = _bounds("0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5 7.5 10 20 40 80")
"""Bucket bounds as vLLM exports them, so that dashboards made for vLLM fit."""


def histogram_lines(name: str, labels: str, histogram: Histogram) -> list[str]:
    """Render in the text format; `labels` come without braces."""
    lines = [f"# TYPE {name} histogram"]
    seen = 0
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        seen += count
        lines.append(f'{name}_bucket{{{labels},le="{bound}"}} {seen}')
    return [*lines, f"{name}_sum{{{labels}}} {histogram.total:.9g}", f"{name}_count{{{labels}}} {seen}"]


class SecondRow(NamedTuple):
    """One second of work: states at its end, tokens made during it; idle seconds have no row."""

    at_s: float
    running: int
    waiting: int
    kv_share: float
    output_tokens: int
    wasted_tokens: int


_OWN: Final = ("received", "refused", "client_gone")
_COUNTED: Final = {
    "executed": "began",
    "finished": "finished",
    "aborted": "aborted",
    "preemptions": "preemptions",
    "prompt_tokens": "prefilled_tokens",
    "output_tokens": "output_tokens",
    "wasted_tokens": "wasted_tokens",
    "orphan_tokens": "orphan_tokens",
    "prefix_queried_tokens": "prefix_queried_tokens",
    "prefix_hit_tokens": "prefix_hit_tokens",
}
"""Counts of `/stats`, since the last reset, and the batch's names for them."""
_PRESENT: Final = {
    "running": "running",
    "waiting": "waiting",
    "peak_running": "peak_running",
    "peak_running_and_waiting": "peak_present",
    "kv_kept": "pinned",
}
"""States of `/stats` as they are now."""
_HANDED: Final = ("kv_given", "kv_expired", "kv_taken", "kv_failed")


class Meters:
    """What an engine has done since the start (`/metrics`) and since the last reset (`/stats`)."""

    def __init__(self, limits: BatchLimits, model_name: str, now: float, zero: BatchStatistics) -> None:
        self.ttft = Buckets(TTFT_BOUNDS_S)
        self.itl = Buckets(ITL_BOUNDS_S)
        self.received = self.refused = self.client_gone = 0
        self.kv_given = self.kv_expired = 0
        self.kv_taken = self.kv_taken_tokens = self.kv_failed = 0
        self._limits = limits
        self._model_name = model_name
        self._series: deque[SecondRow] = deque(maxlen=SERIES_ROWS)
        self.reset(now, zero)

    def reset(self, now: float, statistics: BatchStatistics) -> None:
        """Start `/stats` again from here; `/metrics` counts on."""
        self._series.clear()
        self._since = now
        self._zero = self._last = statistics
        self._before = {name: getattr(self, name) for name in _OWN}

    def second(self, now: float, statistics: BatchStatistics) -> None:
        """Write the row of the second that ends now."""
        self._series.append(
            SecondRow(
                at_s=round(now - self._since, 3),
                running=statistics.running,
                waiting=statistics.waiting,
                kv_share=round(statistics.kv_share, 4),
                output_tokens=statistics.output_tokens - self._last.output_tokens,
                wasted_tokens=statistics.wasted_tokens - self._last.wasted_tokens,
            )
        )
        self._last = statistics

    def stats(self, now: float, statistics: BatchStatistics) -> dict[str, object]:
        """The numbers of `/stats`; counts since the last reset."""
        zero = self._zero
        return {
            "since_s": round(now - self._since, 3),
            **{name: getattr(self, name) - self._before[name] for name in _OWN},
            **{name: getattr(statistics, of) - getattr(zero, of) for name, of in _COUNTED.items()},
            **{name: getattr(statistics, of) for name, of in _PRESENT.items()},
            "kv_share": round(statistics.kv_share, 6),
            **{name: getattr(self, name) for name in _HANDED},
            "series": [row._asdict() for row in self._series],
        }

    def metrics(self, statistics: BatchStatistics, adapters: AdapterSlots | None = None) -> bytes:
        """Render `/metrics` with vLLM's names and labels; adapters as labels of a gauge whose value is the time."""
        labels = f'engine="0",model_name="{_escaped(self._model_name)}"'
        limits = self._limits
        info = f'block_size="{limits.block_tokens}",enable_prefix_caching="{bool(limits.prefix_unit_tokens)}"'
        info += f',engine="0",num_gpu_blocks="{limits.blocks}"'
        gauges = (
            ("num_requests_running", "gauge", labels, statistics.running),
            ("num_requests_waiting", "gauge", labels, statistics.waiting),
            ("kv_cache_usage_perc", "gauge", labels, f"{statistics.kv_share:.6g}"),
            ("num_preemptions_total", "counter", labels, statistics.preemptions),
            ("prompt_tokens_total", "counter", labels, statistics.prefilled_tokens),
            ("generation_tokens_total", "counter", labels, statistics.output_tokens),
            ("prefix_cache_queries_total", "counter", labels, statistics.prefix_queried_tokens),
            ("prefix_cache_hits_total", "counter", labels, statistics.prefix_hit_tokens),
            ("external_prefix_cache_hits_total", "counter", labels, self.kv_taken_tokens),
            ("nixl_num_kv_expired_reqs_total", "counter", labels, self.kv_expired),
            ("nixl_num_failed_transfers_total", "counter", labels, self.kv_failed),
            ("cache_config_info", "gauge", info, 1),
        )
        lines = [
            f"# TYPE vllm:{name} {kind}\nvllm:{name}{{{pairs}}} {value}"
            for name, kind, pairs, value in gauges
        ]
        sources = {
            "local_compute": statistics.prefilled_tokens,
            "local_cache_hit": statistics.prefix_hit_tokens,
            "external_kv_transfer": self.kv_taken_tokens,
        }
        lines.append("# TYPE vllm:prompt_tokens_by_source_total counter")
        lines += [
            f'vllm:prompt_tokens_by_source_total{{{labels},source="{source}"}} {tokens}'
            for source, tokens in sources.items()
        ]
        if adapters is not None:
            running, waiting = (_escaped(",".join(names)) for names in (adapters.running, adapters.waiting))
            lines.append(
                f'# TYPE vllm:lora_requests_info gauge\nvllm:lora_requests_info{{max_lora="{adapters.max_loras}",'
                f'running_lora_adapters="{running}",waiting_lora_adapters="{waiting}"}} {time():.9g}'
            )
        lines += histogram_lines("vllm:time_to_first_token_seconds", labels, self.ttft.read())
        lines += histogram_lines("vllm:inter_token_latency_seconds", labels, self.itl.read())
        return ("\n".join(lines) + "\n").encode()


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
