"""Lanes: what good means for a class of traffic, when it is refused, and what it may hold and borrow."""

from typing import Any, Final, Literal

from pydantic import Field

from millgate.config.units import Objective, TpotObjective, TtftObjective
from millgate.config.values import Count, Duration, DurationOrNever, Name, Number, RequestPath, Section, Size

MAX_LANES = 32
HOUR_S = 3600.0
DAY_S = 86400.0


class CoalesceConfig(Section):
    """Requests for embeddings that differ in their texts alone share a call, once two such calls are under way."""

    window: Duration = Field(
        default=0.005, gt=0, le=1.0, description="How long requests gather at most for one call."
    )
    most_inputs: Count = Field(
        default=8,
        ge=2,
        le=32,
        description="Most texts of one call; some servers take no more than 32. A request with as many goes alone.",
    )


class LaneConfig(Section):
    """One class of traffic: what good means, when it is refused, and how much of it may wait."""

    name: Name = Field(description="Its name in metrics and answers of the admin door, e.g. `interactive`.")
    ttft_slo: TtftObjective | None = Field(
        default=None,
        description="Time to the first token that is still good; with a quantile, the share of requests that is to have it. "
        "Default: 10s; for a lane that `takes` requests six times that of the first lane, a minute at least; twice as long for `agents`.",
    )
    tpot_slo: TpotObjective | None = Field(
        default=None,
        description="Time per output token that is still good, and with a quantile the share of requests that is to have it: "
        "adaptive limits steer that quantile. Default: not judged.",
    )
    deadline: Duration | None = Field(
        default=None,
        gt=0,
        le=DAY_S,
        description="Refuse what cannot have its first token by then. Default: `ttft_slo`.",
    )
    deadline_from: Literal["first_attempt", "attempt"] | None = Field(
        default=None,
        description="Where the deadline starts: at the request's first attempt or at each attempt's own arrival. "
        "Default: `first_attempt` for the lane `interactive`, `attempt` for others.",
    )
    takes: Literal["long_prompts", "batch", "agents"] | None = Field(
        default=None,
        description="Which requests this lane takes when neither key, header nor path names a lane. `long_prompts`: "
        "those whose prompt takes an idle engine longer than `over` to read. `batch`: those that are not streamed and "
        "whose whole answer takes an idle engine longer than `over`, and all that are only read (embeddings, rerank, "
        "score). `agents`: those of coding agents, which wait where people leave: known by the session that Claude Code "
        "names, or by the `User-Agent` of it, of Codex, opencode, Cline, Roo Code, Kilo Code or Qwen Code. What no lane takes is for the first lane. Default: none.",
    )
    over: Duration | None = Field(
        default=None,
        gt=0,
        le=DAY_S,
        description="The time from which on this lane `takes` a request. Default: the `ttft_slo` of the first lane for "
        "`batch`, half of it for `long_prompts`.",
    )
    paths: tuple[RequestPath, ...] = Field(
        default=(),
        max_length=64,
        description="Request paths, such as `/v1/embeddings`, whose requests take this lane when neither key nor "
        "header names one.",
    )
    order: Literal["arrival", "deadline", "short_first"] | None = Field(
        default=None,
        description="Which queued request of a tenant runs next. Default: `short_first` for the lane "
        "`interactive`, `arrival` for others.",
    )
    fair: bool = Field(
        default=True,
        description="Serve waiting tenants by the tokens that each has had, so that none crowds out the others.",
    )
    max_overtakes: Count | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="With `short_first`: no request is overtaken by more later arrivals than this. Default: no bound but the age.",
    )
    share: Number = Field(
        default=1.0,
        gt=0,
        le=1_000,
        description="Weight among the lanes that wait: a lane below its share of the streams goes first.",
    )
    headroom: Count = Field(
        default=0,
        le=100_000,
        description="Streams that no other lane may borrow; all lanes together keep at most half of the limit.",
    )
    prefill_rate: Count | None = Field(
        default=None,
        ge=1,
        le=100_000_000,
        description="Prompt tokens a second that each engine is given of this lane at most. Default: any number; but "
        "where a lane has a `tpot_slo`, lanes that promise less are paced so that it is kept.",
    )
    band: Count = Field(
        default=0,
        le=9,
        description="Importance: work of a smaller number goes first, and may take the place of queued work of a "
        "larger one when a queue is full.",
    )
    window: Duration = Field(
        default=0.0,
        le=60.0,
        description="Hold work until a batch is full or this time is over, never beyond what its deadline allows. "
        "Default: no window; engines that batch continuously want none.",
    )
    coalesce: CoalesceConfig | None = Field(
        default=None,
        description="Let requests for embeddings share calls to their engine. Default: each has its own.",
    )
    demote: Name | None = Field(
        default=None,
        description="Under pressure, try this lane instead of refusing; announced in `x-millgate-reshaped`.",
    )
    clip: Count | None = Field(
        default=None,
        ge=1,
        description="Under pressure, cut the answer to this many output tokens (never with tools, JSON schemas or a body above 1 MiB); "
        "announced in `x-millgate-reshaped`.",
    )
    max_queue: Count | None = Field(
        default=None,
        le=1_000_000,
        description="Maximum queue length, not counting clients that return on time; 0 queues no other: run now or "
        "refuse. Default: as many as can be served within the deadline.",
    )
    max_queue_tokens: Count | None = Field(
        default=None,
        ge=1,
        description="Most prompt and expected output tokens that wait. Default: not bounded.",
    )
    max_queue_bytes: Size = Field(default=256_000_000, ge=1, description="Most request bytes that wait.")
    max_wait: Duration | None = Field(
        default=None,
        le=DAY_S,
        description="Longest predicted wait, beside the deadline. Default: the deadline alone.",
    )
    hold_due: Duration | None = Field(
        default=None,
        le=60.0,
        description="Longest time that a client which returns on time is queued where newcomers are not; 0s with "
        "`max_queue: 0` queues nothing, ever. Default: a fifth of its hint, a second at least.",
    )

    overflow_after: DurationOrNever | None = Field(
        default=None,
        description="How long its requests wait for other engines before one for overflow gets them (`engines[].overflow`), half of their time at most; "
        "`never` for batch work. Default: a fifth of its deadline. A lane with `max_overtakes` or a `window` does not wait for them.",
    )

    def ttft_objective(self, first: "LaneConfig") -> Objective:
        """Return the time to the first token that is good, beside the first lane of the configuration."""
        if self.ttft_slo is not None:
            return self.ttft_slo
        if self.takes is None or self is first:
            return Objective(_TTFT_SLO_S)
        patient_s = max(_PATIENT_TIMES * first.ttft_objective(first).time_s, _PATIENT_LEAST_S)
        return Objective(2.0 * patient_s if self.takes == "agents" else patient_s)

    def over_s(self, first: "LaneConfig") -> float:
        """Return the time from which on it takes a request; without `takes` it has no meaning."""
        if self.over is not None:
            return self.over
        return (_LONG_PROMPT_PART if self.takes == "long_prompts" else 1.0) * first.ttft_objective(
            first
        ).time_s


_TTFT_SLO_S: Final = 10.0
# A prompt that is read for longer than this part of the first lane's objective leaves too little of it for waiting.
_LONG_PROMPT_PART: Final = 0.5
# What a person does not wait for may take so many times as long, and not less than a minute however short that is.
_PATIENT_TIMES: Final = 6.0
_PATIENT_LEAST_S: Final = 60.0

DEFAULT_LANES: Final[tuple[dict[str, Any], ...]] = (
    {"name": "interactive", "share": 8},
    {"name": "long_context", "takes": "long_prompts"},
    {
        "name": "throughput",
        "share": 4,
        "takes": "batch",
        "paths": ["/v1/chat/completions/batch"],
        "order": "short_first",
    },
    {"name": "agents", "takes": "agents"},
)
"""The lanes of a configuration that names none, as a file would write them."""
