"""How the limit of one engine is built, and where it begins."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from millgate.core.limits.aimd import AimdLimit
from millgate.core.limits.base import Limit
from millgate.core.limits.fixed import FixedLimit
from millgate.core.limits.pace import slope_s
from millgate.core.limits.slo_gradient import TARGET, SloGradientLimit
from millgate.core.limits.windowed import WindowedLimit
from millgate.core.settings import LimitKind, LimitSettings, ServicePrior


def build_limit(settings: LimitSettings, hard_cap: int, prior: ServicePrior) -> Limit:
    """Build the limit; ValueError naming the setting that no limit can be built from."""
    limit = _BUILDERS[settings.kind](settings, hard_cap, prior)
    if settings.window_s is None or settings.kind == "fixed":
        return limit
    return WindowedLimit(limit, settings.window_s, settings.window_samples)


def cold_start(prior: ServicePrior, tpot_slo_s: float | None, hard_cap: int) -> int:
    """Return how many streams the prior believes to meet the SLO, within 1..hard cap; the hard cap without SLO.

    From TPOT = base + slope x streams (`pace`). The hard cap is by default what the KV cache holds, so neither
    way begins at 1.
    """
    if tpot_slo_s is None:
        return hard_cap
    streams = (TARGET * tpot_slo_s - prior.tpot_base_s) / max(slope_s(prior), 1e-9)
    return max(1, min(hard_cap, int(min(streams, float(hard_cap)))))


def _fixed(_settings: LimitSettings, hard_cap: int, _prior: ServicePrior) -> Limit:
    return FixedLimit(hard_cap)


def _slo_gradient(settings: LimitSettings, hard_cap: int, prior: ServicePrior) -> Limit:
    if settings.tpot_slo_s is None:
        raise ValueError("limit: slo_gradient needs a tpot_slo, of a lane or its own")
    start = settings.start or cold_start(prior, settings.tpot_slo_s, hard_cap)
    return SloGradientLimit(settings.tpot_slo_s, hard_cap, start, settings.minimum)


def _aimd(settings: LimitSettings, hard_cap: int, prior: ServicePrior) -> Limit:
    start = settings.start or cold_start(prior, settings.tpot_slo_s, hard_cap)
    return AimdLimit(hard_cap, start, settings.minimum, tpot_slo_s=settings.tpot_slo_s)


_BUILDERS: Mapping[LimitKind, Callable[[LimitSettings, int, ServicePrior], Limit]] = MappingProxyType(
    {"fixed": _fixed, "slo_gradient": _slo_gradient, "aimd": _aimd}
)
