"""A switch puts the plain rule in the place of a refinement for as long as it lasts, and says what would go with it."""

import pytest
from lab.refinements import REFINEMENTS
from lab.suites import SUITES
from lab.switches import Refinement, switched_off

from millgate.core.sizing import service_demand
from millgate.core.sizing.service_demand import PromptReading


def test_a_function_a_property_and_a_constant_are_replaced_and_put_back() -> None:
    method, speed = PromptReading.unread, vars(PromptReading)["per_token_s"]
    plain = Refinement(
        "reading",
        "none",
        (),
        {
            "sizing.service_demand:PromptReading.unread": lambda _reading, tokens, _now: tokens,
            "sizing.service_demand:PromptReading.per_token_s": 0.0,
            "sizing.service_demand:MEMORY": 7.0,
        },
    )

    with switched_off(plain):
        told = PromptReading(0.001, 0.0)
        assert told.unread(500, 100.0) == 500
        assert told.per_token_s == 0.0
        assert vars(service_demand)["MEMORY"] == 7.0

    assert PromptReading.unread is method
    assert vars(PromptReading)["per_token_s"] is speed
    assert vars(service_demand)["MEMORY"] == 200.0


def test_all_is_put_back_where_one_place_does_not_exist() -> None:
    typo = Refinement(
        "typo", "none", (), {"sizing.service_demand:MEMORY": 7.0, "sizing.service_demand:_NO_SUCH": 1.0}
    )

    with pytest.raises(AttributeError, match="_NO_SUCH"), switched_off(typo):
        pass

    assert vars(service_demand)["MEMORY"] == 200.0


def test_the_size_is_the_lines_and_numeric_constants_of_all_places() -> None:
    method = Refinement("unread", "none", (), {"sizing.service_demand:PromptReading.interrupted": None})
    constant = Refinement("constant", "none", (), {"sizing.output_length:_DEVIATIONS": None})
    one_of_a_pair = Refinement("pair", "none", (), {"routing.working_set:_PAUSES": None})

    assert method.size() == (4, 0)
    assert constant.size() == (1, 1)
    assert one_of_a_pair.size() == (1, 1)
    assert Refinement("file", "none", (), {}, ("measure",)).size()[0] > 10


def test_a_part_that_the_core_does_not_have_is_named() -> None:
    with pytest.raises(ValueError, match="no such name in the core"):
        Refinement("typo", "none", (), {}, ("sizing.service_demand:PromptReading.no_such",)).size()


@pytest.mark.parametrize("refinement", REFINEMENTS, ids=lambda each: each.name)
def test_every_refinement_can_be_switched_off_has_a_size_and_known_suites(refinement: Refinement) -> None:
    with switched_off(refinement):
        pass

    assert refinement.size()[0] > 0
    assert refinement.suites
    assert set(refinement.suites) <= set(SUITES)
