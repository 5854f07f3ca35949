"""The engine where the first token will come soonest (design section 4, step 9)."""

from collections.abc import Sequence

from headgate.core.routing.base import Candidate


class LeastWork:
    """Least predicted time to first token; ties go to the lower time per token, then to the first named."""

    __slots__ = ()

    def choose(self, candidates: Sequence[Candidate]) -> Candidate:
        """Return one of the candidates; there is at least one."""
        return min(candidates, key=_by_first_token)


def _by_first_token(candidate: Candidate) -> tuple[float, float, int]:
    return (candidate.expected_ttft_s, candidate.expected_tpot_s, candidate.position)
