"""Laws of chance have the mean and the variation that they state."""

import numpy as np
import pytest

from millgate.sim import laws
from millgate.sim.laws import Law
from millgate.sim.traces.synthetic import LENGTHS

LAWS = [
    laws.constant(3.0),
    laws.exponential(2.0),
    laws.gamma(2.0, 4.0),
    laws.lognormal(2.0, 1.72),
    LENGTHS["azure_conversation"].output,
]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_a_law_has_its_stated_mean_and_variation(law: Law) -> None:
    values = law.sample(np.random.default_rng(1), 400_000)

    assert values.mean() == pytest.approx(law.mean, rel=0.02)
    assert values.var() / values.mean() ** 2 == pytest.approx(law.cv2, rel=0.08, abs=1e-9)


def test_a_quantile_law_keeps_its_published_points() -> None:
    law = laws.quantiles(((0.0, 10.0), (0.5, 100.0), (0.9, 500.0), (1.0, 1000.0)))
    values = law.sample(np.random.default_rng(1), 400_000)

    assert np.quantile(values, [0.5, 0.9]) == pytest.approx([100.0, 500.0], rel=0.02)
    assert values.min() >= 10.0
    assert values.max() <= 1000.0


def test_a_quantile_law_refuses_points_that_do_not_ascend() -> None:
    with pytest.raises(ValueError, match="points"):
        laws.quantiles(((0.0, 10.0), (0.5, 5.0), (1.0, 20.0)))
