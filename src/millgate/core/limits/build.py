"""How the limit of one engine is built, and where it begins."""

from millgate.core.limits.aimd import AimdLimit
from millgate.core.limits.gate import FixedLimit, Limit
from millgate.core.limits.pace import slope_s
from millgate.core.limits.slo_gradient import TARGET, SloGradientLimit
from millgate.core.settings import LimitSettings, ServicePrior


def build_limit(settings: LimitSettings, hard_cap: int, prior: ServicePrior) -> Limit:
    """Build the limit; a `slo_gradient` has a `tpot_slo` to keep."""
    if settings.kind == "fixed":
        return FixedLimit(hard_cap)
    slo_s = settings.tpot_slo_s
    start = settings.start or cold_start(prior, slo_s, hard_cap)
    if settings.kind == "aimd":
        return AimdLimit(hard_cap, start, settings.minimum, tpot_slo_s=slo_s)
    assert slo_s is not None
    return SloGradientLimit(slo_s, hard_cap, start, settings.minimum)


def cold_start(prior: ServicePrior, tpot_slo_s: float | None, hard_cap: int) -> int:
    """Return how many streams the prior believes to meet the SLO, within 1..hard cap; the hard cap without SLO.

    From TPOT = base + slope x streams (`pace`). The hard cap is by default what the KV cache holds, so neither
    way begins at 1.
    """
    if tpot_slo_s is None:
        return hard_cap
    streams = (TARGET * tpot_slo_s - prior.tpot_base_s) / max(slope_s(prior), 1e-9)
    return max(1, min(hard_cap, int(min(streams, float(hard_cap)))))
