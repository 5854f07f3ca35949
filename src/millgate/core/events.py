"""What happens to the core: everything it may know comes in as one of these records, with a time beside it.

Attempts are numbered by their door; a number is never used twice in one process. NamedTuples, because a
frozen dataclass costs 0.6 us to build where these cost 0.2 us, and four of them are built per request.
"""

from collections.abc import Callable
from typing import NamedTuple

from millgate.core.words import FailureKind, QuotaKind, Sent

PromptShape = tuple[int, int, int, int, int, int, int]
"""Of what a prompt's text is made: messages, bytes of declared tools, and letters, spaces, digits, signs and bytes beyond ASCII."""

PrefixMarks = tuple[tuple[int, int], ...]
"""Prefixes of a prompt, the shortest first and the whole prompt last: what each is known by, and the bytes of content in it.

Equal numbers stand for equal prefixes. Of a prompt of so many tokens a prefix has the share that it has of the last one's bytes.
"""


class Arrived(NamedTuple):
    """A user asks; answered by exactly one of Admit, Queue or Yield for this attempt.

    `prompt_bytes` is the length of what will be tokenised (the body is a good stand-in), `body_bytes` what the door
    keeps in memory. `max_tokens` bounds the answer, None when the user set no bound; `answers` counts the sequences
    that an engine makes of it (`n` of each prompt, each text of a list): it takes as many streams. `time_allowed_s` is
    a client-given time to the first token (streaming) or to the whole answer (not streaming), counted from arrival; it
    only shortens the lane's deadline. `first_seen` is handed in when the door knows the request (a verified ticket, the
    same job on a line connection). `retry_count` is the client's own label (`x-stainless-retry-count`), None without
    one; 0 says outright that this is a first attempt. `fingerprint` is called only at a yield, a hang-up, or while the
    tenant has records. `due_at` is when it was told to come, by a ticket, and `hint_s` how long it had to wait for
    that; `caps_sleep` says that it may come now whatever it was told: its client cannot wait so long, or was promised
    no place. An answer has at least `min_tokens`; `fixed_tokens` of the prompt are not in `prompt_bytes` (images);
    `prompt_shape` None leaves it at the bytes. Only `engine` can answer it, where that is set. `may_clip` says that a
    shorter answer would still be of use. `marks` is called at most once, at the arrival, and only by what places by
    prefixes; None for what is no conversation. `session` is a number for the session that its client names, one for
    each tenant's; None without one. `seen_late` says that the first token of its stream is told seconds after it came:
    until then its prompt is believed to be read in the time that was foreseen. `hands_over` says that its door can let
    one engine read its prompt and another one write its answer, `bootstraps` that it can send it to both at once.
    `of_agent` says that a program asks, which waits where people leave.
    """

    attempt: int
    tenant: str = ""
    lane: str | None = None
    model: str = ""
    prompt_bytes: int = 0
    body_bytes: int = 0
    max_tokens: int | None = None
    answers: int = 1
    stream: bool = True
    time_allowed_s: float | None = None
    retry_count: int | None = None
    first_seen: float | None = None
    max_wait_s: float | None = None
    due_at: float | None = None
    caps_sleep: bool = False
    min_tokens: int = 0
    fixed_tokens: int = 0
    engine: str | None = None
    may_clip: bool = False
    hint_s: float = 0.0
    seen_late: bool = False
    hands_over: bool = False
    bootstraps: bool = False
    of_agent: bool = False
    # Last, so that an observer cuts them off in one go: the first and the last are not read again, the others keep the
    # body alive.
    prompt_shape: PromptShape | None = None
    fingerprint: Callable[[], int] | None = None
    marks: Callable[[], PrefixMarks] | None = None
    session: int | None = None


class ClientGone(NamedTuple):
    """The client of this attempt has left; the attempt ends now, its permit when the engine is done with it."""

    attempt: int


class Withdrawn(NamedTuple):
    """The clients of these refused requests of one tenant have left: their appointments end now.

    `fingerprints` are those of their arrivals. The requests stay known by them: one that comes again keeps its age.
    """

    fingerprints: tuple[int, ...]
    tenant: str = ""


class FirstToken(NamedTuple):
    """The first event with content of a streamed answer has arrived from the engine, `ago_s` before it is told."""

    attempt: int
    ago_s: float = 0.0


class Prefilled(NamedTuple):
    """The engine that reads the prompt of this attempt has done so; it had `cached_tokens` of it, None where it does not say."""

    attempt: int
    prompt_tokens: int | None = None
    cached_tokens: int | None = None


class HandoffFailed(NamedTuple):
    """The engine that reads could not, or what it kept cannot be had: the other one reads the prompt itself, or fails too (SGLang)."""

    attempt: int
    kind: FailureKind


FirstLegNews = Prefilled | HandoffFailed


class Finished(NamedTuple):
    """The engine has answered whole; token counts are None where the engine reported no usage.

    `cached_tokens` are those of the prompt that the engine had in its cache, None where it does not say. With `released` it says
    at once what a `Released` would say next.
    """

    attempt: int
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    released: bool = False


class Failed(NamedTuple):
    """The engine has failed this attempt; `hint_s` is the engine's own retry-after, if it gave one.

    `over_limit` says that a provider's own limit was met (429), `limit` which, where its answer names one. With
    `blames_request` the engine has answered that this request is at fault (most 4xx). With `blames_key` (401, 402, 403)
    or `blames_name` (404, 405: it knows no such model or path) either the request or the setup is.
    """

    attempt: int
    kind: FailureKind
    sent: Sent
    hint_s: float | None = None
    over_limit: bool = False
    limit: QuotaKind | None = None
    blames_request: bool = False
    blames_key: bool = False
    blames_name: bool = False


class Released(NamedTuple):
    """The engine is known to be done with this attempt: after a whole answer, a failure, or a confirmed abort."""

    attempt: int


class Growth(NamedTuple):
    """Output tokens that an attempt has produced so far, and what its engine has said of its prompt, if it has."""

    attempt: int
    output_tokens: int
    prompt_tokens: int | None = None
    cached_tokens: int | None = None


class EngineProgress(NamedTuple):
    """One engine's second: how far its streams have come, reported once a second by the runtime."""

    engine: str
    streams: tuple[Growth, ...] = ()


class AdaptersSeen(NamedTuple):
    """What one engine says of its adapters (LoRA): how many it runs at once, and which of them run."""

    slots: int
    running: tuple[str, ...] = ()


class EngineSeen(NamedTuple):
    """One engine's own gauges, read at `seen_at`; None for what did not parse (unknown, never a failure).

    `preemptions` counts since the engine's start.
    """

    engine: str
    seen_at: float
    running: int | None = None
    waiting: int | None = None
    kv_share: float | None = None
    preemptions: int | None = None
    adapters: AdaptersSeen | None = None


class Remaining(NamedTuple):
    """One limit as the provider sees it: None for what it does not say, or says absurdly.

    `reset_s` is the time until it is full again, seconds from now.
    """

    kind: QuotaKind
    limit: float | None = None
    remaining: float | None = None
    reset_s: float | None = None


QuotaReading = tuple[Remaining, ...]
"""Everything that one answer says, each kind at most once; empty when it says nothing."""


class QuotaSeen(NamedTuple):
    """What the provider behind this engine says of its limits, in the headers of an answer."""

    engine: str
    reading: QuotaReading


class EngineUp(NamedTuple):
    """This engine answers again; on `trial` it gets one request, and no other until it is up without trial."""

    engine: str
    trial: bool = False


class EngineDown(NamedTuple):
    """This engine takes no new work until EngineUp."""

    engine: str


class Draining(NamedTuple):
    """The process is leaving: queued attempts are yielded, new ones refused, running ones go on.

    After `grace_s` what still runs is cancelled; None lets it run as long as it likes.
    """

    grace_s: float | None = None


class EngineShare(NamedTuple):
    """This replica's share of one engine, in whole streams and tokens; None for a meter that is not shared."""

    engine: str
    streams: int
    kv_tokens: int | None = None
    prefill_tokens: int | None = None


class QuotaShare(NamedTuple):
    """This replica's share of the one bucket of a quota (a rule's name), or of a provider account's limit of this kind."""

    quota: str
    rate_per_s: float
    burst: float


class QuotaUse(NamedTuple):
    """What is `used` of one bucket of a quota: that of this tenant, model and lane, or the one for all.

    A replica counts what it has used of its own `part` of the bucket, 1 where it has the whole.
    """

    quota: str
    tenant: str | None
    model: str | None
    lane: str | None
    used: float
    part: float = 1.0


class QuotasKept(NamedTuple):
    """What was used of quotas `ago_s` seconds ago, by the process before this one: so much less is left now."""

    uses: tuple[QuotaUse, ...]
    ago_s: float


class AccountShare(NamedTuple):
    """This replica's shares of the limits of the account that an engine is; each `quota` is the limit's kind."""

    engine: str
    limits: tuple[QuotaShare, ...]


class TenantShare(NamedTuple):
    """This replica's share of a tenant's `max_inflight`, in whole streams."""

    tenant: str
    streams: int


class OthersLine(NamedTuple):
    """What waits for one pool at all other replicas together: the sums of their `PoolLine`s."""

    pool: str
    queued: int
    work_s: float
    came: float = 0.0
    told: float = 0.0


class LeaseGranted(NamedTuple):
    """What this replica has of the limits that a cluster shares, until `until` (core time).

    From then on nothing new is admitted against them, unless another LeaseGranted has come. An engine, a quota, an
    account or a tenant with a cap that is not named has no share. A quota with a bucket for each owner is divided
    evenly among so many `replicas`. `lines` are those of the other replicas, by pool. `retries` is the share of the
    retry budget, None before the first lease. With `closed` it has none until its store is back, and new requests are
    refused: another replica may have one.
    """

    until: float
    replicas: int = 1
    engines: tuple[EngineShare, ...] = ()
    quotas: tuple[QuotaShare, ...] = ()
    accounts: tuple[AccountShare, ...] = ()
    lines: tuple[OthersLine, ...] = ()
    tenants: tuple[TenantShare, ...] = ()
    retries: int | None = None
    closed: bool = False


class HeldBack(NamedTuple):
    """The client of this attempt reads its stream more slowly than its engine writes: its pace is no longer the engine's."""

    attempt: int


class StoodStill(NamedTuple):
    """This process has done nothing for a while: when what it reads now came is unknown, so times of what runs teach nothing."""


class Tick(NamedTuple):
    """Time has passed; sent at the latest when `next_wake` said so."""


Event = (
    Arrived
    | ClientGone
    | Withdrawn
    | FirstToken
    | Prefilled
    | HandoffFailed
    | Finished
    | Failed
    | Released
    | EngineProgress
    | EngineSeen
    | QuotaSeen
    | QuotasKept
    | EngineUp
    | EngineDown
    | Draining
    | LeaseGranted
    | HeldBack
    | StoodStill
    | Tick
)
