"""What may be asked for in a minute: quotas of tenants, models and lanes, and the provider's account of an engine."""

from typing import Literal, Self

from pydantic import Field, model_validator

from millgate.config.values import Count, Duration, Name, Section

MAX_QUOTAS = 10_000
_DAY_S = 86400.0

KINDS = ("rpm", "rpd", "tpm", "tpd", "itpm", "otpm")
"""The limits that a rule may set, by the names of its settings."""


class RatesConfig(Section):
    """So much a minute or a day, any of six; what several of them hold must fit them all."""

    rpm: Count | None = Field(default=None, ge=1, le=10**9, description="Requests a minute.")
    rpd: Count | None = Field(default=None, ge=1, le=10**10, description="Requests a day.")
    tpm: Count | None = Field(default=None, ge=1, le=10**10, description="Prompt and output tokens a minute.")
    tpd: Count | None = Field(
        default=None, ge=1, le=10**13, description="Prompt and output tokens a day: a budget."
    )
    itpm: Count | None = Field(default=None, ge=1, le=10**10, description="Prompt tokens a minute.")
    otpm: Count | None = Field(default=None, ge=1, le=10**10, description="Output tokens a minute.")
    burst: Duration | None = Field(
        default=None,
        gt=0,
        le=_DAY_S,
        description="How long unused quota is saved up: `10s` lets ten seconds' worth through at once. Default: the "
        "whole minute (day for `rpd` and `tpd`).",
    )
    count_cached: bool = Field(
        default=True, description="Whether prompt tokens count that the engine had in its cache."
    )

    @model_validator(mode="after")
    def _has_a_rate(self) -> Self:
        if all(getattr(self, kind) is None for kind in KINDS):
            raise ValueError(f"sets no limit: give at least one of {', '.join(KINDS)}")
        return self


class QuotaConfig(RatesConfig):
    """A limit on what clients may ask for; a request must fit every rule that it falls under."""

    name: Name = Field(description="Its name in the numbers of `millgate why`, with the limit: `NAME.rpm`.")
    tenant: Name | None = Field(default=None, description="Holds this tenant alone. Default: every tenant.")
    model: str | None = Field(
        default=None,
        min_length=1,
        max_length=256,
        description="Holds this model alone. Default: every model.",
    )
    lane: Name | None = Field(default=None, description="Holds this lane alone. Default: every lane.")
    each: tuple[Literal["tenant", "model", "lane"], ...] = Field(
        default=(),
        max_length=3,
        description="What has limits of its own: with `[tenant]` every tenant. Default: all requests that "
        "fall under the rule share them.",
    )
    output: Literal["expected", "max_tokens", "produced"] = Field(
        default="expected",
        description="What an answer is charged in `tpm`, `tpd` and `otpm` before its length is known: its expected length, "
        "the client's bound, or nothing until it is produced. The real length replaces it.",
    )

    @model_validator(mode="after")
    def _check_each(self) -> Self:
        for scope in self.each:
            if getattr(self, scope) is not None:
                raise ValueError(f"`{scope}` names one and `each` asks for all of them: give one")
        return self


class AccountConfig(RatesConfig):
    """The limits that the provider of an engine puts on everything that is sent there."""

    output: Literal["expected", "max_tokens", "produced", "larger"] = Field(
        default="max_tokens",
        description="What the provider charges an answer in `tpm`, `tpd` and `otpm` before its length is known. `expected` "
        "is a learned length, `max_tokens` the client's bound, and `produced` nothing until it is produced (Anthropic). "
        "`larger` is prompt or bound, whichever is more, for good (OpenAI's `tpm`).",
    )
