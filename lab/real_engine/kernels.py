"""Times the kernels of a Llama on a GPU, as the tables that `millgate sim validate --measured` reads.

Attention is that of transformers' continuous batching without flash attention (`paged|sdpa`): all sequences of a step in one call, under a
mask, over keys and values gathered from the cache. Each kernel is captured into a graph of several calls, so that only the device is
timed: what the host adds is the judge's one fitted number.
"""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

_NAME = "real"
_TOKENS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
_SEQUENCES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128)
_CONTEXTS = (16, 128, 256, 512, 1024, 2048)
_CHUNKS = (16, 64, 128, 256, 512, 1024, 2048)
_BEFORE = (0, 512, 1024, 2048)
_CALLS, _REPEATS = 8, 3

Shape = dict[str, Any]


def time_kernels(model: Path, folder: Path, cache_tokens: int) -> str:
    """Write the three tables for the shape in the model's config.json."""
    shape: Shape = json.loads((model / "config.json").read_text(encoding="utf-8"))
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_default_device("cuda")
    torch.set_default_dtype(torch.bfloat16)
    with torch.inference_mode():
        tables = {
            "dense": (("layer", "tokens"), list(_dense(shape))),
            "per_sequence": (("layer", "sequences"), list(_per_sequence(shape))),
            "attention": (
                ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode"),
                list(_attention(shape, cache_tokens)),
            ),
        }
    for name, (columns, rows) in tables.items():
        with (folder / f"{_NAME}_{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([(*columns, "time_us"), *rows])
    return f"{sum(len(rows) for _, rows in tables.values())} kernels timed; written to {folder}"


def _timed_us(kernel: Callable[[], object]) -> float:
    """Return the device's time for one call, the least of a few."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        kernel()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_CALLS):
            kernel()
    graph.replay()
    best = float("inf")
    for _ in range(_REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        best = min(best, 1e3 * begin.elapsed_time(end) / _CALLS)
    return round(best, 3)


def _dense(shape: Shape) -> Iterator[tuple[Any, ...]]:
    hidden, inner = shape["hidden_size"], shape["intermediate_size"]
    heads, kv_heads, size = shape["num_attention_heads"], shape["num_key_value_heads"], shape["head_dim"]
    scale = torch.ones(hidden)
    table = torch.randn(shape["vocab_size"], hidden)
    products = {
        "qkv_proj": (hidden, (heads + 2 * kv_heads) * size),
        "o_proj": (heads * size, hidden),
        "gate_up_proj": (hidden, 2 * inner),
        "down_proj": (inner, hidden),
    }
    weights = {name: torch.randn(wide, high) for name, (high, wide) in products.items()}
    for tokens in _TOKENS:
        for name, weight in weights.items():
            yield (
                name,
                tokens,
                _timed_us(partial(functional.linear, torch.randn(tokens, weight.shape[1]), weight)),
            )
        state, both = torch.randn(tokens, hidden), torch.randn(tokens, inner)
        rotated = torch.randn(tokens, (heads + kv_heads) * size)
        numbers = torch.randint(shape["vocab_size"], (tokens,))
        small: dict[str, Callable[[], object]] = {
            "layernorm": partial(_added_norm, state, scale),
            "final_layernorm": partial(functional.rms_norm, state, (hidden,), scale),
            "act_fn": partial(_gated, both),
            "rotary_emb": partial(_turned, rotated),
            "embedding": partial(functional.embedding, numbers, table),
        }
        for name, kernel in small.items():
            yield name, tokens, _timed_us(kernel)


def _added_norm(state: Any, scale: Any) -> object:
    return functional.rms_norm(state, scale.shape, scale) + state


def _gated(both: Any) -> object:
    return functional.silu(both) * both


def _turned(state: Any) -> object:
    first, second = state.chunk(2, -1)
    return state * state + torch.cat((-second, first), -1) * state


def _per_sequence(shape: Shape) -> Iterator[tuple[Any, ...]]:
    head = torch.randn(shape["vocab_size"], shape["hidden_size"])
    for sequences in _SEQUENCES:
        state = torch.randn(sequences, shape["hidden_size"])
        logits = torch.randn(sequences, shape["vocab_size"], dtype=torch.float32)
        yield "lm_head", sequences, _timed_us(partial(functional.linear, state, head))
        yield "sampler", sequences, _timed_us(partial(_sampled, logits))


def _sampled(logits: Any) -> object:
    return functional.softmax(logits, -1).argmax(-1)


def _attention(shape: Shape, cache_tokens: int) -> Iterator[tuple[Any, ...]]:
    cache = _Cache(shape, cache_tokens)
    yield 0, 0, 1, 1, cache.time_us(1, 1)
    yield from _fitting(cache, [(0, 0, many, context) for many in _SEQUENCES for context in _CONTEXTS])
    yield from _fitting(cache, [(chunk, before, 0, 0) for chunk in (1, *_CHUNKS) for before in _BEFORE])
    beside = [(many, context) for many in _SEQUENCES[::3] for context in _CONTEXTS[1::2]]
    mixed = [(chunk, before, *each) for chunk in _CHUNKS[::2] for before in _BEFORE[::2] for each in beside]
    yield from _fitting(cache, mixed)


def _fitting(cache: "_Cache", points: Sequence[tuple[int, int, int, int]]) -> Iterator[tuple[Any, ...]]:
    for chunk, before, many, context in points:
        read = chunk + before + many * context
        if read <= cache.tokens:
            yield chunk, before, many, context, cache.time_us(chunk + many, read)


class _Cache:
    """One layer's keys and values, in random order."""

    def __init__(self, shape: Shape, tokens: int) -> None:
        self.tokens = tokens
        self._heads, self._kv_heads = shape["num_attention_heads"], shape["num_key_value_heads"]
        self._size = shape["head_dim"]
        self._keys, self._values = (torch.randn(tokens, self._kv_heads, self._size) for _ in range(2))
        self._order = torch.randperm(tokens)

    def time_us(self, queries: int, read: int) -> float:
        """Time a step's attention: gather, repeat for the heads of a group, attend under a mask."""
        query = torch.randn(1, self._heads, queries, self._size)
        mask, order = torch.zeros(1, 1, queries, read), self._order[:read]
        return _timed_us(partial(self._attended, query, mask, order))

    def _attended(self, query: Any, mask: Any, order: Any) -> object:
        keys, values = (self._gathered(each, order) for each in (self._keys, self._values))
        found = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
        return found.transpose(1, 2).contiguous()

    def _gathered(self, cache: Any, order: Any) -> Any:
        picked = torch.index_select(cache, 0, order).transpose(0, 1).unsqueeze(0)
        return picked.repeat_interleave(self._heads // self._kv_heads, dim=1).contiguous()
