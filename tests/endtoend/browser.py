"""A headless Chromium, spoken to as W3C WebDriver says (https://www.w3.org/TR/webdriver2/), with nothing in between.

Debian's packages chromium and chromium-driver. What the page said to its console and asked the network for is read
from the driver's logs.
"""

import base64
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ports import free_port

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MISSING = None if CHROMIUM and DRIVER else "needs Debian's packages chromium and chromium-driver"

# Nothing may leave the machine: no background traffic, and every name but this machine's is unknown.
_ARGUMENTS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key of an element's id, fixed by the standard
_STARTS_WITHIN_S = 60.0


class Browser:
    """One window."""

    def __init__(self, driver: str, session: str) -> None:
        self._session = f"{driver}/session/{session}"

    def open(self, url: str) -> None:
        """Go there and wait until it has loaded."""
        self._ask("POST", "/url", {"url": url})

    @property
    def address(self) -> str:
        """Where the window is."""
        return str(self._ask("GET", "/url"))

    def run(self, script: str, *arguments: Any) -> Any:
        """Run the body of a function in the page and return what it returns."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": arguments})

    def until(self, script: str, within_s: float = 20.0) -> float:
        """Wait until the body of a function returns something true; return how long that took."""
        start = time.monotonic()
        while not self.run(script):
            assert time.monotonic() - start < within_s, f"not within {within_s} s: {script}"
            time.sleep(0.05)
        return time.monotonic() - start

    def type(self, keys: str) -> None:
        """Press and release these keys, one after the other, wherever the focus is."""
        strokes = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._ask("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": strokes}]})

    def resize(self, width: int, height: int) -> None:
        """Give the page this many pixels."""
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def prefer(self, **features: str) -> None:
        """Set what the system prefers, as `prefers_color_scheme="dark"`."""
        named = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.command("Emulation.setEmulatedMedia", features=named)

    def picture(self, file: Path, *, whole: bool = False) -> None:
        """Save what the window shows, or the whole page, as PNG."""
        shot = self.command("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(shot["data"]))

    def command(self, name: str, **parameters: Any) -> Any:
        """Send a command of the Chrome DevTools Protocol."""
        return self._ask("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def console(self) -> list[str]:
        """Return what was said on the console since the last time."""
        return [entry["message"] for entry in self._ask("POST", "/se/log", {"type": "browser"})]

    def requests(self) -> list[str]:
        """Return the addresses on any network that were asked for since the last time."""
        entries = self._ask("POST", "/se/log", {"type": "performance"})
        messages = [json.loads(entry["message"])["message"] for entry in entries]
        asked = [each["params"] for each in messages if each["method"] == "Network.requestWillBeSent"]
        # The browser's own new tab consists of chrome: addresses, pictures in the page of data: ones.
        return [each["request"]["url"] for each in asked if each["request"]["url"].startswith(("http", "ws"))]

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        return _ask(method, self._session + path, body)

    def close(self) -> None:
        """End the window and its browser."""
        self._ask("DELETE", "")


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Run a browser with a new profile until the block ends."""
    assert CHROMIUM is not None
    assert DRIVER is not None
    port = free_port()
    process = subprocess.Popen(
        [DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        window = _window(f"http://127.0.0.1:{port}", profile)
        try:
            yield window
        finally:
            window.close()
    finally:
        process.terminate()
        process.wait()


def _window(driver: str, profile: Path) -> Browser:
    wanted = {
        "browserName": "chrome",
        "goog:chromeOptions": {"binary": CHROMIUM, "args": [*_ARGUMENTS, f"--user-data-dir={profile}"]},
        "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
    }
    start = time.monotonic()
    while True:
        try:
            _ask("GET", driver + "/status")
            break
        except OSError:
            assert time.monotonic() - start < _STARTS_WITHIN_S, "chromedriver does not answer"
            time.sleep(0.05)
    session = _ask("POST", driver + "/session", {"capabilities": {"alwaysMatch": wanted}})
    window = Browser(driver, session["sessionId"])
    # Some versions give the focus to no window where there is no screen.
    window.command("Emulation.setFocusEmulationEnabled", enabled=True)
    return window


def _ask(method: str, url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None and method != "POST" else json.dumps(body or {}).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())["value"]
