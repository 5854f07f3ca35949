"""Compiles the rooms that every request passes, with mypyc, where a C compiler and Python's headers are at hand.

The same sources run either way, with the same results: compiled, a request costs a half (bench/). What is compiled is named
in pyproject.toml, in groups that two processors build side by side. The build backend calls this page for an
installation from the checkout (the extensions then lie beside their sources) and for a wheel (which gets them inside).
A machine that cannot compile gets a pure wheel, and the build says in one line why; a compilation that fails ends the build.
The Makefile calls this page by the verbs at its end; `fresh` removes extensions that are older than a source, so that
no test runs outdated code.

mypyc: https://mypyc.readthedocs.io
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

HERE = Path(__file__).parent
SOURCES = HERE / "src"
INTERPRETED = "MILLGATE_INTERPRETED"
"""Set to anything, this environment variable leaves everything to the interpreter."""

GROUPS = ("deciding", "relaying", "simulating")
"""The lists of pyproject.toml, each compiled into one library."""

COLD = """\
#include <Python.h>
__attribute__((cold)) void CPy_Raise(PyObject *);
__attribute__((cold)) void CPy_TypeError(const char *, PyObject *);
__attribute__((cold)) void CPy_AddTraceback(const char *, const char *, int, PyObject *);
__attribute__((cold)) void CPy_TypeErrorTraceback(const char *, const char *, int, PyObject *, const char *, PyObject *);
__attribute__((cold)) void CPy_AttributeError(const char *, const char *, const char *, const char *, int, PyObject *);
"""
"""What mypyc's code does when something is raised, as declared in its CPy.h. Every line may raise; told that none is
expected to, the C compiler puts all of that apart: 4 % less CPU and half a megabyte less memory."""


GLIBC = frozenset({"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"})
"""The libraries of glibc, which every Linux with it has, beside its loader (`ld-linux-aarch64.so.1`)."""
OLDEST_GLIBC = (2, 17)
"""The oldest that installers and indexes still meet: manylinux2014."""


class CompileError(Exception):
    """The compiler ran and failed; the message ends with the last that it printed."""


class CompileHook(BuildHookInterface[Any]):
    """Hatchling's hook: compiles, and tells the wheel that it is no longer a pure one."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile in place and put the extensions into the wheel; raise CompileError where the compiler fails.

        An editable install takes nothing into the wheel: what is compiled lies beside the sources, and a copy would hide
        them. It goes on interpreted where it cannot compile.
        """
        if version == "editable":
            compiled()
        elif missing := lacking():
            say(f"the wheel is pure Python, and a request costs twice as much: {missing}")
        else:
            ensure_compiled()
            build_data["pure_python"] = False
            tag = portable_tag(extensions())
            build_data |= {"tag": tag} if tag else {"infer_tag": True}
            build_data["force_include"] |= {
                str(path): str(path.relative_to(SOURCES)) for path in extensions()
            }


class ReadmeHook(MetadataHookInterface):
    """Hatchling's hook for the long description: README.md as a package index can show it."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Put README.md into the metadata, with every link and picture of this version absolute."""
        text = (HERE / "README.md").read_text(encoding="utf-8")
        readme = absolute_links(text, metadata["urls"]["Homepage"], metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}


def portable_tag(built: list[Path]) -> str:
    """Return the tag of a wheel with these extensions for every Linux whose glibc has what they ask, by PEP 600.

    Empty where that cannot be told: no Linux, no objdump, another libc, or a library beside glibc's own. The tag is then this machine's
    own (`linux_x86_64`, which no package index takes, or `macosx_...`).
    """
    # A Mac's objdump names no library of glibc, and no installer there takes a wheel for Linux.
    if sys.platform != "linux":
        return ""
    asked: list[tuple[int, ...]] = [OLDEST_GLIBC]
    for path in built:
        if shutil.which("objdump") is None:
            return ""
        read = subprocess.run(["objdump", "-p", path], capture_output=True, text=True, check=False)  # noqa: S607
        named = re.findall(r"NEEDED +(\S+)", read.stdout)
        needed = {library for library in named if not library.startswith("ld-linux")}
        if read.returncode != 0 or needed - GLIBC:
            return ""
        if set(re.findall(r"\bGLIBC_([A-Z]\w*)", read.stdout)):
            return ""
        versions = re.findall(r"\bGLIBC_([\d.]+)", read.stdout)
        asked += [tuple(map(int, version.split(".")))[:2] for version in versions]
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    abi = python + ("t" if sysconfig.get_config_var("Py_GIL_DISABLED") else "")
    major, minor = max(asked)
    return f"{python}-{abi}-manylinux_{major}_{minor}_{platform.machine()}" if built else ""


def absolute_links(markdown: str, repository: str, version: str) -> str:
    """Return Markdown whose links relative to the repository's root lead to its tag `vVERSION` on the forge.

    A picture leads to the file itself, any other link to the page that shows it. Anchors and addresses stay.
    """

    def absolute(link: re.Match[str]) -> str:
        bang, text, target = link.groups()
        if "://" in target or target.startswith(("#", "mailto:")):
            return link[0]
        return f"{bang}[{text}]({repository}/{'raw' if bang else 'blob'}/v{version}/{target})"

    return re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", absolute, markdown)


def compiled() -> bool:
    """Compile what is not or no longer; return whether everything is compiled now, and say why where it is not."""
    if is_fresh():
        return True
    remove()
    missing = lacking()
    if not missing:
        try:
            ensure_compiled()
        except CompileError as error:
            missing = str(error)
        else:
            return True
    say(f"not compiled, so a request costs twice as much: {missing}")
    return False


def ensure_compiled() -> None:
    """Compile what is not or no longer, in a process of its own; raise CompileError, with nothing left, where that fails."""
    if is_fresh():
        return
    remove()
    say("compiling what every request passes, once: a few minutes")
    done = subprocess.run(
        [sys.executable, __file__, "mypyc"], cwd=HERE, capture_output=True, text=True, check=False
    )
    if done.returncode != 0 or not is_complete():
        remove()
        said = (done.stdout + done.stderr)[-2000:]
        raise CompileError(
            f"mypyc failed; with {INTERPRETED}=1 the build goes on without it. Its last lines:\n{said}"
        )


def say(line: str) -> None:
    """Write one line for the person that installs."""
    print(f"install: {line}", file=sys.stderr)


def lacking() -> str:
    """Return what keeps this machine from compiling, nothing if it can."""
    if os.environ.get(INTERPRETED):
        return f"{INTERPRETED} is set"
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler ({compiler})"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "Python's headers are missing (on Debian: apt-get install python3-dev)"
    return ""


def extensions() -> list[Path]:
    """Return every compiled extension under the sources that this interpreter loads.

    Their names end in the interpreter's ABI tag; those of another interpreter are none of this one's business.
    """
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    return sorted(SOURCES.rglob(f"*{suffix}"))


def is_complete() -> bool:
    """Return whether every module that pyproject.toml names has its extension."""
    named = {(HERE / file).with_suffix("") for group in GROUPS for file in files(group)}
    return named <= {path.with_suffix("").with_suffix("") for path in extensions()}


def is_fresh() -> bool:
    """Return whether every module is compiled, each since its source was last changed."""
    return bool(extensions()) and is_complete() and not stale()


def remove() -> None:
    """Take every extension of this interpreter away."""
    for path in extensions():
        path.unlink()


def stale() -> bool:
    """Return whether a source is newer than what was compiled from it."""
    built = min((path.stat().st_mtime for path in extensions()), default=None)
    sources = [HERE / file for group in GROUPS for file in files(group)]
    return built is not None and any(path.stat().st_mtime > built for path in sources)


def compile_in_place() -> None:
    """Run mypyc over the groups that pyproject.toml names and build them beside their sources."""
    from mypyc.build import mypycify
    from setuptools import Distribution  # type: ignore[import-untyped]  # it has no types
    from setuptools.command.build_ext import build_ext  # type: ignore[import-untyped]

    work = HERE / "build" / "mypyc"
    groups: Any = [(files(group), f"millgate_{group}") for group in GROUPS]
    sources = [file for group, _ in groups for file in group]
    modules = mypycify(sources, opt_level="2", debug_level="0", separate=groups, target_dir=str(work))
    work.mkdir(parents=True, exist_ok=True)
    (work / "cold.h").write_text(COLD)
    # Within a library functions are called directly and inlined: no other one calls them by name.
    flags = ["-fvisibility=hidden", "-fno-semantic-interposition", "-include", str(work / "cold.h")]
    for module in modules:  # they share one list
        module.extra_compile_args = [*module.extra_compile_args, *flags]
    # Not `setup()`: it would read pyproject.toml, which another backend's needs have shaped.
    command = build_ext(Distribution({"ext_modules": modules, "package_dir": {"": "src"}}))
    command.build_lib, command.build_temp, command.parallel = str(SOURCES), str(work), 2
    command.ensure_finalized()
    command.run()


def files(group: str) -> list[str]:
    """Return the sources of a group: rooms are taken whole, a leading `-` leaves a module out."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text())
    named = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"][group]
    chosen: set[Path] = set()
    for name in named:
        path = SOURCES / "millgate" / name.removeprefix("-")
        found = {path} if path.suffix else set(path.rglob("*.py"))
        chosen = chosen - found if name.startswith("-") else chosen | found
    return [str(path.relative_to(HERE)) for path in sorted(chosen)]


def drop_stale() -> None:
    """Go on interpreted where a source has changed since it was compiled."""
    if stale():
        remove()
        say(
            "sources have changed since they were compiled: going on interpreted (`make compiled` compiles them)"
        )


if __name__ == "__main__":
    {"compile": compiled, "mypyc": compile_in_place, "remove": remove, "fresh": drop_stale}[sys.argv[1]]()
