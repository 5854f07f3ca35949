"""One request as a trace knows it: when, which tenant, how long. Everything else is how its client behaves."""

from typing import Final, NamedTuple

PREFIX_UNIT_TOKENS: Final = 512
"""Tokens that one prefix id stands for, as the published traces have it."""


class Job(NamedTuple):
    """What a user wants, in tokens; `at_s` is virtual seconds from the start of the run.

    `max_tokens` is the bound that the user set, None without one. `prefix_ids` name the full units of
    `PREFIX_UNIT_TOKENS` of the prompt, and of the answer where a trace shows that a later prompt begins with it. An id
    stands for all tokens up to its unit's end. The tuple is empty where a trace does not tell. `session` numbers the
    session that it is a turn of; 0 is none. `adapter` names the one that it asks for, "" the model itself.
    `of_agent` says that a coding agent asks.
    """

    at_s: float
    prompt_tokens: int
    output_tokens: int
    tenant: str = ""
    lane: str | None = None
    max_tokens: int | None = None
    stream: bool = True
    prefix_ids: tuple[int, ...] = ()
    session: int = 0
    adapter: str = ""
    of_agent: bool = False
