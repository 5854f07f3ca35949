"""Decisions in words."""

from millgate.core.decisions import Admit, Candidate, Leg
from millgate.observe.explanation import sentence


def test_an_admission_says_what_engines_hold_of_its_prompt_and_what_each_costs() -> None:
    candidates = (Candidate("b", 40_000, 1.25), Candidate("a", 0, 7.5))
    admit = Admit(1, (Leg("b", 1, 50_000, 10_000),), 0.0, 0.5, 9.0, candidates=candidates)
    assert sentence(admit, 0.0).endswith(
        "; b holds 40,000 tokens of it and costs 1.2 s, a holds 0 tokens of it and costs 7.5 s"
    )
