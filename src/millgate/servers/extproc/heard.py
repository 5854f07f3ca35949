"""What becomes of requests that Envoy carries, for what looks after their engine: a health page alone does not say that it works."""

from millgate.core.words import FailureKind
from millgate.http1.client import Ear
from millgate.http1.client.connection import COMPLAINING, FAULTY
from millgate.runtime.verdicts import UNFIT


class HeardRequest:
    """One request that goes to an engine now, whose `ear` hears what follows; None hears nothing."""

    def __init__(self, ear: Ear | None) -> None:
        self._ear = ear
        self._heard_before = 0 if ear is None else ear.heard
        self._is_trial = ear is not None and ear.anxious and ear.tries()

    def answered(self, *, is_whole: bool = True) -> None:
        """Its answer has begun, which is enough for the one that is tried, or is whole."""
        if self._ear is not None:
            self._ear.heard += 1
            if self._ear.anxious and (is_whole or self._is_trial):
                self._ear.succeeded()

    def failed(self, kind: FailureKind, status: int | None) -> None:
        """It has failed; `status` is as in `FailedAnswer`."""
        ear = self._ear
        if ear is None or status is None:
            return
        if status == 0:
            ear.failed(kind, self._heard_before, "behind Envoy")
        elif status >= FAULTY or (status < COMPLAINING and kind in UNFIT):
            ear.complained(status, "" if status >= FAULTY else ", and not what was asked for")
        elif status < COMPLAINING:
            self.answered()
        else:
            ear.heard += 1
            if self._is_trial:
                ear.undecided()
