"""A hint that is kept to the millisecond is never answered by a refusal for good: before the deadline it leaves room, or its client begins anew."""

from typing import Any

import pytest

from core.governor.asking import ask, gate_of
from core.world import Client, World, steady_prior
from millgate.core.decisions import Admit, Queue, Yield
from millgate.core.events import Arrived, Finished, FirstToken, Released
from millgate.core.settings import (
    AccountSettings,
    EngineSettings,
    LaneSettings,
    QuotaLimit,
    QuotaRule,
    Settings,
    TenantSettings,
)
from millgate.core.tickets.appointment import kept_within_s
from millgate.core.words import DeadlineFrom, QuotaKind, Reason
from millgate.wiring.governor import build_governor

READING_S = 0.1


def _crowd(
    lane: LaneSettings,
    service_s: float,
    streams: int,
    *,
    size: int = 30,
    each_s: float = 0.0,
    limit: QuotaLimit | None = None,
    account: AccountSettings | None = None,
) -> list[Client]:
    """Run clients that come every `each_s` and keep their hints to the millisecond, until all are served or refused for good."""
    engine = EngineSettings("engine", streams, prior=steady_prior(service_s, READING_S), account=account)
    quotas = () if limit is None else (QuotaRule("requests", limit),)
    world = World(build_governor(Settings((lane,), (engine,), quotas=quotas), 0.0))
    clients = [
        Client(name, service_s, ttft_s=READING_S, body=name, label=lambda attempts: attempts - 1)
        for name in range(size)
    ]
    for client in clients:
        world.come(client, each_s * client.name)
    world.run()
    return clients


def _refused_for_good(clients: list[Client]) -> list[tuple[int, list[float]]]:
    """Return the clients that were refused for good when they kept a hint, and what they were told."""
    return [
        (client.name, [told.retry_after_s for told in client.yields])
        for client in clients
        if len(client.yields) > 1 and not client.yields[-1].retry
    ]


@pytest.mark.parametrize("each_s", [0.0, 0.05])
@pytest.mark.parametrize("service_s", [1.0, 1.5])
def test_a_fresh_gate_gives_no_hint_that_leaves_no_room_before_the_deadline(
    service_s: float, each_s: float
) -> None:
    """As of the README: two streams, four queued, thirty clients. Nothing is measured yet."""
    lane = LaneSettings("lane", deadline_s=10.0, max_queue=4)
    clients = _crowd(lane, service_s, 2, each_s=each_s, size=60)
    hints = [client.yields[0].retry_after_s for client in clients if client.yields and client.yields[0].retry]

    assert len(hints) >= 4
    assert max(hint + kept_within_s(hint) for hint in hints) <= 10.0 - READING_S
    assert max(hints) > 6.0, "what leaves room is given"
    assert _refused_for_good(clients) == []
    late = [client.admitted_at - client.came_at for client in clients if client.admitted_at is not None]
    assert max(late) + READING_S <= 10.0, "a full engine's client never begins anew"


def test_a_quotas_hint_before_the_deadline_is_kept_where_the_engine_is_busy() -> None:
    """As of the tutorial: a request a second, ten at once, and a deadline of 5 s."""
    limit = QuotaLimit(QuotaKind.RPM, 60, burst_s=10.0)
    clients = _crowd(LaneSettings("lane", deadline_s=5.0), 1.5, 4, limit=limit)

    assert {client.attempts for client in clients} == {1, 2}
    assert all(client.admitted_at is not None for client in clients)


@pytest.mark.parametrize("order", ["short_first", "arrival"])
def test_a_quotas_hint_is_kept_where_one_stream_has_a_line(order: str) -> None:
    limit = QuotaLimit(QuotaKind.RPM, 90, burst_s=4.0)
    clients = _crowd(LaneSettings("lane", deadline_s=10.0, order=order), 0.7, 1, limit=limit)

    assert {client.attempts for client in clients} == {1, 2}
    assert all(client.admitted_at is not None for client in clients)


def test_a_providers_account_gives_no_hint_that_leaves_no_room_before_the_deadline() -> None:
    account = AccountSettings((QuotaLimit(QuotaKind.RPM, 120, burst_s=1.0),))
    lane = LaneSettings("lane", deadline_s=10.0, max_queue=4)
    clients = _crowd(lane, 1.0, 500, account=account)
    hints = [client.yields[0].retry_after_s for client in clients if client.yields and client.yields[0].retry]

    assert len(hints) >= 4
    assert max(hint + kept_within_s(hint) for hint in hints) <= 10.0 - READING_S
    assert _refused_for_good(clients) == []


@pytest.mark.parametrize("hint_s", [9.9, 9.0, 8.4])
def test_who_was_asked_back_just_before_its_deadline_begins_anew_with_a_body_and_with_a_ticket(
    hint_s: float,
) -> None:
    limit = QuotaLimit(QuotaKind.RPM, 60.0 / hint_s, burst_s=hint_s)
    for ticket in ({}, {"fingerprint": None, "first_seen": 0.0, "due_at": hint_s, "hint_s": hint_s}):
        gate = gate_of(LaneSettings("lane", deadline_s=10.0), quotas=(QuotaRule("requests", limit),))
        assert isinstance(ask(gate, 0), Admit)
        refused = ask(gate, 1)
        assert (refused.reason, refused.retry) == (Reason.QUOTA, True)
        assert refused.retry_after_s == pytest.approx(hint_s)
        back: dict[str, Any] = ticket or {"fingerprint": lambda: 1}
        arrival = Arrived(2, prompt_bytes=400, max_tokens=100, retry_count=1)._replace(**back)
        said = gate.explain(arrival, hint_s)

        assert said.recognised
        assert said.deadline == pytest.approx(hint_s + 10.0)


@pytest.mark.parametrize(("others", "deadline"), [(0, 8.0), (1, 14.0)])
def test_who_was_asked_back_well_before_its_deadline_keeps_its_age_unless_that_refuses_it(
    others: int, deadline: float
) -> None:
    """Back at 6 s of eight, before one stream and answers of 2 s: behind one that has just begun 2 s are too little."""
    rule = QuotaRule("requests", QuotaLimit(QuotaKind.RPM, 10, burst_s=6.0), tenant="ann")
    gate = gate_of(LaneSettings("lane", deadline_s=8.0), streams=1, quotas=(rule,))
    assert isinstance(ask(gate, 0, tenant="ann"), Admit)
    refused = ask(gate, 1, tenant="ann")
    assert (refused.reason, refused.retry_after_s) == (Reason.QUOTA, pytest.approx(6.0))
    for event in (FirstToken(0), Finished(0, 100, 100), Released(0)):
        gate.handle(event, 2.0)
    for number in range(10, 10 + others):
        assert not isinstance(ask(gate, number, 5.9), Yield)
    back = Arrived(2, tenant="ann", prompt_bytes=400, max_tokens=100, fingerprint=lambda: 1)
    said = gate.explain(back, 6.0)
    (decision,) = gate.handle(back, 6.0)

    assert said.deadline == pytest.approx(deadline)
    assert isinstance(decision, Queue if others else Admit)
    assert said.decision == (decision._replace(quota=()) if isinstance(decision, Admit) else decision)


@pytest.mark.parametrize(
    ("lane", "retry", "hint_s"),
    [
        ({"deadline_s": 2.2}, False, 2.0),
        ({"deadline_s": 3.6}, True, 2.8),
        ({"deadline_s": 6.0}, True, 3.8),
        ({"deadline_s": 2.2, "deadline_from": DeadlineFrom.ATTEMPT}, True, 3.8),
    ],
)
def test_a_tenants_limit_asks_back_for_what_is_in_time(
    lane: dict[str, Any], retry: bool, hint_s: float
) -> None:
    """The stream ends after 2 s, and nine times in ten within 4.6 s: 3.8 s keep that, where the deadline leaves room."""
    gate = gate_of(LaneSettings("lane", **lane), tenants=(TenantSettings("ann", max_inflight=1),))
    assert isinstance(ask(gate, 0, tenant="ann"), Admit)
    refused = ask(gate, 1, tenant="ann")
    assert (refused.reason, refused.retry) == (Reason.TENANT_LIMIT, retry)
    assert refused.retry_after_s == pytest.approx(hint_s, rel=0.1)


def test_a_hint_that_is_stretched_for_other_tenants_still_leaves_room_and_sends_no_client_away() -> None:
    """One stream, answers of 2 s, a line of two tenants: the fourth has 8 s of ten, and double that is of no use."""
    hints: list[list[float]] = []
    for stretched in (0.0, 1.0):
        gate = gate_of(LaneSettings("lane", deadline_s=10.0, max_queue=0), streams=1)
        assert isinstance(ask(gate, 0, tenant="ann"), Admit)
        (pool,) = gate._knowledge.engines.routes.pools
        pool.overtaking.share = stretched
        refused = [ask(gate, number, tenant=("ann", "bob")[number % 2]) for number in range(1, 5)]
        hints.append([each.retry_after_s for each in refused if each.retry])

    plain, stretch = hints
    assert len(plain) == len(stretch) == 4
    assert stretch[2] > 1.3 * plain[2]
    assert max(hint + kept_within_s(hint) for hint in stretch) <= 10.0 - READING_S
