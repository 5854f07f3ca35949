"""Which class of traffic is this: the lane named for an attempt, or the first one."""

from collections.abc import Mapping
from typing import TypeVar

LaneT = TypeVar("LaneT")


def choose_lane(lanes: Mapping[str, LaneT], hint: str | None, default: LaneT) -> LaneT:
    """Return the lane that the door named, or the default where it named none that exists.

    The door has already made sure that the client may use the lane; an unknown name is an old configuration's
    and must not lose the request.
    """
    if hint is None:
        return default
    return lanes.get(hint, default)
