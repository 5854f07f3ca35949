"""Compiles the rooms that every request passes, with mypyc, where a C compiler and Python's headers are at hand.

The same sources run either way, with the same results: compiled, a request costs a half (bench/). What is compiled is named
in pyproject.toml, in groups that two processors build side by side. The build backend calls this page for an
installation from the checkout (the extensions then lie beside their sources) and for a wheel (which gets them inside).
The Makefile calls it by the verbs at its end; `fresh` removes extensions that are older than a source, because
nobody should test last week's code.

mypyc: https://mypyc.readthedocs.io
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

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


class CompileHook(BuildHookInterface[Any]):
    """Hatchling's hook: compiles, and tells the wheel that it is no longer a pure one."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile in place; without a compiler, or should it fail, leave the sources to the interpreter.

        An editable install takes nothing into the wheel: what is compiled lies beside the sources, and a copy would hide them.
        """
        if not compiled() or version == "editable":
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"] |= {str(path): str(path.relative_to(SOURCES)) for path in extensions()}


def compiled() -> bool:
    """Compile what is not or no longer, in a process of its own; return whether everything is compiled now."""
    if extensions() and not stale():
        return True
    remove()
    missing = lacking()
    if not missing:
        say("compiling what every request passes, once: two minutes or so")
        done = subprocess.run(
            [sys.executable, __file__, "mypyc"], cwd=HERE, capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            return True
        remove()
        missing = (done.stdout + done.stderr)[-2000:]
    say(f"not compiled, so a request costs twice as much: {missing}")
    return False


def say(line: str) -> None:
    """Tell whoever installs."""
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
    """Return every compiled extension under the sources."""
    return sorted(SOURCES.rglob("*.so"))


def remove() -> None:
    """Take every extension away."""
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
    for module in modules:
        # Nobody outside a library calls its functions by name, so within it they are called directly and inlined.
        module.extra_compile_args += ["-fvisibility=hidden", "-fno-semantic-interposition"]
        module.extra_compile_args += ["-include", str(work / "cold.h")]
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
