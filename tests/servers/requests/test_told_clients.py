"""A client that one worker has told to come back, and that comes to another without a ticket."""

from collections.abc import Callable

import pytest

from millgate.core.decisions import Yield
from millgate.core.events import Arrived
from millgate.core.words import Reason
from millgate.servers.http.arrivals import as_told_elsewhere
from millgate.servers.requests.tickets import KeptBody
from millgate.servers.requests.told_clients import MOST_TOLD, ToldClient, ToldClients

_KEY = b"k" * 32
_BODY = KeptBody(b"what it asks")


class _Workers:
    """Two of them; their cores began to count at other times."""

    def __init__(self) -> None:
        self.now = 0.0
        self.second = ToldClients(_KEY, lambda _client: None, self._since(50.0), self._wall)
        self.first = ToldClients(_KEY, self.second.learn, self._since(1_000.0), self._wall)

    def _wall(self) -> float:
        return 1.7e9 + self.now

    def _since(self, began: float) -> Callable[[], float]:
        return lambda: began + self.now

    def refuses(self, hint_s: float, reason: Reason = Reason.SATURATED) -> None:
        """Have the first refuse a client that first came two seconds ago."""
        first_seen = 1_000.0 + self.now - 2.0
        refusal = Yield(1, reason, hint_s, retry=True, first_seen=first_seen)
        self.first.refused("", _BODY, refusal)


def test_a_client_that_is_on_time_has_the_age_and_the_hint_that_another_worker_knows() -> None:
    workers = _Workers()
    workers.refuses(8.0)
    workers.now = 8.0
    told = workers.second.back("", _BODY)
    assert told is not None
    assert tuple(told)[1:] == pytest.approx((48.0, 50.0, 8.0, True))
    assert workers.second.back("", _BODY) is None, "once"
    assert workers.first.back("", _BODY) is None, "its own core knows it"


@pytest.mark.parametrize("after_s", [0.0, 6.9, 9.1])
def test_a_client_that_is_early_or_late_is_a_newcomer(after_s: float) -> None:
    workers = _Workers()
    workers.refuses(8.0)
    workers.now = after_s
    assert workers.second.back("", _BODY) is None


def test_another_request_and_one_of_another_tenant_are_newcomers() -> None:
    workers = _Workers()
    workers.refuses(8.0)
    workers.now = 8.0
    assert workers.second.back("", KeptBody(b"what else it asks")) is None
    assert workers.second.back("ann", _BODY) is None


@pytest.mark.parametrize("reason", [Reason.NO_ENGINE, Reason.NO_LEASE, Reason.DRAINING])
def test_a_client_that_is_promised_no_place_comes_as_agreed_and_nothing_counts_as_broken(
    reason: Reason,
) -> None:
    workers = _Workers()
    workers.refuses(8.0, reason)
    workers.now = 8.0
    arrival = as_told_elsewhere(Arrived(1, prompt_bytes=1, retry_count=1), workers.second.back("", _BODY))
    assert arrival.caps_sleep
    assert (arrival.first_seen, arrival.due_at, arrival.retry_count) == (None, None, 1)


def test_of_equal_bodies_each_client_is_known_and_the_first_that_is_due_comes_first() -> None:
    workers = _Workers()
    for now, hint_s in ((0.0, 9.0), (2.0, 6.0), (4.0, 30.0)):
        workers.now = now
        workers.refuses(hint_s)
    workers.now = 9.0
    backs = [workers.second.back("", _BODY) for _ in range(3)]
    assert [each and each.hint_s for each in backs] == [6.0, 9.0, None]
    assert len(workers.second) == 1
    workers.now = 60.0
    assert workers.second.back("", _BODY) is None
    assert len(workers.second) == 0


def test_a_first_attempt_takes_no_place_of_several_with_its_body() -> None:
    workers = _Workers()
    for now in (0.0, 0.5):
        workers.now = now
        workers.refuses(8.0)
    workers.now = 8.5
    assert workers.second.back("", _BODY, 0) is None
    assert workers.second.back("", _BODY, 1) is not None
    assert workers.second.back("", _BODY, 0) is not None, (
        "it may be this one that its application asks for anew"
    )


def test_a_client_that_is_told_again_is_one_client() -> None:
    workers = _Workers()
    for told_at in (0.0, 8.0):
        workers.second.learn(ToldClient(_BODY.mark(_KEY, ""), 1.7e9, 1.7e9 + told_at, 8.0))
    assert len(workers.second) == 1
    workers.now = 8.0
    assert workers.second.back("", _BODY) is None, "it has been there"


def test_clients_whose_time_is_over_and_those_beyond_the_bound_are_forgotten() -> None:
    workers = _Workers()
    workers.refuses(8.0)
    workers.now = 70.0
    workers.second.learn(ToldClient(1, 0.0, 1.7e9 + 70.0, 1.0))
    assert len(workers.second) == 1
    for mark in range(MOST_TOLD + 5):
        workers.second.learn(ToldClient(mark, 0.0, 1.7e9 + 70.0, 1.0))
    assert len(workers.second) == MOST_TOLD
