"""The closed vocabularies of the core; the same words are metric labels, log fields and table keys.

`docs/glossary.md` explains each word; `docs/design.md` section 2 is where they were fixed.
"""

from enum import StrEnum
from typing import Final


class Reason(StrEnum):
    """Why an attempt was yielded; every dialect maps each of these to one status and one error body."""

    SATURATED = "saturated"
    QUEUE_FULL = "queue_full"
    DISPLACED = "displaced"
    TOO_LATE = "too_late"
    EXPIRED = "expired"
    QUOTA = "quota"
    TENANT_LIMIT = "tenant_limit"
    RETRY_BUDGET = "retry_budget"
    NO_ENGINE = "no_engine"
    NO_LEASE = "no_lease"
    DRAINING = "draining"
    TOO_LARGE = "too_large"
    OVERLOADED_GATE = "overloaded_gate"


class Counted(StrEnum):
    """What the numbers of a refusal are, where its reason alone does not say."""

    WAIT = "wait"
    STREAMS = "streams"
    SESSIONS = "sessions"
    ADAPTERS = "adapters"
    MEMORY = "memory"
    PROMPTS = "prompts"
    ACCOUNT = "account"
    PACE = "pace"


class LaneTakes(StrEnum):
    """Which requests without a lane of their own a lane takes."""

    LONG_PROMPTS = "long_prompts"
    BATCH = "batch"
    AGENTS = "agents"


class ClassedBy(StrEnum):
    """What has decided that a request belongs to a lane that it did not name."""

    PROMPT = "prompt"
    ANSWER = "answer"
    ONLY_READ = "only_read"
    AGENT = "agent"
    FIRST_ATTEMPT = "first_attempt"


class Outcome(StrEnum):
    """How an attempt ended; every attempt gets exactly one (INV-1)."""

    GOOD = "good"
    LATE = "late"
    YIELDED = "yielded"
    CLIENT_GONE = "client_gone"
    ENGINE_FAILED = "engine_failed"
    BAD_REQUEST = "bad_request"


class Stage(StrEnum):
    """Where an attempt stood when its client left."""

    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"


class FailureKind(StrEnum):
    """How an engine failed an admitted attempt."""

    CONNECT = "connect"
    REFUSED = "refused"
    TIMEOUT = "timeout"
    BROKEN = "broken"
    PROTOCOL = "protocol"
    STATUS = "status"
    ERROR_EVENT = "error_event"
    ABORT = "abort"
    NO_CREDIT = "no_credit"


UNREAD: Final = (FailureKind.CONNECT, FailureKind.REFUSED, FailureKind.NO_CREDIT)
"""Of an answer without a token: its engine has not read the prompt."""


class Sent(StrEnum):
    """How far an attempt had gone when its engine failed: nothing that it would work on, the request, or answer bytes to the client."""

    NONE = "none"
    REQUEST = "request"
    BYTES = "bytes"


class DeadlineFrom(StrEnum):
    """The origin of a lane's deadline: the request's first attempt, or each attempt's own arrival."""

    FIRST_ATTEMPT = "first_attempt"
    ATTEMPT = "attempt"


class IgnoresHangups(StrEnum):
    """Which answers an engine generates to their end for clients that left: found out, all, none, or those not streamed."""

    AUTO = "auto"
    YES = "yes"
    NO = "no"
    WHOLE = "whole"


class Role(StrEnum):
    """Which part of a request an engine takes: all of it, the reading of its prompt, or its answer."""

    UNIFIED = "unified"
    PREFILL = "prefill"
    DECODE = "decode"


class KvTransfer(StrEnum):
    """How a prompt's KV goes from one engine to another: fetched once it is read (vLLM's NIXL), or while both have the request (SGLang)."""

    NIXL = "nixl"
    SGLANG = "sglang"


class QuotaKind(StrEnum):
    """What a limit counts: requests or tokens a minute or a day; input tokens or output tokens a minute."""

    RPM = "rpm"
    RPD = "rpd"
    TPM = "tpm"
    TPD = "tpd"
    ITPM = "itpm"
    OTPM = "otpm"


class OutputCharge(StrEnum):
    """What an answer is charged before its length is known; all but `larger` are corrected by the real length.

    `expected`: the learned length. `max_tokens`: the user's bound, the learned length without one (Anthropic's older
    rule, Azure's). `produced`: nothing; output is charged as it is made, and a request passes while a token is left
    (Anthropic's rule today). `larger`: prompt or `max_tokens`, whichever is more, never corrected (OpenAI's TPM).
    """

    EXPECTED = "expected"
    MAX_TOKENS = "max_tokens"
    PRODUCED = "produced"
    LARGER = "larger"
