"""Pages that run: their shell blocks one after the other in one folder, against the servers that the page starts."""

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]

READY_WITHIN_S = 60.0  # generous: the machine may be busy
BLOCK_WITHIN_S = 60.0
END_WITHIN_S = 30.0

SERVERS = ("millgate run", "millgate serve", "millgate engine", "make run")
"""What a block that goes on until Ctrl-C begins with."""
ONLY_LOOKED_AT = ("make install", "make test")
"""What makes this environment, and what runs this suite: asked what it would do, and not done."""

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"(?:make|millgate) [a-z]")
_FILE_NAME = re.compile(r"# (\S+\.(?:yaml|py))$", re.MULTILINE)
_GATE_READY = re.compile(
    r"listening +http://(\S+)\s+admin +http://(\S+).*^try$.*explain\?", re.DOTALL | re.MULTILINE
)
_ENGINE_READY = re.compile(r"millgate engine ready host=(\S+) port=(\d+)")
_REQUEST_ID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]+\b")
_BUILD = re.compile(r"\((?:partly compiled|interpreted)(?=, Python)")
_STATUS = r"(?:(?<=^)|(?<=: ))[2-5]\d\d\b"
"""A status of HTTP, which is no mere number: at the beginning of a line, or after a colon."""
_NUMBER = re.compile(rf"(?<![\w.])(?!{_STATUS})-?\d+(?:[.,:]\d+)*", re.MULTILINE)
_UNIT = re.compile(r"(?<=#)\s?(?:us|ms|s|m)\b")


class Block(NamedTuple):
    """One fenced block of a page: `kind` is its language, `text` what stands in it, `output` the block below it."""

    kind: str
    text: str
    output: str = ""


def blocks(page: Path) -> list[Block]:
    """Return a page's blocks in order; an `output` block goes with the block before it, as it must."""
    found: list[Block] = []
    for kind, text in _FENCE.findall(page.read_text()):
        if kind == "output":
            found[-1] = found[-1]._replace(output=text)
        elif kind or not all(_COMMAND.match(line) for line in text.splitlines()):
            found.append(Block(kind, text))
        else:  # a choice of commands, each for itself
            found += [Block("sh", line.partition("  #")[0].rstrip() + "\n") for line in text.splitlines()]
    return found


def shapes(output: str) -> set[str]:
    """Return the distinct lines of an output without what differs from run to run or from one installation to another.

    That is: numbers but statuses, units of time, ids, and whether it is compiled.
    """
    output = _BUILD.sub("(compiled", output)
    lines = _UNIT.sub(" s", _NUMBER.sub("#", _REQUEST_ID.sub("ID", output))).splitlines()
    return {" ".join(line.split()) for line in lines} - {""}


def missing(shown: str, real: str) -> list[str]:
    """Return the shapes that a page shows and a run did not print; `...` stands for anything, at an end or alone."""
    printed = shapes(real)
    wanted = sorted(each for each in shapes(shown) if each != "...")
    return [each for each in wanted if not any(_fits(each, line) for line in printed)]


def _fits(wanted: str, line: str) -> bool:
    return line.startswith(wanted.removesuffix("...")) if wanted.endswith("...") else line == wanted


class Session:
    """A reader's terminals: a folder, the gate and the engine that run now, and the commands typed beside them.

    Pages name the usual ports; here every server takes a free one, and what is typed or written afterwards is changed
    accordingly. `engine` is the address of an engine that runs already.
    """

    def __init__(self, folder: Path, engine: str = "") -> None:
        self.folder = folder
        self._addresses = {"127.0.0.1:8000": engine} if engine else {}
        self._servers: dict[str, subprocess.Popen[bytes]] = {}

    def write(self, text: str) -> None:
        """Write a file that a page shows; its first line says its name."""
        name = _FILE_NAME.match(text)
        assert name is not None, f"a file without its name in the first line: {text[:60]!r}"
        (self.folder / name[1]).write_text(self._here(text))

    def type(self, text: str) -> str:
        """Run a block as it stands and return what it printed; a server is left running."""
        command = text.partition("\n")[0]
        if command.startswith(ONLY_LOOKED_AT):
            return self._run(f"make --dry-run --directory={ROOT} {command.removeprefix('make ')}")
        if command.startswith(SERVERS):
            return self._serve(text)
        return self._run(self._here(text))

    def end(self) -> None:
        """End every server as Ctrl-C would."""
        for kind in [*self._servers]:
            self._stop(kind)

    def _here(self, text: str) -> str:
        for usual, real in self._addresses.items():
            text = text.replace(usual, real)
        return text

    def _environ(self) -> dict[str, str]:
        """Let every gate take free ports, and whoever asks a gate find the one that runs."""
        admin_port = self._addresses.get("127.0.0.1:8081", ":0").rpartition(":")[2]
        foreign = ("MAKE", "MFLAGS", "MILLGATE_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        return kept | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "MILLGATE_LISTEN__PORT": "0",
            "MILLGATE_ADMIN__PORT": admin_port,
            "COLUMNS": "110",
            "NO_COLOR": "1",
        }

    def _run(self, text: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.folder,
            env=self._environ(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BLOCK_WITHIN_S,
            check=False,
        )
        assert done.returncode == 0, f"{text}\nended with {done.returncode}:\n{done.stdout}"
        return done.stdout

    def _serve(self, text: str) -> str:
        kind = "engine" if text.startswith("millgate engine") else "gate"
        self._stop(kind)
        said = self.folder / f"{kind}.said"
        # Where no terminal reads, a server writes JSON; the pages show what a reader sees.
        ours, terminal = pty.openpty()
        self._servers[kind] = subprocess.Popen(
            ["bash", "-c", f"exec {self._on_any_port(text.strip())}"],
            cwd=self.folder,
            env=self._environ() | {"MILLGATE_ADMIN__PORT": "0"},
            stdin=subprocess.DEVNULL,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,  # Ctrl-C goes to everything that the terminal runs
        )
        os.close(terminal)
        said.write_bytes(b"")
        threading.Thread(target=_keep, args=(ours, said), daemon=True).start()
        self._await(kind, said)
        return said.read_text()

    def _on_any_port(self, command: str) -> str:
        """Gates take their ports from the environment; an engine has only its flag."""
        if command.startswith("millgate engine"):
            return f"{command} --port 0"
        return self._here(command).replace("make ", f"make --directory={ROOT} ", 1)

    def _await(self, kind: str, said: Path) -> None:
        server, ready = self._servers[kind], _ENGINE_READY if kind == "engine" else _GATE_READY
        give_up_at = time.monotonic() + READY_WITHIN_S
        while (found := ready.search(said.read_text())) is None:
            assert server.poll() is None, said.read_text()
            assert time.monotonic() < give_up_at, said.read_text()
            time.sleep(0.02)
        if kind == "engine":
            self._addresses["127.0.0.1:8000"] = f"{found[1]}:{found[2]}"
        else:
            self._addresses |= {"127.0.0.1:8080": found[1], "127.0.0.1:8081": found[2]}

    def _stop(self, kind: str) -> None:
        server = self._servers.pop(kind, None)
        if server is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGINT)
            server.wait(END_WITHIN_S)


def _keep(terminal: int, file: Path) -> None:
    """Write what a terminal shows into a file, until the last process behind it has ended."""
    with (
        os.fdopen(terminal, "rb", buffering=0) as shown,
        file.open("ab", buffering=0) as kept,
        contextlib.suppress(OSError),  # a terminal without processes is an error, not an end
    ):
        while text := shown.read(65_536):
            kept.write(text.replace(b"\r\n", b"\n"))


def run(page: Path, session: Session) -> Iterator[tuple[Block, str]]:
    """Go through a page as a reader does; yield each block that was typed, and what it printed."""
    try:
        for block in blocks(page):
            if block.kind in {"yaml", "python"}:
                session.write(block.text)
            elif block.kind == "sh":
                yield block, session.type(block.text)
    finally:
        session.end()
