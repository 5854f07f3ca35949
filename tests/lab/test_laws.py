"""Laws of chance that only studies need have the mean and the variation that they state."""

import numpy as np
import pytest
from lab.laws import clipped, erlang, hyperexponential, uniform

from millgate.sim.laws import Law, exponential

LAWS = [uniform(1.0, 3.0), erlang(2.0, 4), hyperexponential(2.0, 4.0), clipped(exponential(2.0), 5.0)]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_a_law_has_its_stated_mean_and_variation(law: Law) -> None:
    values = law.sample(np.random.default_rng(1), 400_000)

    assert values.mean() == pytest.approx(law.mean, rel=0.02)
    assert values.var() / values.mean() ** 2 == pytest.approx(law.cv2, rel=0.08, abs=1e-9)
