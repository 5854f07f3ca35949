"""How many calls at once, found as TCP finds it; and how many of the calls may be retries."""

from typing import Final

_FIRST: Final = 4.0
_BACK_OFF: Final = 0.5


class CallWindow:
    """Calls in flight: doubles per round until the first refusal, then grows by one a round and halves on refusal.

    Additive increase, multiplicative decrease (Chiu and Jain 1989). One round's refusals halve it once: calls that
    were sent before the last halving say nothing about the window after it. It grows only while it is what binds.
    """

    def __init__(self, most: int) -> None:
        self.size = min(_FIRST, float(most))
        self.inflight = 0
        self._most = float(most)
        self._probing = True
        self._sent = 0
        self._halved_at = 0

    @property
    def has_room(self) -> bool:
        """Whether one more call may be sent now."""
        return self.inflight < int(self.size)

    def send(self) -> int:
        """Count a call and return its number, for `refused`."""
        self.inflight += 1
        self._sent += 1
        return self._sent

    def answered(self) -> None:
        """A call has been served."""
        if self.inflight + 1 >= int(self.size):
            self.size = min(self._most, self.size + (1.0 if self._probing else 1.0 / self.size))

    def refused(self, number: int) -> None:
        """A call has been refused."""
        self._probing = False
        if number > self._halved_at:
            self.size = max(1.0, self.size * _BACK_OFF)
            self._halved_at = self._sent


class CallRetryBudget:
    """Retries are paid from what first attempts deposit: the amplification is at most 1 + share, and a little.

    `floor` retries are free to begin with, so that a quiet program may retry at all.
    """

    def __init__(self, share: float, floor: float, most: float = 1000.0) -> None:
        self._share = share
        self._most = max(floor, most)
        self._saved = floor

    def deposit(self) -> None:
        """A first attempt has been made."""
        self._saved = min(self._most, self._saved + self._share)

    def withdraw(self) -> bool:
        """Pay for a retry; return whether it could be paid."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True
