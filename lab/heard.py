"""What users heard: how many of a crowd's requests had a first token, and in time."""

from millgate.core.words import Outcome
from millgate.sim.clients.crowd import Crowd
from millgate.sim.visit import Visit


class FirstTokens:
    """Counts the requests of a crowd that came from `from_s` on; `good` ones had their first token within `slo_s` of their first attempt."""

    def __init__(self, crowd: Crowd, slo_s: float, from_s: float) -> None:
        self.came = self.answered = self.good = 0
        self._slo_s, self._from_s = slo_s, from_s
        crowd.on_over = self._over

    @property
    def good_share(self) -> float:
        """The share that was good; 0 where none came."""
        return self.good / max(1, self.came)

    def _over(self, visit: Visit, _outcome: Outcome | None) -> None:
        if visit.first_at < self._from_s:
            return
        self.came += 1
        if visit.first_token_at is not None:
            self.answered += 1
            self.good += visit.first_token_at - visit.first_at <= self._slo_s
