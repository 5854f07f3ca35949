"""One request as a trace knows it: when, which tenant, how long. Everything else is how its client behaves."""

from typing import NamedTuple


class Job(NamedTuple):
    """What a user wants, in tokens; `at_s` is virtual seconds from the start of the run.

    `max_tokens` is the bound that the user set, None without one. `blocks` name the prompt's shared prefix in
    blocks of 512 tokens (Mooncake's hashes), empty where a trace does not tell.
    """

    at_s: float
    prompt_tokens: int
    output_tokens: int
    tenant: str = ""
    lane: str | None = None
    max_tokens: int | None = None
    stream: bool = True
    blocks: tuple[int, ...] = ()
