"""The limit of an engine in the configuration: whether and how it moves below the hard cap."""

from typing import Literal, Self

from pydantic import Field, model_validator

from millgate.config.objectives import TpotObjective
from millgate.config.values import Count, Section


class LimitConfig(Section):
    """How many streams an engine may run at once, below `max_inflight`, which always holds."""

    kind: Literal["fixed", "slo_gradient", "aimd"] | None = Field(
        default=None,
        description="`fixed` is `max_inflight`. `slo_gradient` steers the TPOT of answers to just below "
        "`tpot_slo`, at the quantile that it names, p95 where it names none. `aimd` adds one while all is well, and "
        "takes a tenth at any sign of overload. It adds its root where no `tpot_slo` is asked for and the engine says that "
        "nothing waits. Default: `slo_gradient` where a lane has a `tpot_slo`, else `fixed` where "
        "`max_inflight` is given and `aimd` where it is not.",
    )
    start: Count | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="Where it begins. Default: where the engine's profile or `prior` says that `tpot_slo` is met; "
        "`max_inflight` without a `tpot_slo`.",
    )
    minimum: Count = Field(default=4, ge=1, le=100_000, description="It never falls below this.")
    tpot_slo: TpotObjective | None = Field(
        default=None,
        description="Time per output token to keep, at its quantile where one is named. Default: the shortest `tpot_slo` of the "
        "lanes, of equal ones that with the highest quantile.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.start is not None and self.start < self.minimum:
            raise ValueError(f"`start` ({self.start}) is below `minimum` ({self.minimum})")
        if self.kind == "fixed" and self._moves():
            raise ValueError("`kind: fixed` does not move: give it nothing else, the limit is `max_inflight`")
        return self

    def _moves(self) -> bool:
        given = self.model_fields_set - {"kind"}
        return any(getattr(self, name) is not None for name in given)
