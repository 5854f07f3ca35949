"""What the configuration says about records of attempts: the log, and the decisions kept for `millgate why`."""

from pydantic import Field

from millgate.config.section import Section
from millgate.config.values import Count


class RecordsConfig(Section):
    """What is written down of each attempt: never a prompt, an answer or a key."""

    log_attempts: str | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="File that gets one line of JSON for every attempt that is over, `-` for standard output; SIGHUP "
        "opens it anew. Default: none is written.",
    )
    kept_attempts: Count = Field(
        default=10_000,
        ge=0,
        le=1_000_000,
        description="Attempts whose decisions are kept in memory for `millgate why`, about 250 bytes each; 0 keeps none: "
        "the live page alone then has the last few thousand.",
    )
