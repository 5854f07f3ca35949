"""How long a client says that it waits: SDKs tell their own timeout, each in a header of its own."""

import pytest

from millgate.http1.server import RequestHead
from millgate.runtime.callers import Caller, Callers, CallerSettings
from millgate.servers.requests.reading import HeadReading

OURS, READ, WHOLE = b"x-millgate-deadline-ms", b"x-stainless-read-timeout", b"x-stainless-timeout"


@pytest.mark.parametrize(
    ("told", "time_s"),
    [
        ({}, None),
        ({READ: b"2.5"}, 2.5),  # Python
        ({READ: b"600", WHOLE: b"600"}, 600.0),  # Python, Anthropic's
        (
            {WHOLE: b"3"},
            4.0,
        ),  # JavaScript: it may be 3.9 s, and an answer that comes within them must not be cut
        ({WHOLE: b"0"}, None),  # Java: no timeout
        ({WHOLE: b"soon"}, None),
        ({WHOLE: b"3", OURS: b"1500"}, 1.5),
        ({WHOLE: b"3", READ: b"9", OURS: b"60000"}, 4.0),
    ],
)
def test_the_shortest_time_that_a_client_tells_counts(told: dict[bytes, bytes], time_s: float | None) -> None:
    headers = [(b"content-type", b"application/json"), *told.items()]
    path = b"/v1/chat/completions"
    head = RequestHead(b"POST", path, path, headers, 2, "127.0.0.1", dict(headers))
    reading = HeadReading(head, Callers(CallerSettings()), Caller("one", None))
    assert reading.complaint is None
    assert reading.allowed_s == time_s
