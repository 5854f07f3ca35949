"""Spans on their way to a collector: sent by a thread in batches, never in the way of a request.

A collector that is slow, away or unwilling costs spans, which are counted, and never a request.
"""

import json
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final
from urllib.parse import urlsplit

MOST_WAITING: Final = 8192
"""Attempts whose spans may wait for a collector; at some 2 kB each they hold 16 MB (INV-5)."""
_BATCH_ATTEMPTS: Final = 512
_BATCH_S: Final = 1.0
"""How long spans gather before they are sent."""
_WITHIN_S: Final = 10.0
"""How long a collector may take for one batch: the protocol's usual bound."""
_LAST_WORDS_S: Final = 1.5
_REDIRECTS: Final = 300
_MOST_ANSWER_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class TracingSettings:
    """`endpoint` takes spans by HTTP POST; `headers` may hold credentials; `share` of requests without a trace are sampled."""

    endpoint: str
    share: float = 1.0
    service: str = "millgate"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


class TraceExporter:
    """Sends batches to one collector from a thread of its own; `version` is that of the gate."""

    def __init__(self, settings: TracingSettings, version: str) -> None:
        self._settings = settings
        self._head = _head(settings, version)
        self._waiting: deque[tuple[bytes, int]] = deque()
        self._taken = self._done = 0
        self._crowded_out = self._unsent = 0
        self._reached = True
        self._connection: HTTPConnection | None = None
        self.on_turn: Callable[[str], object] | None = None
        """Told, in the thread, why the collector takes no spans any more, and an empty text when it does again."""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trace exporter", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """How many attempts' spans were lost."""
        return self._crowded_out + self._unsent

    def add(self, spans: bytes, attempts: int) -> None:
        """Send the spans of so many attempts soon, JSON with commas between them, or drop and count them when too many wait."""
        if self._taken - self._done + attempts > MOST_WAITING:
            self._crowded_out += attempts
            return
        self._taken += attempts
        self._waiting.append((spans, attempts))

    def close(self) -> None:
        """Send what waits, within about a second, and stop."""
        self.on_turn = None
        self._ending.set()
        self._thread.join(_LAST_WORDS_S)

    # ---- in the thread

    def _run(self) -> None:
        while not self._ending.wait(_BATCH_S):
            self._send_waiting(_WITHIN_S)
        self._send_waiting(_LAST_WORDS_S)
        self._hang_up()

    def _send_waiting(self, within_s: float) -> None:
        """Send everything that has gathered, some hundred attempts at a time."""
        while self._waiting:
            spans: list[bytes] = []
            attempts = 0
            while self._waiting and attempts < _BATCH_ATTEMPTS:
                made, count = self._waiting.popleft()
                spans.append(made)
                attempts += count
            if not self._send(b"%b%b]}]}]}" % (self._head, b",".join(spans)), within_s):
                self._unsent += attempts
            self._done += attempts

    def _send(self, body: bytes, within_s: float) -> bool:
        """Send one batch; return whether the collector took it. A kept connection that has failed was idle for too long: another is tried."""
        was_kept = self._connection is not None
        try:
            status = self._post(body, within_s)
        except (OSError, HTTPException, ValueError) as error:  # the last for an address that is none
            self._hang_up()
            if was_kept and isinstance(error, ConnectionError):
                return self._send(body, within_s)
            self._tell(type(error).__name__)
            return False
        taken = status < _REDIRECTS
        self._tell("" if taken else f"status {status}")
        return taken

    def _post(self, body: bytes, within_s: float) -> int:
        """Return the status of the collector's answer; a connection is used until it fails, and redirects are not followed."""
        where = urlsplit(self._settings.endpoint)
        if self._connection is None:
            kind = HTTPSConnection if where.scheme == "https" else HTTPConnection
            self._connection = kind(where.hostname or "", where.port, timeout=within_s)
        headers = {"content-type": "application/json", **self._settings.headers}
        self._connection.request("POST", where.path or "/", body, headers)
        answer = self._connection.getresponse()
        answer.read(_MOST_ANSWER_BYTES)
        if answer.will_close or not answer.isclosed():
            self._hang_up()
        return answer.status

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _tell(self, why: str) -> None:
        """Tell of a change: not of every batch."""
        reached = not why
        if reached is not self._reached:
            self._reached = reached
            if self.on_turn is not None:
                self.on_turn(why)


def _head(settings: TracingSettings, version: str) -> bytes:
    """Return an export up to its first span: the resource that speaks."""
    named = {"service.name": settings.service, "service.version": version}
    resource = {"attributes": [{"key": key, "value": {"stringValue": value}} for key, value in named.items()]}
    scope = {"name": "millgate", "version": version}
    return (
        f'{{"resourceSpans":[{{"resource":{json.dumps(resource)},"scopeSpans":[{{"scope":{json.dumps(scope)},"spans":['
    ).encode()
