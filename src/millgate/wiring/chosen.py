"""The numbers that no setting gave: how each was found, in words for the banner.

Design section 10: max_inflight = flag, else KV tokens of the engine over mean tokens per request within 4..256,
else 256. The token meter is 0.9 of the KV tokens when they are known, else off.
"""

from collections.abc import Mapping
from typing import NamedTuple

from millgate.config.problems import SettingPath, ValueOrigin
from millgate.config.schema import EngineConfig
from millgate.core.words import Role

# Azure's public LLM traces have 1,366 (conversation) and 2,076 (code) prompt and output tokens per request on
# average; 2,000 is their upper end, rounded: a cap that is somewhat low queues, one that is too high preempts.
MEAN_TOKENS_PER_REQUEST = 2_000
ACCOUNT_INFLIGHT = 1_000  # ten requests a second whose answers take a hundred: beyond what one process relays
# `max_num_seqs` is 256 in vLLM by default. An engine that says nothing is capped there: predicted waits keep what it is sent
# within the deadline, while a cap of 64 gave an engine that runs 200 a fifth less (`python -m lab run found_cap`).
FEWEST_INFLIGHT, MOST_INFLIGHT = 4, 256
# Eight chunks of an engine that reads 2,048 tokens a step. Long prompts behind one another make each other late; read
# a few at a time they are in time. Good answers of the Azure code trace: +40 % at 1.25 times the capacity, +60 % at
# twice, +110 % at five times; conversations lose at most a hundredth (docs/simulator.md).
PREFILL_TOKENS = 16_384
# Of an engine with the role `prefill`, which delays no answer. What its meter keeps out is read between the answers of another
# engine, and fewer tokens keep out most. Good requests a second of 8,000 tokens at 0.8 of four engines: 5.4 with this, 2.9 with
# 16,384 (`python -m lab run prefill_decode --seeds 1`, `--set reader_tokens=16384`).
READER_PREFILL_TOKENS = 131_072
KV_SHARE = 0.9  # the rest absorbs estimates that were too low before the engine must preempt


class EngineFacts(NamedTuple):
    """What an engine tells of itself; None where it does not tell. One that is not `is_seen` shows no metrics page yet."""

    kv_tokens: int | None = None
    model: str | None = None
    is_seen: bool = True

    @property
    def silence(self) -> str:
        """Why its KV tokens are not known."""
        if self.is_seen:
            return "the engine does not tell its KV tokens"
        return "the engine shows no metrics page yet; looked at again every second"


class ChosenNumber(NamedTuple):
    """One number in force and why it is that: `127.0.0.1:8000 max_inflight`, `64`, `--max-inflight`."""

    name: str
    value: str
    why: str


def choose_max_inflight(
    engine: EngineConfig, facts: EngineFacts, given_by: str | None
) -> tuple[int, ChosenNumber]:
    """Return the hard cap of an engine and the reason for it."""
    name = f"{engine.name} max_inflight"
    if engine.max_inflight is not None:
        return engine.max_inflight, ChosenNumber(name, str(engine.max_inflight), given_by or "given")
    kv_tokens = engine.kv_tokens or facts.kv_tokens
    if engine.account is not None and kv_tokens is None:
        return ACCOUNT_INFLIGHT, ChosenNumber(
            name, str(ACCOUNT_INFLIGHT), "the account's own limits bound it"
        )
    if kv_tokens is None:
        return MOST_INFLIGHT, ChosenNumber(name, str(MOST_INFLIGHT), f"default: {facts.silence}")
    streams = min(MOST_INFLIGHT, max(FEWEST_INFLIGHT, kv_tokens // MEAN_TOKENS_PER_REQUEST))
    why = (
        f"{kv_tokens:,} KV tokens / {MEAN_TOKENS_PER_REQUEST:,} tokens per request, "
        f"within {FEWEST_INFLIGHT}..{MOST_INFLIGHT}"
    )
    return streams, ChosenNumber(name, str(streams), why)


def choose_kv_tokens(
    engine: EngineConfig, facts: EngineFacts, given_by: str | None
) -> tuple[int | None, ChosenNumber]:
    """Return the limit of an engine's KV meter, None for off, and the reason for it."""
    name = f"{engine.name} kv_tokens"
    if engine.kv_tokens is not None:
        return engine.kv_tokens, ChosenNumber(name, f"{engine.kv_tokens:,}", given_by or "given")
    if facts.kv_tokens is None:
        return None, ChosenNumber(name, "off", facts.silence)
    limit = max(1, int(facts.kv_tokens * KV_SHARE))
    return limit, ChosenNumber(
        name, f"{limit:,}", f"{KV_SHARE:g} x the {facts.kv_tokens:,} KV tokens that the engine holds"
    )


def default_prefill_tokens(role: str) -> int:
    """Return the limit of the prefill meter of an engine with this role, where no setting gives one."""
    return READER_PREFILL_TOKENS if role == Role.PREFILL else PREFILL_TOKENS


def choose_prefill_tokens(engine: EngineConfig, given_by: str | None) -> tuple[int | None, ChosenNumber]:
    """Return the limit of an engine's prefill meter, None for off, and the reason for it."""
    name = f"{engine.name} prefill_tokens"
    if engine.prefill_tokens is not None:
        return engine.prefill_tokens, ChosenNumber(name, f"{engine.prefill_tokens:,}", given_by or "given")
    if engine.account is not None:
        return None, ChosenNumber(name, "off", "the account's own limits bound it")
    tokens = default_prefill_tokens(engine.role)
    return tokens, ChosenNumber(name, f"{tokens:,}", "default: prompts that wait to be read")


def origin(places: Mapping[SettingPath, ValueOrigin], *path: str | int) -> str | None:
    """Return the source of the setting at `path`, or None for a default; a list given as a whole counts."""
    for length in range(len(path), 1, -1):
        place = places.get(path[:length])
        if place is not None:
            return str(place)
    return None
