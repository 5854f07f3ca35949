"""The account of a run that is observed otherwise."""

from millgate.core.settings import LaneSettings
from millgate.sim.records import Recorder


def unread_books() -> Recorder:
    """Return a recorder whose judgement is not asked for."""
    return Recorder([LaneSettings("unread")])
