"""The records of batching: what goes in, what comes out, and how far one sequence has come."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

WATERMARK_SHARE = 0.01
"""Share of blocks kept free when a prompt is admitted beside running ones (vLLM's long-standing value)."""


class EngineSequence(NamedTuple):
    """One answer to generate: how long its prompt is and after how many tokens it ends.

    `prefix_ids` name the units of prompt and answer for the prefix cache, in order; what lies behind them has no name. One that
    `pins_kv` keeps its blocks after its end, until `Batch.unpin`. The prompt of one that `is_handed_over` was computed by
    another engine; only its last token is computed again, unless it is preempted. Unless it `is_looked_up`, the cache does not count it.
    """

    sequence_id: int
    prompt_tokens: int
    output_tokens: int
    prefix_ids: tuple[int, ...] = ()
    pins_kv: bool = False
    is_handed_over: bool = False
    is_looked_up: bool = True


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The scheduler's limits, by vLLM's names; `kv_tokens` are cut down to whole blocks.

    `prefix_unit_tokens` is for how many tokens one of a sequence's `prefix_ids` stands; 0 is no prefix caching.
    """

    kv_tokens: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_tokens: int = 16
    watermark_share: float = WATERMARK_SHARE
    prefix_unit_tokens: int = 0

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1:
            raise ValueError(f"max_num_seqs: must be at least 1, got {self.max_num_seqs}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens: must be at least max_num_seqs ({self.max_num_seqs}), so that every"
                f" running sequence gets its token; got {self.max_num_batched_tokens}"
            )
        if self.block_tokens < 1 or self.kv_tokens < self.block_tokens:
            raise ValueError(
                f"kv_tokens: must hold at least one block of {self.block_tokens} tokens, got {self.kv_tokens}"
            )
        if not 0 <= self.watermark_share < 1:
            raise ValueError(f"watermark_share: must be at least 0 and below 1, got {self.watermark_share}")
        if self.prefix_unit_tokens < 0 or self.prefix_unit_tokens % self.block_tokens:
            raise ValueError(
                f"prefix_unit_tokens: must be a whole number of blocks of {self.block_tokens} tokens,"
                f" got {self.prefix_unit_tokens}"
            )

    @property
    def blocks(self) -> int:
        """Whole blocks in the cache."""
        return self.kv_tokens // self.block_tokens


class EventKind(Enum):
    """What happened to a sequence at a step boundary."""

    FIRST_TOKEN = "first_token"  # noqa: S105 - a kind of event, no password
    RESUMED = "resumed"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class BatchEvent(NamedTuple):
    """One thing that happened: when, to which sequence, at which step, with how many output tokens made so far.

    `hit_tokens` of its prompt came from the prefix cache, or from another engine, when it was first admitted.
    """

    at_s: float
    sequence_id: int
    kind: EventKind
    step: int
    produced_tokens: int
    hit_tokens: int


class BatchStatistics(NamedTuple):
    """The engine's own numbers at one instant; counts since the start.

    `wasted_tokens` counts every output token of sequences that were aborted or whose client departed, and
    `orphan_tokens` those of them that were made after the abort or the departure. `began` counts sequences that ever
    ran, `pinned` those that have ended and keep their blocks; `peak_present` is the most that ran and waited together.
    `prefix_queried_tokens` are the prompts that were looked up in the prefix cache, each once, and `prefix_hit_tokens`
    what was found of them.
    """

    running: int
    waiting: int
    peak_running: int
    peak_present: int
    kv_used_blocks: int
    kv_total_blocks: int
    pinned: int
    steps: int
    began: int
    finished: int
    aborted: int
    preemptions: int
    prefilled_tokens: int
    output_tokens: int
    wasted_tokens: int
    orphan_tokens: int
    prefix_queried_tokens: int
    prefix_hit_tokens: int

    @property
    def kv_share(self) -> float:
        """Share of KV blocks in use, 0..1."""
        return self.kv_used_blocks / self.kv_total_blocks


class SequenceState(Enum):
    """Where a sequence stands; LEAVING is an abort that waits for the end of the step in progress."""

    WAITING = 1
    PREFILLING = 2
    DECODING = 3
    LEAVING = 4
    OVER = 5


class SequenceProgress:
    """How far one sequence has come; the numbers of a decoding one stand still and count from `joined_step`.

    `target_tokens` is what must be in the cache before the next token: the prompt, and after a preemption the
    tokens made so far too. `departed_at_tokens` is what had been made when its client left, -1 while it stays.
    """

    def __init__(self, sequence: EngineSequence) -> None:
        self.sequence = sequence
        self.state = SequenceState.WAITING
        self.target_tokens = sequence.prompt_tokens
        self.cached_tokens = 0
        self.produced_tokens = 0
        self.joined_step = 0
        self.finish_step = 0
        self.phase = -1
        self.has_begun = False
        self.departed_at_tokens = -1
        self.hit_tokens = 0

    def produced_by(self, step: int) -> int:
        """Output tokens made when `step` steps are over."""
        if self.phase < 0:
            return self.produced_tokens
        return self.produced_tokens + step - self.joined_step
