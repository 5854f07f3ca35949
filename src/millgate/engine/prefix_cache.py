"""Which blocks of earlier prompts and answers an engine still has: vLLM's prefix caching, in counts.

The KV cache of a sequence is named in *units* of `unit_tokens`: one engine block, or as many as a trace gives one id
for. Ids are chained, an id stands for all tokens up to its unit's end, so equal ids mean equal prefixes. Only full units have
a name. A unit that a running sequence uses is counted once, however many use it. When the last of them leaves, the unit
becomes *idle*: its memory counts as free, and a later sequence finds it until the memory is needed. Idle units are evicted
in the order in which they were left. A sequence leaves its units from the last to the first, so that the ends of prefixes go
before their beginnings.

Source of the rules: vLLM V1 (`v1/core/kv_cache_manager.py`, `block_pool.py`, `single_type_kv_cache_manager.py`): full
blocks only. The last token of a prompt is always computed. Blocks are named as soon as they are scheduled, so that
siblings in one step share. Two simplifications: the blocks of an answer are named when its sequence leaves, and a second
copy of a block that is already named is freed without a trace.
"""

from collections import OrderedDict
from typing import NamedTuple

from millgate.engine.sequences import EngineSequence


class PrefixHit(NamedTuple):
    """What the cache has of a prompt: so many leading units, and how many of them running sequences use."""

    units: int
    in_use: int


NO_HIT = PrefixHit(0, 0)


class PrefixCache:
    """The named units of one engine. The caller counts blocks and tells how many are free.

    `queried_tokens` are the prompts that were looked up, each once, and `hit_tokens` what was found of them.
    """

    def __init__(self, unit_tokens: int, block_tokens: int) -> None:
        self.unit_tokens = unit_tokens
        self.unit_blocks = unit_tokens // block_tokens
        self.queried_tokens = 0
        self.hit_tokens = 0
        self._users: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._held: dict[int, list[int]] = {}

    def find(self, sequence: EngineSequence, target_tokens: int) -> PrefixHit:
        """Return what is cached of the first `target_tokens` of this sequence, the last token never."""
        users, idle = self._users, self._idle
        units = in_use = 0
        for unit in sequence.prefix_ids[: (target_tokens - 1) // self.unit_tokens]:
            if unit in users:
                in_use += 1
            elif unit not in idle:
                break
            units += 1
        return PrefixHit(units, in_use)

    def join(self, sequence: EngineSequence, hit: PrefixHit, *, is_first: bool) -> int:
        """Let a sequence use what was found for it, and return the tokens of it; only its first lookup is counted."""
        held = self._held[sequence.sequence_id] = list(sequence.prefix_ids[: hit.units])
        for unit in held:
            self._use(unit)
        hit_tokens = hit.units * self.unit_tokens
        if is_first:
            self.queried_tokens += sequence.prompt_tokens
            self.hit_tokens += hit_tokens
        return hit_tokens

    def name(self, sequence: EngineSequence, begin_tokens: int, end_tokens: int) -> None:
        """Name the units that become full while a running sequence grows from `begin_tokens` to `end_tokens`.

        Their blocks are the sequence's own; a unit that has a name already keeps its first copy.
        """
        unit_tokens = self.unit_tokens
        held = self._held[sequence.sequence_id]
        for unit in sequence.prefix_ids[begin_tokens // unit_tokens : end_tokens // unit_tokens]:
            if unit not in self._users:
                self._idle.pop(unit, None)
                self._users[unit] = 1
                held.append(unit)

    def leave(self, sequence: EngineSequence) -> int:
        """Let a sequence go; return how many of its blocks are still in use by others."""
        users = self._users
        shared = 0
        for unit in reversed(self._held.pop(sequence.sequence_id)):
            count = users[unit] - 1
            if count:
                users[unit] = count
                shared += 1
            else:
                del users[unit]
                self._idle[unit] = None
        return shared * self.unit_blocks

    def keep_within(self, free_blocks: int) -> None:
        """Evict the units that were left first until the idle ones fit into the free blocks."""
        idle = self._idle
        most = free_blocks // self.unit_blocks
        while len(idle) > most:
            idle.popitem(last=False)

    def _use(self, unit: int) -> None:
        if unit in self._users:
            self._users[unit] += 1
        else:
            del self._idle[unit]
            self._users[unit] = 1
