"""How a limit is chosen, and where it begins."""

import pytest

from millgate.core.limits.aimd import AimdLimit
from millgate.core.limits.build import build_limit, cold_start
from millgate.core.limits.gate import FixedLimit
from millgate.core.limits.slo_gradient import SloGradientLimit
from millgate.core.settings import LimitSettings, ServicePrior

PRIOR = ServicePrior(0.05, 0.0001, 0.01, 0.0001)


@pytest.mark.parametrize(
    ("settings", "kind", "streams"),
    [
        (LimitSettings(), FixedLimit, 256),
        (LimitSettings("aimd"), AimdLimit, 256),
        (LimitSettings("aimd", start=30), AimdLimit, 30),
        (LimitSettings("slo_gradient", tpot_slo_s=0.05), SloGradientLimit, 62),
        (LimitSettings("slo_gradient", tpot_slo_s=0.05, start=500), SloGradientLimit, 256),
        (LimitSettings("slo_gradient", tpot_slo_s=0.001), SloGradientLimit, 4),
    ],
)
def test_every_kind_is_built(settings: LimitSettings, kind: type, streams: int) -> None:
    limit = build_limit(settings, 256, PRIOR)

    assert type(limit) is kind
    assert limit.current() == streams


def test_a_cold_start_is_where_the_prior_meets_the_slo() -> None:
    """0.955 x 50 ms = 10 ms + 0.6 ms x 62 streams."""
    assert cold_start(PRIOR, 0.05, 256) == 62
    assert cold_start(PRIOR, 0.05, 30) == 30
    assert cold_start(PRIOR, None, 64) == 64
    assert cold_start(ServicePrior(0.0, 0.0, 0.01, 0.0), 0.05, 64) == 64
