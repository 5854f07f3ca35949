"""The log's lines about the lease of a replica."""

from typing import Any

from millgate.cluster.leases import LeaseStatus, RenewalState
from millgate.gateway.serve import _LeaseNews


class Log:
    def __init__(self) -> None:
        self.states: list[Any] = []

    def info(self, _event: str, **fields: Any) -> None:
        self.states.append(fields["state"])

    warning = info


def test_a_redis_that_hiccups_for_an_hour_has_two_lines_a_minute_and_an_outage_has_all_of_its_own() -> None:
    log = Log()
    news = _LeaseNews(log)  # type: ignore[arg-type]

    def turn(state: RenewalState, at: float) -> None:
        news.changed(LeaseStatus(state, at, "Redis did not answer in time", 2, 0, 0, 0))

    for tenth in range(2_400):
        turn(RenewalState.HOLDING if tenth % 2 else RenewalState.LEASED, 1_000.0 + tenth / 10)
    assert log.states == ["leased", *["holding", "leased"] * 4]

    log.states.clear()
    turn(RenewalState.HOLDING, 1_241.0)
    turn(RenewalState.LEASED, 1_241.1)
    assert log.states == ["holding", "leased"]
    for state in (RenewalState.HOLDING, RenewalState.DEGRADED, RenewalState.LEASED):
        turn(state, 1_243.0)
    assert log.states[2:] == ["degraded", "leased"]
