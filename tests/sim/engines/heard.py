"""What a simulated engine reports, kept by attempt."""

from dataclasses import dataclass, field

from millgate.core.words import FailureKind, Sent
from millgate.sim.loop import Loop


@dataclass
class Heard:
    """First tokens and ends by the time of the loop, and failures in their order."""

    loop: Loop
    firsts: dict[int, float] = field(default_factory=dict)
    ends: dict[int, float] = field(default_factory=dict)
    failures: list[tuple[int, FailureKind]] = field(default_factory=list)

    def first_token(self, attempt: int) -> None:
        self.firsts[attempt] = self.loop.now

    def finished(self, attempt: int, output_tokens: int, cached_tokens: int | None = None) -> None:
        assert output_tokens > 0
        self.ends[attempt] = self.loop.now

    def failed(self, attempt: int, kind: FailureKind, sent: Sent, hint_s: float | None) -> None:
        assert sent in Sent
        assert hint_s is None
        self.failures.append((attempt, kind))
