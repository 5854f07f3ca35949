"""Prefill and decode apart: what one request takes, what is kept where, and what becomes of it when its client leaves."""

from dataclasses import dataclass, field, replace

import pytest
from lab.engines.disaggregated import DisaggregatedPool

from millgate.core.settings import KV_LEASE_S
from millgate.core.words import FailureKind, Sent
from millgate.engine.profile import find_profile
from millgate.sim.engines.contract import EngineTotals
from millgate.sim.engines.handoffs import KvLink, LinkSpeed
from millgate.sim.jobs import Job
from millgate.sim.loop import Loop

PROFILE = replace(find_profile("llama3-8b_h100_tp1"), max_num_batched_tokens=4096)
LINK = LinkSpeed(setup_s=0.01, bytes_per_token=100_000.0, bytes_per_s=10e9)


@dataclass
class Heard:
    """Listens, with times."""

    loop: Loop
    said: list[tuple[str, int, float]] = field(default_factory=list)

    def first_token(self, attempt: int) -> None:
        self.said.append(("first", attempt, self.loop.now))

    def finished(self, attempt: int, output_tokens: int, cached_tokens: int | None = None) -> None:
        self.said.append(("finished", attempt, self.loop.now))

    def failed(self, attempt: int, kind: FailureKind, sent: Sent, hint_s: float | None) -> None:
        self.said.append(("failed", attempt, self.loop.now))


def pool(*, prefills: int = 1, decodes: int = 1) -> tuple[DisaggregatedPool, Heard, Loop]:
    loop = Loop()
    heard = Heard(loop)
    made = DisaggregatedPool("pd", loop, heard, PROFILE, prefills=prefills, decodes=decodes, link=LINK)
    return made, heard, loop


def step_s(begin: int, end: int) -> float:
    """A step with this chunk alone."""
    work_ms = PROFILE.prefill_base_ms + PROFILE.prefill_per_token_ms * (end - begin)
    work_ms += PROFILE.prefill_per_token_squared_ms * (end**2 - begin**2)
    return (max(PROFILE.prefill_floor_ms, work_ms) + PROFILE.step_overhead_ms) / 1e3


def test_a_link_takes_one_prompt_after_the_other() -> None:
    link = KvLink(LINK)

    assert link.send(0.0, 100_000) == pytest.approx(1.01)
    assert link.send(0.5, 100_000) == pytest.approx(2.01)
    assert link.send(5.0, 0) == pytest.approx(5.01)


def test_a_request_alone_is_prefilled_sent_and_decoded() -> None:
    made, heard, loop = pool()
    made.start(1, Job(0.0, 2000, 1))
    loop.run()

    expected = step_s(0, 2000) + LINK.transfer_s(2000) + LINK.setup_s + step_s(1999, 2000)
    assert [(what, attempt) for what, attempt, _ in heard.said] == [("first", 1), ("finished", 1)]
    assert [at_s for _, _, at_s in heard.said] == pytest.approx([expected, expected])
    assert made.totals() == EngineTotals(2001, 2, 0)
    assert made.read() == (0, 0, 0.0)


def test_the_prompt_is_kept_where_it_was_computed_until_the_first_token() -> None:
    made, _, loop = pool()
    made.start(1, Job(0.0, 2000, 500))
    on_its_way = step_s(0, 2000) + LINK.transfer_s(2000)
    loop.run(on_its_way)

    assert made.prefill[0].read().kv_share == pytest.approx(125 / (PROFILE.kv_tokens // 16))
    assert made.read()[:2] == (0, 1)
    loop.run(on_its_way + 0.05)
    assert made.prefill[0].read().kv_share == 0.0
    assert made.decode[0].read().running == 1
    assert made.produced(1) > 0


def test_a_client_that_leaves_between_the_legs_costs_its_lease() -> None:
    made, heard, loop = pool()
    made.start(1, Job(0.0, 2000, 500))
    on_its_way = step_s(0, 2000) + LINK.transfer_s(2000)
    loop.run(on_its_way)
    made.hang_up(1)
    loop.run(on_its_way + KV_LEASE_S - 0.1)

    assert made.prefill[0].read().kv_share != 0.0
    assert made.decode[0].totals() == EngineTotals(0, 0, 0)
    loop.run()
    assert made.prefill[0].read().kv_share == 0.0
    assert heard.said == []


@pytest.mark.parametrize("left_at", [0.01, 0.06, 0.2])
def test_whenever_a_client_leaves_all_memory_comes_back(left_at: float) -> None:
    made, heard, loop = pool()
    made.start(1, Job(0.0, 2000, 500))
    loop.run(left_at)
    made.hang_up(1)
    loop.run()

    assert made.read() == (0, 0, 0.0)
    assert set((made._prompt_tokens | made._context_tokens).values()) == {0}
    assert ("finished", 1) not in [each[:2] for each in heard.said]


def test_both_pools_share_their_work() -> None:
    made, heard, loop = pool(prefills=2, decodes=2)
    for attempt in range(8):
        made.start(attempt, Job(0.0, 1000, 50))
    loop.run()

    assert len([each for each in heard.said if each[0] == "finished"]) == 8
    assert [station.totals().prompt_tokens for station in made.prefill] == [4000, 4000]
    assert [station.totals().output_tokens for station in made.decode] == [200, 200]


def test_a_crash_of_either_side_is_told_once() -> None:
    # Its blocks are let go with the lease.
    for role in ("prefill", "decode"):
        made, heard, loop = pool()
        made.start(1, Job(0.0, 2000, 5000))
        loop.run(0.02 if role == "prefill" else 1.0)
        getattr(made, role)[0].crash()
        loop.run()

        assert [each[0] for each in heard.said if each[0] != "first"] == ["failed"]
        assert made.read() == (0, 0, 0.0)


def test_a_prompt_that_no_engine_can_hold_fails() -> None:
    made, heard, loop = pool()
    made.start(1, Job(0.0, PROFILE.kv_tokens + 1, 1))
    loop.run()

    assert [each[0] for each in heard.said] == ["failed"]
