"""What an engine's status blames: the request that it answers, or the engine and how it is set up."""

from typing import Final

# Its credential, its account, its path or its model is configured wrongly, or it says that it was too busy to read.
_NOT_OF_THE_REQUEST: Final = frozenset((401, 402, 403, 404, 405, 407, 408, 421, 425, 429))


def blames_request(status: int) -> bool:
    """Return whether this status says that the request is at fault: a 4xx that no other request would have got."""
    return 400 <= status < 500 and status not in _NOT_OF_THE_REQUEST
