"""Users that make a dashboard move: too many, some with long prompts, some that leave, some with a quota, all return when told."""

import json
import random
import threading
import time
from http.client import HTTPConnection, HTTPException
from typing import Final

KEYS: Final = {"acme": "key-of-acme", "globex": "key-of-globex"}
_CHAT: Final = "/v1/chat/completions"
_LONGEST_STAY_S: Final = 5.0
_MOST_TRIES: Final = 4
_FIRST_BYTES: Final = 3_000
"""An answer that is left is left after so many: a dozen events of four tokens."""


class Users:
    """So many users in a closed loop, each a thread with its own dice, until `stop`."""

    def __init__(self, port: int, count: int, seed: int) -> None:
        self._port = port
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._live, args=(random.Random(f"{seed}-{number}"), number), daemon=True)
            for number in range(count)
        ]

    def start(self) -> None:
        """Let all of them come."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let all of them go, in the middle of what they do."""
        self._over.set()
        for thread in self._threads:
            thread.join(_LONGEST_STAY_S)

    def _live(self, dice: random.Random, number: int) -> None:
        self._over.wait(dice.uniform(0.0, 5.0))
        while not self._over.is_set():
            self._ask(dice, number)
            self._over.wait(dice.expovariate(5.0))

    def _ask(self, dice: random.Random, number: int) -> None:
        """Ask one thing, and again when the gate says so."""
        body = json.dumps(_request(dice)).encode()
        key = "unknown" if dice.random() < 0.01 else list(KEYS.values())[number % len(KEYS)]
        for tries in range(_MOST_TRIES):
            wait_s = self._try(dice, body, key, tries)
            if wait_s is None or self._over.wait(min(wait_s, _LONGEST_STAY_S)):
                return

    def _try(self, dice: random.Random, body: bytes, key: str, tries: int) -> float | None:
        """Return how long to stay away before the next try, None after the last."""
        connection = HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            connection.request("POST", _CHAT, body, _headers(key, tries))
            answer = connection.getresponse()
            if answer.status == 200:
                if dice.random() < 0.15:
                    answer.read(_FIRST_BYTES)
                else:
                    answer.read()
                return None
            answer.read()
            hint_ms = answer.getheader("retry-after-ms")
            may_return = answer.getheader("x-should-retry") == "true" and hint_ms is not None
            return float(hint_ms or 0) / 1000.0 if may_return else None
        except (OSError, HTTPException):
            time.sleep(0.1)
            return None
        finally:
            connection.close()


def _headers(key: str, tries: int) -> dict[str, str]:
    return {
        "content-type": "application/json",
        "authorization": f"Bearer {key}",
        "x-stainless-retry-count": str(tries),
    }


def _request(dice: random.Random) -> dict[str, object]:
    """Return a request; one in a hundred is none."""
    kind = dice.random()
    words = 2_500 if kind < 0.08 else dice.randint(20, 300)
    prompt = f"{dice.random()} " + "word " * words
    request: dict[str, object] = {
        "model": "provider" if 0.08 <= kind < 0.16 else "open",
        "max_tokens": dice.randint(20, 120),
        "stream": kind < 0.85,
        "messages": [
            {"role": "system", "content": "You are kind. " * 40},
            {"role": "user", "content": prompt},
        ],
    }
    return {"model": "open", "messages": "none"} if kind > 0.99 else request
