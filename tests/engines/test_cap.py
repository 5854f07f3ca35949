"""Fifty users at a cap of four, as the engine itself counts them: never more than four at once."""

import asyncio

from engines.conftest import Bench
from engines.findings import note
from engines.process import seconds_until_idle
from engines.users import askers_of_several, crowd
from engines.watch import Watch
from millgate.core.words import Reason

CAP = 4
USERS = 50


def test_fifty_users_never_put_more_than_the_cap_into_the_engine(bench: Bench) -> None:
    gate = bench.gate(cap=CAP)
    with Watch(bench.engine) as watch:
        became = asyncio.run(crowd(gate, bench.engine, watch, users=USERS))
    outcomes = gate.ended()
    note(
        bench.engine.kind.name,
        f"{USERS} users at a cap of {CAP}",
        version=bench.engine.version,
        peak=watch.peak,
        readings=len(watch.readings),
        users=dict(became),
        attempts=outcomes,
    )

    assert 1 < watch.peak <= CAP
    assert sum(became.values()) == USERS
    assert set(became) <= {"length", *(f"refused {reason}" for reason in Reason)}
    assert became["length"] == outcomes.get("good", 0) + outcomes.get("late", 0) > 0
    assert {each.partition("/")[0] for each in outcomes} <= {"good", "late", "yielded"}
    assert seconds_until_idle(bench.engine) < bench.engine.kind.lets_go_s


def test_sequences_are_what_is_counted_with_n_and_with_lists_of_prompts(bench: Bench) -> None:
    """`n` answers of a prompt and prompts of one list run side by side in the engine; more than the cap holds is 413."""
    gate = bench.gate(cap=CAP, lanes__interactive__ttft_slo="1h")
    with Watch(bench.engine) as watch:
        became = asyncio.run(askers_of_several(gate, bench.engine))
    outcomes = gate.ended()
    note(
        bench.engine.kind.name,
        f"n and lists of prompts at a cap of {CAP}",
        peak=watch.peak,
        requests=dict(became),
        attempts=outcomes,
    )

    assert became == {"n=2": 6, "n=4": 3, "3 prompts": 3, "2 prompts, n=2": 3, "413": 2}
    assert outcomes == {"good": 15, "yielded/too_large": 2}
    assert 1 < watch.peak <= CAP


def test_users_who_leave_add_to_the_cap_only_while_the_engine_lets_go_of_them(bench: Bench) -> None:
    gate = bench.gate(cap=CAP, lanes__interactive__ttft_slo="1h")
    with Watch(bench.engine) as watch:
        became = asyncio.run(crowd(gate, bench.engine, watch, users=USERS, leaving=10))
    outcomes = gate.ended()
    note(
        bench.engine.kind.name,
        f"{USERS} users at a cap of {CAP}, ten of whom leave while they are answered",
        peak=watch.peak,
        settled=watch.settled_peak,
        readings=len(watch.readings),
        attempts=outcomes,
    )

    assert became == {"left": 10, "length": 40}
    assert outcomes["client_gone/decode"] == 10
    assert outcomes["good"] == 40
    assert watch.settled_peak <= CAP
