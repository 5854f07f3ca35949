"""Reading and writing apart against together: the cost finds the better of the two, where either is better by far."""

from dataclasses import replace

from lab.experiments.apart import MIXES, Mix, Stage, play, reading_engines

SMALL = Stage(engines=2)


def test_there_are_twelve_mixes() -> None:
    assert len(set(MIXES)) == 12


def test_long_prompts_and_a_tight_pace_are_better_apart_and_that_is_chosen() -> None:
    mix = Mix(4_000.0, 64.0, 0.7)
    together, apart, chosen = (play(SMALL, mix, how, 1) for how in ("unified", "apart", "chosen"))
    assert apart["good_per_s"] > 2 * together["good_per_s"]
    assert chosen["good_per_s"] > 0.9 * apart["good_per_s"]


def test_a_quiet_engine_reads_more_of_its_prompts_itself() -> None:
    quiet, busy = (play(SMALL, Mix(500.0, 64.0, load), "chosen", 1)["apart_share"] for load in (0.05, 0.6))
    assert quiet + 0.1 < busy


def test_more_engines_write_where_long_contexts_leave_each_of_them_few_streams_within_the_pace() -> None:
    small, mix = Stage("llama3-8b_h100_tp1"), Mix(8_000.0, 256.0, 0.5)
    assert reading_engines(small, mix) == 2
    assert reading_engines(replace(small, tpot_factor=5.0), mix) == 3
    assert reading_engines(Stage(), mix) == 3


def test_engines_that_only_answer_let_requests_wait_as_those_do_that_may_read_too() -> None:
    mix = Mix(8_000.0, 256.0, 0.8)
    apart, chosen = (play(Stage(), mix, how, 1) for how in ("apart", "chosen"))
    assert apart["apart_share"] == 1.0
    assert chosen["apart_share"] > 0.99
    assert apart["good_per_s"] > 0.95 * chosen["good_per_s"]
