"""What engines call their gauges, and how to read them out of a page of metrics.

The mapping is data: one row per engine, each gauge named by a spec `metric` or `metric{label=value}` as the
Kubernetes endpoint picker writes them. Reading is tolerant: what is missing, malformed, NaN, negative or absurd is
*unknown* (None), never an error, because a broken metrics page says nothing about an engine's health.

An engine may also lie or be broken on purpose. A page is read in time that grows with its bytes, label by label and
never back. Each gauge has a bound on the lines, the bytes and the labels that are read for it.
"""

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from millgate.core.events import AdaptersSeen

MOST_PAGE_BYTES = 4 * 1024 * 1024
"""vLLM's page with one model is 60 KB; a page beyond this bound is not read."""

# Lines that begin with the name of one gauge, for models x data-parallel ranks, and their bytes and labels in all; a
# gauge with more is unknown. An endless page must not cost endless time: these bound it to some milliseconds a gauge.
_MOST_SERIES = 1_024
_MOST_SERIES_BYTES = 256 * 1024
_MOST_SERIES_LABELS = 8 * 1024
# vLLM's info line about its cache, the longest of those that are read, has thirty labels in 1.2 KB.
_MOST_LINE_BYTES = 8 * 1024
# Requests at one time, and since the start of an engine.
_MOST_COUNT, _MOST_EVER = 1_000_000, 1_000_000_000
# No engine serves with a cache below the shortest context, and believed it would have every request refused as too
# large. A billion tokens are some 70 TB with the smallest caches that there are.
_FEWEST_KV_TOKENS, _MOST_KV_TOKENS = 256, 1_000_000_000
_MOST_SLOTS = 10_000
# vLLM lets go of an aborted request within 0.3 s: one look on the way, one after it.
AFTER_HANGUP_S = (0.15, 0.4)
MODEL_NAME = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}")
"""Names that may be shown anywhere."""
_WHOLE_NUMBER = re.compile(rb"[0-9]{1,10}")
# Possessive, and matched only where the label before has ended: nothing is ever looked at twice.
_LABEL = re.compile(rb'[ \t]*+([a-zA-Z_][a-zA-Z0-9_]*+)[ \t]*+=[ \t]*+"((?:[^"\\]++|\\.)*+)"[ \t]*+,?+')


class GaugeNames(NamedTuple):
    """What one engine calls its gauges.

    `running` counts requests, and so does each of `waiting`, of which only the first need be there; `kv_share` names
    the share of the KV cache in use (the first name that is present counts); `kv_blocks` is the info metric whose two
    labels multiply to the cache's tokens, `kv_tokens` a gauge of them where that is not there; `preemptions` counts
    requests that lost their cache to others, since the engine's start; `adapters` is the info metric about them (LoRA).
    So many seconds `after_hangup_s` it is read again, and not twice within the first of them. What it shows may be
    `late_s` old. Series that differ in nothing but the labels `copies` count the same requests; a series with a value
    for the label `part_by` counts some of those of another.
    """

    engine: str
    running: str
    waiting: tuple[str, ...]
    kv_share: tuple[str, ...] = ()
    kv_blocks: tuple[str, str, str] | None = None
    kv_tokens: str | None = None
    preemptions: str | None = None
    adapters: str | None = None
    after_hangup_s: tuple[float, ...] = AFTER_HANGUP_S
    late_s: float = 0.0
    copies: frozenset[bytes] = frozenset()
    part_by: bytes = b""


UNKNOWN_GAUGES = GaugeNames("", "", ())
"""What is believed of an engine before its first page."""

GAUGE_NAMES: tuple[GaugeNames, ...] = (
    GaugeNames(
        "vllm",
        "vllm:num_requests_running",
        ("vllm:num_requests_waiting",),
        ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        ("vllm:cache_config_info", "num_gpu_blocks", "block_size"),
        preemptions="vllm:num_preemptions_total",
        adapters="vllm:lora_requests_info",
    ),
    GaugeNames(
        "sglang",
        "sglang:num_running_reqs",
        # Where prompts are read on other engines, requests wait for the other side in queues of their own (its
        # `metrics_collector.py`).
        (
            "sglang:num_queue_reqs",
            "sglang:num_grammar_queue_reqs",
            "sglang:num_prefill_bootstrap_queue_reqs",
            "sglang:num_prefill_prealloc_queue_reqs",
            "sglang:num_prefill_inflight_queue_reqs",
            "sglang:num_decode_prealloc_queue_reqs",
            "sglang:num_decode_transfer_queue_reqs",
        ),
        ("sglang:token_usage",),
        ("sglang:cache_config_info", "num_pages", "page_size"),
        "sglang:max_total_num_tokens",
        "sglang:num_retracted_requests_total",
        # It renews them at every fortieth step of decoding (`--decode-log-interval`), which takes some 25 ms.
        late_s=1.0,
        copies=frozenset((b"tp_rank", b"pp_rank", b"moe_ep_rank")),
        part_by=b"priority",
    ),
    GaugeNames(
        "trtllm",
        "trtllm_num_requests_running",
        ("trtllm_num_requests_waiting",),
        ("trtllm_kv_cache_utilization",),
    ),
    GaugeNames(
        "triton",
        "nv_trt_llm_request_metrics{request_type=scheduled}",
        ("nv_trt_llm_request_metrics{request_type=waiting}",),
        ("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=fraction}",),
    ),
    GaugeNames("nim", "num_requests_running", ("num_requests_waiting",), ("gpu_cache_usage_perc",)),
    GaugeNames("tgi", "tgi_batch_current_size", ("tgi_queue_size",)),
    GaugeNames(
        "llamacpp",
        "llamacpp:requests_processing",
        ("llamacpp:requests_deferred",),
        ("llamacpp:kv_cache_usage_ratio",),
        # It looks for clients that have left after each second in which none of its tasks was done, and a reading is a
        # task (b11434).
        after_hangup_s=(1.2, 2.5),
    ),
)


class Gauges(NamedTuple):
    """One reading; None for what is unknown.

    `engine` is the row that matched, None when no row did; `model` is one that its first series names.
    """

    engine: str | None = None
    running: int | None = None
    waiting: int | None = None
    kv_share: float | None = None
    kv_tokens: int | None = None
    model: str | None = None
    preemptions: int | None = None
    adapters: AdaptersSeen | None = None


def read_gauges(page: bytes, names: Sequence[GaugeNames] = GAUGE_NAMES) -> Gauges:
    """Read the first engine's row whose `running` metric stands on this page of Prometheus text."""
    if len(page) > MOST_PAGE_BYTES:
        return Gauges()
    page = b"\n" + page
    for row in names:
        if any(_series(page, row.running)):
            return Gauges(
                row.engine,
                _total(page, row, (row.running,)),
                _total(page, row, row.waiting),
                _share(page, row.kv_share),
                _kv_tokens(page, row),
                _model(page, row.running),
                None if row.preemptions is None else _total(page, row, (row.preemptions,), _MOST_EVER),
                None if row.adapters is None else _adapters(page, row.adapters.encode()),
            )
    return Gauges()


def _total(page: bytes, row: GaugeNames, specs: tuple[str, ...], most: int = _MOST_COUNT) -> int | None:
    """Add up the series of these gauges, each request once; unknown without the first gauge, or with one bad series."""
    total = 0.0
    for number, spec in enumerate(specs):
        counts: dict[frozenset[tuple[bytes, bytes]], float] = {}
        for labels, value in _series(page, spec):
            if not 0 <= value <= most:
                return None
            if not labels.get(row.part_by):
                rank = frozenset([each for each in labels.items() if each[0] not in row.copies])
                counts[rank] = max(value, counts.get(rank, 0.0))
        if not counts and not number:
            return None
        total += sum(counts.values())
    return round(total)


def _share(page: bytes, specs: tuple[str, ...]) -> float | None:
    """The fullest cache decides: with several ranks the first full one preempts."""
    for spec in specs:
        values = [value for _, value in _series(page, spec)]
        if values:
            return max(values) if all(0 <= value <= 1 for value in values) else None
    return None


def _kv_tokens(page: bytes, row: GaugeNames) -> int | None:
    """Return what the cache holds, added over data-parallel ranks."""
    total = _tokens_of_blocks(page, row.kv_blocks) if row.kv_blocks is not None else 0
    if not total and row.kv_tokens is not None:
        total = _total(page, row, (row.kv_tokens,), _MOST_KV_TOKENS) or 0
    return total if _FEWEST_KV_TOKENS <= total <= _MOST_KV_TOKENS else None


def _tokens_of_blocks(page: bytes, spec: tuple[str, str, str]) -> int:
    """Blocks times tokens per block; vLLM writes "None" until the cache has been sized, and then it is 0."""
    metric, blocks, block_tokens = spec
    total = 0
    for labels, _ in _samples(page, metric.encode()):
        sizes = [labels.get(name.encode(), b"") for name in (blocks, block_tokens)]
        if not all(map(_WHOLE_NUMBER.fullmatch, sizes)):
            return 0
        total += int(sizes[0]) * int(sizes[1])
    return total


def _model(page: bytes, spec: str) -> str | None:
    """Return the model that the first series is about, where its name is one that may be shown anywhere."""
    labels, _value = next(_samples(page, spec.partition("{")[0].encode()), ({}, math.nan))
    name = MODEL_NAME.fullmatch(labels.get(b"model_name", b""))
    return name[0].decode() if name is not None else None


def _adapters(page: bytes, metric: bytes) -> AdaptersSeen | None:
    """Read the newest series about adapters: vLLM makes one for each set of adapters that has ever run, with the time as its value.

    The newest of one page has no age of its own: the page is new. One bad line, or too many, and nothing is known.
    """
    newest, newest_at = None, -1.0
    for labels, at in _samples(page, metric):
        if not 0.0 <= at < math.inf:
            return None
        if at > newest_at:
            newest, newest_at = labels, at
    if newest is None or not _WHOLE_NUMBER.fullmatch(newest.get(b"max_lora", b"")):
        return None
    slots = int(newest[b"max_lora"])
    running = [each for each in newest.get(b"running_lora_adapters", b"").split(b",") if each]
    if not 1 <= slots <= _MOST_SLOTS or len(running) > slots or not all(map(MODEL_NAME.fullmatch, running)):
        return None
    return AdaptersSeen(slots, tuple([name.decode() for name in running]))


def _series(page: bytes, spec: str) -> Iterator[tuple[dict[bytes, bytes], float]]:
    """Yield labels and values of the series that match `metric` or `metric{label=value}`."""
    metric, _, wanted = spec.rstrip("}").partition("{")
    label, _, value = wanted.partition("=")
    for labels, number in _samples(page, metric.encode()):
        if not wanted or labels.get(label.encode()) == value.encode():
            yield labels, number


def _samples(page: bytes, metric: bytes) -> Iterator[tuple[dict[bytes, bytes], float]]:
    """Yield labels and value of each sample line of one metric.

    A value that cannot be read comes as NaN; so does one more at the end where there were too many.
    """
    needle, at = b"\n" + metric, 0
    bytes_left, labels_left = _MOST_SERIES_BYTES, _MOST_SERIES_LABELS
    for _ in range(_MOST_SERIES):
        at = page.find(needle, at)
        if at < 0:
            return
        at += len(needle)
        if page[at : at + 1] not in {b"{", b" ", b"\t"}:
            continue  # a longer name
        end = page.find(b"\n", at, at + _MOST_LINE_BYTES)
        line = page[at : end if end >= 0 else at + _MOST_LINE_BYTES]
        bytes_left -= len(line)
        if bytes_left < 0 or (end < 0 and len(line) == _MOST_LINE_BYTES):
            break
        labels, value = _sample(line, labels_left)
        labels_left -= len(labels)
        yield dict(labels), value
    yield {}, math.nan


def _sample(line: bytes, most_labels: int) -> tuple[list[tuple[bytes, bytes]], float]:
    """Read what stands behind a metric's name: labels in braces, perhaps, and a value."""
    labels: list[tuple[bytes, bytes]] = []
    if not line.startswith(b"{"):
        return labels, _number(line)
    at = 1
    while len(labels) < most_labels and (label := _LABEL.match(line, at)):
        labels.append((label[1], label[2]))
        at = label.end()
    rest = line[at:].lstrip(b" \t")
    return labels, _number(rest[1:]) if rest.startswith(b"}") else math.nan


def _number(text: bytes) -> float:
    try:
        return float(text.split(maxsplit=1)[0])
    except (ValueError, IndexError):
        return math.nan
