"""One cheap row of each kind, through the governor; `python -m lab validate` runs them all at length."""

from dataclasses import replace

import pytest
from lab.truths.exact import exact_rows
from lab.truths.pools import pool_rows
from lab.truths.prefixes import prefix_rows
from lab.truths.rows import Truth, all_truths, judge, run_part

ALL = all_truths()
KINDS = {truth.name.partition(" at ")[0].partition(" (")[0]: index for index, truth in enumerate(ALL)}


@pytest.mark.parametrize("index", KINDS.values(), ids=KINDS.keys())
def test_a_short_run_agrees_with_its_formula_within_four_standard_errors(index: int) -> None:
    """Four and not three: with thirty rows one beyond three is no news."""
    truth: Truth = ALL[index]
    rows = judge(truth, [run_part(index, 0, 8_000 / truth.arrivals)])

    assert len(rows) == len(truth.measures)
    for row in rows:
        assert abs(row.got - row.expected) <= 4.0 * row.stderr, row
        assert 0.0 < row.stderr < 0.2 * row.expected


def test_a_wrong_expectation_is_found_out() -> None:
    index = KINDS["Erlang B"]
    tally = run_part(index, 0, 0.2)
    truth = ALL[index]
    measure = truth.measures[0]
    wrong = Truth(truth.name, truth.queue, truth.arrivals, (replace(measure, expected=0.5),))

    assert not judge(wrong, [tally])[0].ok


def test_identities_hold_exactly() -> None:
    rows = exact_rows(2_000)

    assert [row.name for row in rows if not row.ok] == []
    assert len(rows) == 7


def test_engines_with_prefix_caches_find_what_their_formulas_say() -> None:
    rows = prefix_rows(20_000)
    estimated, exact = [row for row in rows if row.stderr], [row for row in rows if not row.stderr]

    assert [row.name for row in exact if not row.ok] == []
    assert (len(estimated), len(exact)) == (3, 8)
    for row in estimated:
        assert abs(row.got - row.expected) <= 4.0 * row.stderr < 0.1 * row.expected, row


def test_prefill_and_decode_apart_obey_their_formulas_and_bounds() -> None:
    alone, waits, *bounds = pool_rows(12_000)

    assert alone.ok
    assert abs(waits.got - waits.expected) <= 4.0 * waits.stderr < 0.05 * waits.expected
    assert [row.name for row in bounds if not row.ok] == []
    assert len(bounds) == 3


def test_there_are_at_least_thirty_rows() -> None:
    assert sum(len(truth.measures) for truth in ALL) >= 30
