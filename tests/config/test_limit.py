"""The limit of an engine in the configuration."""

from typing import get_args

import pytest
from pydantic import ValidationError

from millgate.config.sections import LimitConfig
from millgate.config.units import Objective
from millgate.core.settings import LEAST_LIMIT, LimitKind, LimitSettings


def test_nothing_is_needed() -> None:
    limit = LimitConfig()
    assert (limit.kind, limit.start, limit.tpot_slo) == (None, None, None)
    assert limit.minimum == LEAST_LIMIT == LimitSettings().minimum


def test_units_are_read() -> None:
    limit = LimitConfig.model_validate({"kind": "slo_gradient", "start": "1k", "tpot_slo": "40ms"})
    assert (limit.start, limit.tpot_slo) == (1000, Objective(0.04))


def test_it_names_the_kinds_that_the_core_builds() -> None:
    (kinds, _nothing) = get_args(LimitConfig.model_fields["kind"].annotation)
    assert set(get_args(kinds)) == set(get_args(LimitKind))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"kind": "vegas"}, "'fixed', 'slo_gradient' or 'aimd'"),
        ({"start": 0}, "greater than or equal to 1"),
        ({"minimum": 0}, "greater than or equal to 1"),
        ({"tpot_slo": 0}, "must be more than 0s"),
        ({"start": 3}, r"`start` \(3\) is below `minimum` \(4\)"),
        ({"kind": "fixed", "tpot_slo": "40ms"}, "`kind: fixed` does not move"),
        ({"kind": "fixed", "minimum": 4}, "`kind: fixed` does not move"),
        ({"floor": 3}, "Extra inputs"),
    ],
)
def test_what_cannot_be_is_refused_by_name(data: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        LimitConfig.model_validate(data)
