"""What the core answers: each decision names its attempt first and carries the numbers that made it."""

from typing import NamedTuple

from millgate.core.words import ClassedBy, Counted, FailureKind, Outcome, QuotaKind, Reason, Stage

Cause = Stage | FailureKind | Reason | None
"""Which stage, kind or reason qualifies an outcome; good and late have none."""


class Leg(NamedTuple):
    """One permit on one engine, in its three meters: streams, KV tokens, prompt tokens not yet prefilled."""

    engine: str
    streams: int
    kv_tokens: int
    prompt_tokens: int


class QuotaState(NamedTuple):
    """One bucket as its owner may see it: what is left of `limit`, and when it is full again."""

    rule: str
    kind: QuotaKind
    limit: float
    remaining: float
    reset_s: float


class Reshaped(NamedTuple):
    """How a request was changed so that it need not be refused: run in `lane`, cut to `max_tokens`; None is unchanged."""

    lane: str | None = None
    max_tokens: int | None = None


class Classed(NamedTuple):
    """Why a request that named no lane is in `lane`, which is not the one that takes all others.

    An idle engine takes `value_s` to read its prompt of so many tokens, or to answer it whole, and `bound_s` is where
    the lane begins; both are 0 where `by` needs no number.
    """

    lane: str
    by: ClassedBy
    prompt_tokens: int
    value_s: float = 0.0
    bound_s: float = 0.0


class Candidate(NamedTuple):
    """An engine where a request could go: so much of its prompt is believed to be held there, and it costs so many seconds of all that wait."""

    engine: str
    cached_tokens: int
    prompt_tokens: int
    cost_s: float


class Admit(NamedTuple):
    """Run it now on these legs: the first is where its answer is made; of two, the second reads its prompt before.

    `first_event_by` is when the engine must have sent its first event (streaming) or its whole answer (not streaming),
    an absolute core time; past it the runtime reports Failed(TIMEOUT). `would` is set only in observe mode: the reason
    a protecting gate would have refused with. `quota` is what is left of the buckets that it falls under. `due_at` is
    when its client had been told to be back, by whatever it was recognised by; None for a client that was told nothing.
    `window_s` of the wait were for the company of its lane's batch window. `classed` says why it is in its lane, where
    its size decided that. `candidates` are the one taken, the engines that hold of its prompt, full ones too, and the
    cheapest other one; none where no engine holds any of it. `first_seen` is when the request's first
    attempt came; 0 is not known. It is `beyond_others` on an engine for overflow.
    """

    attempt: int
    legs: tuple[Leg, ...]
    waited_s: float
    expected_ttft_s: float
    first_event_by: float
    would: Reason | None = None
    reshaped: Reshaped | None = None
    quota: tuple[QuotaState, ...] = ()
    due_at: float | None = None
    window_s: float = 0.0
    classed: Classed | None = None
    candidates: tuple[Candidate, ...] = ()
    first_seen: float = 0.0
    beyond_others: bool = False

    @property
    def prompt_tokens(self) -> int:
        """How long its prompt is taken to be; where no engine holds any of it, no longer than its engine's meter of prompts."""
        if self.candidates:
            return self.candidates[0].prompt_tokens
        return self.legs[1].kv_tokens if len(self.legs) > 1 else self.legs[0].prompt_tokens

    @property
    def cached_tokens(self) -> int | None:
        """How much of its prompt its engine is believed to hold; None where no engine holds any of it."""
        for candidate in self.candidates:
            if candidate.engine == self.legs[0].engine:
                return candidate.cached_tokens
        return None


class Queue(NamedTuple):
    """Keep it: it waits at this place (1 is next) and is expected to run after `expected_wait_s`; `classed` as in `Admit`.

    With `better_until` it could go to an engine, the first of the `candidates` (as in `Admit`). It waits until that
    core time for one that is cheaper, or that is in time where those with room are not. `counted` says that it waits for its
    lane's pace.
    """

    attempt: int
    place: int
    expected_wait_s: float
    classed: Classed | None = None
    candidates: tuple[Candidate, ...] = ()
    better_until: float = 0.0
    counted: Counted | None = None


class Yield(NamedTuple):
    """Refuse it, at the door or out of the queue; it has not touched an engine.

    `retry_after_s` is a promise: come back then and you will be admitted. `retry` False means that coming back is
    useless. `value` is what was measured and `bound` the line that it crossed, in the reason's own unit (streams,
    attempts, seconds). `counted` says where they are not: of a saturated gate that they are a wait and what it may be,
    or that wait until a live session may end; of a request that is too large that they are streams, not tokens; of one that
    is too late that its lane's pace is why.
    `promised` is how much of a quota (requests or tokens) clients are expected to take that were told to come before
    this one. `first_seen` is when the request's first attempt came, for a ticket; `classed` as in `Admit`.
    """

    attempt: int
    reason: Reason
    retry_after_s: float
    retry: bool
    value: float = 0.0
    bound: float = 0.0
    first_seen: float = 0.0
    quota: tuple[QuotaState, ...] = ()
    counted: Counted | None = None
    promised: float = 0.0
    classed: Classed | None = None

    @property
    def short_of(self) -> QuotaState | None:
        """The bucket that had too little, of a refusal by a quota: the one that has so much left."""
        return next((each for each in self.quota if each.remaining == max(0.0, self.bound)), None)


class Cancel(NamedTuple):
    """Stop an admitted attempt: abort it upstream, tell its client; its permit still ends with Released."""

    attempt: int
    reason: Reason
    retry_after_s: float


class Ended(NamedTuple):
    """The one outcome of an attempt that was queued or admitted, with what is known of it.

    `cause` is the stage of a client_gone, the kind of an engine_failed, the reason of a yielded, else None. Times
    are seconds; None where the stage was never reached. Token counts are the engine's where it reported them,
    else estimates. `cached_tokens` of the prompt were in the engine's cache; None where it does not say.
    """

    attempt: int
    outcome: Outcome
    lane: str
    engine: str | None
    waited_s: float
    total_s: float
    ttft_s: float | None
    prompt_tokens: int
    output_tokens: int
    cause: Cause
    cached_tokens: int | None = None


Decision = Admit | Queue | Yield | Cancel | Ended


class Explanation(NamedTuple):
    """What `handle(Arrived)` would answer now, and the numbers behind it; asking changes nothing.

    The decision is the one that the same arrival would get at the same time. `deadline` is an absolute core
    time, sizes are tokens, waits seconds. An idle engine reads the prompt in `reading_s`; `classed` as in `Admit`, and so are the
    `candidates` where an engine holds of its prompt; else they are the cheapest of several that are up, the one taken first.
    """

    decision: Admit | Queue | Yield
    lane: str
    engine: str | None
    prompt_tokens: int
    output_tokens: int
    kv_tokens: int
    first_seen: float
    recognised: bool
    deadline: float
    expected_wait_s: float
    expected_ttft_s: float
    running: int
    queued: int
    limit: int
    reading_s: float
    classed: Classed | None = None
    candidates: tuple[Candidate, ...] = ()
