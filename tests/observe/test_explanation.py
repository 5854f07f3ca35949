"""Decisions in words."""

import pytest

from millgate.core.decisions import Admit, Candidate, Ended, Leg, Queue, QuotaState, Yield
from millgate.core.fast_records import make_ended
from millgate.core.words import FailureKind, Outcome, QuotaKind, Reason, Stage
from millgate.observe.explanation import sentence

HOLDER, OTHER = Candidate("b", 30_000, 32_000, 0.4), Candidate("a", 0, 32_000, 3.1)


def test_an_admission_says_what_engines_hold_of_its_prompt_and_what_each_costs() -> None:
    admit = Admit(1, (Leg("b", 1, 50_000, 2_000),), 0.0, 0.5, 9.0, candidates=(HOLDER, OTHER))
    assert sentence(admit, 0.0).endswith(
        "; of 32,000 prompt tokens b holds 30,000 and costs 0.4 s, a holds none and costs 3.1 s"
    )


def test_a_request_that_waits_for_the_cheaper_engine_says_which_and_how_long() -> None:
    queued = Queue(1, 1, 0.8, candidates=(OTHER, HOLDER), better_until=12.5)
    assert sentence(queued, 10.0) == (
        "queued at place 1, expected wait 0.8 s; of 32,000 prompt tokens a holds none and costs 3.1 s, "
        "b holds 30,000 and costs 0.4 s; waits for b, 2.5 s at most"
    )


@pytest.mark.parametrize("candidates", [(), (HOLDER, OTHER)])
def test_a_request_that_waits_for_another_engine_than_those_with_room_says_so(
    candidates: tuple[Candidate, ...],
) -> None:
    queued = Queue(1, 1, 0.8, candidates=candidates, better_until=12.5)
    assert sentence(queued, 10.0).endswith("; waits for another engine than those with room, 2.5 s at most")


def test_a_refusal_by_one_of_several_quotas_names_the_one_that_is_short() -> None:
    states = (
        QuotaState("ann.rpm", QuotaKind.RPM, 60, 59.0, 1.0),
        QuotaState("trial.tpd", QuotaKind.TPD, 400, 20.5, 9000.0),
    )
    refused = Yield(1, Reason.QUOTA, 60.0, retry=False, value=51.0, bound=20.5, quota=states)
    assert sentence(refused, 0.0) == (
        "refused quota: of trial.tpd it needs 51, 20 are left; coming back would be useless"
    )
    nearly = refused._replace(value=21.0, bound=20.9, quota=(states[1]._replace(remaining=20.9),))
    assert "of trial.tpd it needs 21, 20 are left" in sentence(nearly, 0.0)
    behind = refused._replace(retry=True, retry_after_s=3.0, value=1.0, bound=59.0, promised=59.0)
    assert sentence(behind, 0.0).startswith(
        "refused quota: of ann.rpm it needs 1, 59 are left, 59 are promised"
    )


def test_a_request_that_is_back_says_when_its_first_attempt_came() -> None:
    refused = Yield(1, Reason.QUEUE_FULL, 3.0, retry=True, value=4, bound=4, first_seen=7.5)
    expired = Yield(1, Reason.EXPIRED, 0.0, retry=False, value=2.0, bound=5.0, first_seen=5.0)
    admitted = Admit(1, (Leg("b", 1, 9, 5),), 0.5, 0.5, 19.0, due_at=9.0, first_seen=4.5)

    assert sentence(refused, 10.0).endswith("its appointment is due; its first attempt came 2.5 s before")
    assert sentence(expired, 10.0, was_queued=True).endswith("; its first attempt came 3.0 s before")
    assert sentence(admitted, 10.0).endswith("after its hint; its first attempt came 5.0 s before")


def test_a_first_attempt_says_nothing_of_itself() -> None:
    refused = Yield(1, Reason.QUEUE_FULL, 3.0, retry=True, value=4, bound=4, first_seen=10.0)
    admitted = Admit(1, (Leg("b", 1, 9, 5),), 0.5, 0.5, 19.0, first_seen=9.5)

    assert "first attempt" not in sentence(refused, 10.0) + sentence(admitted, 10.0)


def test_a_request_that_was_held_in_vain_for_a_stream_of_its_tenant_says_how_many_there_are() -> None:
    """It said that it had waited for as many seconds."""
    refused = Yield(1, Reason.TENANT_LIMIT, 3.0, retry=True, value=4, bound=4, first_seen=8.0)

    assert "4 of its tenant's 4 streams are in" in sentence(refused, 10.0, was_queued=True)


def test_a_client_that_leaves_a_whole_answer_has_seen_none_of_it_whatever_was_written() -> None:
    """No first token of a whole answer is seen: 1,925 tokens were written while the prompt was read, as it seemed."""
    gone = Ended(1, Outcome.CLIENT_GONE, "i", "v", 0.0, 120.1, None, 104, 1925, Stage.PREFILL)

    assert sentence(gone, 0.0) == (
        "ended client_gone (while no token of it had come) on v: over after 120.1 s, 104 tokens read and 1,925 written"
    )


def test_why_says_of_a_late_request_what_its_client_reads() -> None:
    """People who ask anew have a deadline of their own: coming back is of use to them."""
    late = Yield(1, Reason.TOO_LATE, 9.0, retry=False, value=12.0, bound=9.8)

    assert sentence(late, 0.0).endswith("; an automatic retry would be too late as well")


def test_a_request_on_two_engines_names_both_and_the_one_that_failed_it() -> None:
    admit = Admit(1, (Leg("writes", 1, 5_000, 1), Leg("reads", 1, 4_000, 4_000)), 0.0, 0.5, 9.0)
    assert "to writes (reserved 5,000 tokens, 1 of them to read), its prompt read by reads (" in sentence(
        admit, 0.0
    )
    ended = make_ended(
        1,
        Outcome.ENGINE_FAILED,
        lane="interactive",
        engine="reads",
        waited_s=0.0,
        total_s=0.4,
        ttft_s=None,
        prompt_tokens=4_000,
        output_tokens=0,
        cause=FailureKind.BROKEN,
    )
    assert "on reads" in sentence(ended, 0.4)


@pytest.mark.parametrize("kind", [FailureKind.CONNECT, FailureKind.REFUSED, FailureKind.NO_CREDIT])
def test_a_request_that_its_engine_refused_was_not_read(kind: FailureKind) -> None:
    ended = make_ended(
        1,
        Outcome.ENGINE_FAILED,
        lane="interactive",
        engine="hosted",
        waited_s=0.0,
        total_s=0.002,
        ttft_s=None,
        prompt_tokens=22,
        output_tokens=0,
        cause=kind,
    )
    assert sentence(ended, 0.0) == (
        f"ended engine_failed ({kind.value}) on hosted: over after 2 ms, nothing of it read"
    )
