"""A gate of several workers and an embedded engine, all of them processes, and users that know which worker serves them."""

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

START_WITHIN_S = 60.0
"""Generous: several interpreters start on a busy machine."""
END_WITHIN_S = 60.0
ANSWER_WITHIN_S = 60.0
CHAT = "/v1/chat/completions"
CAP = 4


def until(truth: Callable[[], object], within_s: float = END_WITHIN_S, what: str = "") -> None:
    """Return as soon as `truth()` holds; AssertionError when it does not within `within_s`."""
    by = time.monotonic() + within_s
    while not truth():
        assert time.monotonic() < by, what or "this should have become true"
        time.sleep(0.02)


def chat(tokens: int) -> bytes:
    """Return a request whose answer has so many tokens."""
    return json.dumps(
        {
            "model": "any",
            "max_tokens": tokens,
            "min_tokens": tokens,
            "messages": [{"role": "user", "content": "Hello"}],
        }
    ).encode()


def fetch(
    url: str, path: str, method: str = "GET", body: bytes | None = None, **headers: str
) -> tuple[int, bytes]:
    """Return status and body of one request on a connection of its own."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=ANSWER_WITHIN_S)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): headers[name] for name in headers})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


class Program:
    """One `millgate` process that says on stdout where it serves; its stderr goes to a file."""

    def __init__(self, arguments: Sequence[str], errors: Path) -> None:
        self._errors = errors
        with errors.open("w", encoding="utf-8") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "millgate", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )

    def ready(self) -> dict[str, Any]:
        """Return the line of JSON that it prints when it serves."""
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], START_WITHIN_S)[0], self.errors()
        line = self.process.stdout.readline()
        assert line, self.errors()
        record: dict[str, Any] = json.loads(line)
        return record

    def errors(self) -> str:
        return self._errors.read_text(encoding="utf-8")

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the events of this name that were logged."""
        records = [json.loads(line) for line in self.errors().splitlines()]
        return [record for record in records if record["event"] == name]

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(END_WITHIN_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


class Engine(Program):
    """An embedded engine that runs more at once than any gate here lets in, and counts how many ran."""

    def __init__(self, errors: Path) -> None:
        super().__init__(["engine", "--port", "0"], errors)
        until(lambda: '"port"' in self.errors(), START_WITHIN_S)
        (port,) = re.findall(r'"port": (\d+)', self.errors())
        self.url = f"http://127.0.0.1:{port}"

    def stats(self) -> dict[str, Any]:
        stats: dict[str, Any] = json.loads(fetch(self.url, "/stats")[1])
        return stats

    def reset(self) -> None:
        fetch(self.url, "/stats/reset", "POST")


class Gate(Program):
    """`millgate serve --workers N` in front of an engine."""

    def __init__(self, engine: str, errors: Path, *more: str, workers: int = 2, cap: int = 4) -> None:
        doors = ["--port", "0", "--admin-port", "0", "--workers", str(workers)]
        limits = ["--max-inflight", str(cap), "--set", "engines.*.kv_tokens=100k"]
        # A machine that is busy with other tests is no overloaded gate, and prediction is not what is tested.
        calm = ["--set", "limits.loop_lag=5s", "--ttft-slo", "1h"]
        super().__init__(["serve", "--upstream", engine, *doors, *limits, *calm, *more, "--json"], errors)
        self.url = self.admin = ""

    def begin(self) -> Self:
        """Wait until it serves and its workers have their shares."""
        ready = self.ready()
        self.url, self.admin = ready["url"], ready["admin_url"]
        until(lambda: self.limit() > 0)
        return self

    def state(self) -> dict[str, Any]:
        status, body = fetch(self.admin, "/api/state")
        return json.loads(body) if status == 200 else {"workers": [], "engines": []}

    def limit(self) -> int:
        return sum(engine["limit"] for engine in self.state()["engines"])

    def processes(self) -> dict[int, int]:
        """Return the process of each worker that serves, by the worker's number."""
        return {worker["number"]: worker["process"] for worker in self.state()["workers"]}

    def children(self) -> list[int]:
        """Return the processes that it has started and that have not ended, ready or not."""
        number = self.process.pid
        try:
            found = Path(f"/proc/{number}/task/{number}/children").read_text(encoding="ascii").split()
        except OSError:
            return []
        return [each for each in map(int, found) if is_alive(each)]

    def metric(self, name: str) -> float:
        """Return the sum of a metric's samples."""
        page = fetch(self.admin, "/metrics")[1].decode()
        rows = [line.rsplit(" ", 1) for line in page.splitlines() if line.startswith(name)]
        return sum(float(value) for series, value in rows if series.partition("{")[0] == name)


class User:
    """One kept connection, which a worker serves for as long as it is open."""

    def __init__(self, url: str) -> None:
        self._connection = HTTPConnection(urlsplit(url).netloc, timeout=ANSWER_WITHIN_S)
        self.worker = ""
        self.last_id = ""
        self.hint_s = 0.0

    def ask(self, tokens: int = 2) -> int:
        """Ask once and return the status; a connection that was closed after an answer is made anew."""
        self._connection.request("POST", CHAT, chat(tokens), {"content-type": "application/json"})
        answer = self._connection.getresponse()
        answer.read()
        self.last_id = answer.headers["x-request-id"]
        self.hint_s = float(answer.headers.get("retry-after-ms", 0)) / 1e3
        self.worker = self.last_id.partition("-")[0]
        return answer.status

    def close(self) -> None:
        self._connection.close()


@contextlib.contextmanager
def users_of(url: str, counts: Sequence[int]) -> Iterator[list[list[User]]]:
    """Give users by the worker that serves them: so many of one, so many of another."""
    found: dict[str, list[User]] = {}
    for _ in range(200):
        user = User(url)
        assert user.ask() == 200
        found.setdefault(user.worker, []).append(user)
        most = sorted(found.values(), key=len, reverse=True)
        if len(most) >= len(counts) and all(len(users) >= n for users, n in zip(most, counts, strict=False)):
            break
    for users, count in zip(most, counts, strict=True):
        for user in users[count:]:
            user.close()
    try:
        yield [users[:count] for users, count in zip(most, counts, strict=True)]
    finally:
        for user in (user for users in most for user in users):
            user.close()


class Crowd:
    """Users in threads that ask again and again until the block ends; `statuses` counts answers, `broken` what was none."""

    def __init__(self, users: Sequence[User], tokens: int) -> None:
        self.statuses: Counter[int] = Counter()
        self.broken: list[str] = []
        self._tokens = tokens
        self.over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(user,)) for user in users]

    def _run(self, user: User) -> None:
        while not self.over.is_set():
            try:
                self.statuses[user.ask(self._tokens)] += 1
            except (OSError, HTTPException) as error:
                self.broken.append(repr(error))
                user.close()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join()


def is_alive(process: int) -> bool:
    """Return whether this process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def listens(url: str) -> bool:
    try:
        fetch(url, "/health")
    except OSError:
        return False
    return True


def kill(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


Start = Callable[..., Gate]


def answered(gate: Gate, requests: int = 8) -> set[int]:
    """Return the statuses of some requests, each on a connection of its own."""
    ask = partial(fetch, gate.url, CHAT, "POST", chat(2), content_type="application/json")
    return {ask()[0] for _ in range(requests)}
