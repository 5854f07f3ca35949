"""Generated traffic has the rate, the burstiness and the shape that it was asked for."""

from itertools import islice

import numpy as np
import pytest

from millgate.sim.jobs import Job
from millgate.sim.randomness import Streams
from millgate.sim.traces import sources
from millgate.sim.traces.synthetic import LENGTHS, jobs, steady


@pytest.mark.parametrize("variation", [1.0, 2.0, 4.0])
def test_gaps_have_the_rate_and_variation_asked_for(variation: float) -> None:
    gaps = np.diff(list(islice(steady(10.0, Streams(1), variation), 100_000)))

    assert 1.0 / gaps.mean() == pytest.approx(10.0, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.05)


def test_lengths_are_whole_and_at_least_one_and_tenants_take_turns_by_lot() -> None:
    some = list(jobs(steady(10.0, Streams(1)), LENGTHS["short"], Streams(1), until_s=100.0, tenants=5))

    assert all(job.prompt_tokens >= 1 and job.output_tokens >= 1 for job in some)
    assert {job.tenant for job in some} == {f"tenant-{number}" for number in range(5)}
    assert some[-1].at_s < 100.0


def test_traces_are_shaped_without_being_queued() -> None:
    three = [Job(0.0, 1, 1), Job(1.0, 2, 600), Job(3.0, 3, 3)]

    assert [job.at_s for job in sources.faster(three, 2.0)] == [0.0, 0.5, 1.5]
    assert [job.at_s for job in sources.between(three, 1.0, 3.0)] == [0.0]
