"""What the log says of one attempt; docs/how-to/logs-and-why.md explains it field by field.

Structs stay with the interpreter, as the compiler drops the keywords of their classes; what fills them is compiled.
"""

import msgspec


class AttemptLine(msgspec.Struct, omit_defaults=True, gc=False):
    """What is written; times are seconds, what was never reached is left out."""

    time: str
    id: str
    attempt: int
    outcome: str
    reason: str | None = None
    retry_after_s: float | None = None
    retry: bool | None = None
    tenant: str | None = None
    lane: str | None = None
    engine: str | None = None
    stream: bool | None = None
    retry_count: int | None = None
    prompt_bytes: int | None = None
    expected_prompt_tokens: int | None = None
    reserved_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    waited_s: float | None = None
    window_s: float | None = None
    expected_ttft_s: float | None = None
    ttft_s: float | None = None
    total_s: float | None = None
    upstream_id: str | None = None
    trace_id: str | None = None
    expected_cached_tokens: int | None = None
    model: str | None = None
