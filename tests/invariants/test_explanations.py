"""What is explained is what is done, and an explanation changes nothing, all along stories of users that return.

The machine of the other invariants is drawn step by step and stays short; here a few hundred requests come, are
refused, and come back when told, a little late, or far too soon, to full short queues and to gates that hold nobody.
"""

from random import Random

import pytest

from invariants.story import Story

_STEPS = 300


@pytest.mark.parametrize("seed", range(40))
def test_an_explanation_is_the_decision_that_follows_and_changes_none_after_it(seed: int) -> None:
    story = Story(Random(seed), every=False)
    for _ in range(_STEPS):
        story.step()

    assert story.compared > 50
    assert story.gate.snapshot(story.now) == story.twin.snapshot(story.now)


@pytest.mark.parametrize("seed", range(60))
def test_so_it_is_with_every_policy_on(seed: int) -> None:
    story = Story(Random(seed), every=True)
    for _ in range(_STEPS):
        story.step()

    assert story.compared > 30
    assert story.gate.snapshot(story.now) == story.twin.snapshot(story.now)
