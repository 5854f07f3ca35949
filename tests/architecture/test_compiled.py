"""What is compiled, and that what is compiled is what lies here."""

import ast
import importlib
import os
import platform
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

import hatch_build
import pytest

ABI = sysconfig.get_config_var("EXT_SUFFIX")
"""How the name of every extension of this interpreter ends."""


def test_every_name_in_the_list_of_what_is_compiled_is_there(root: Path) -> None:
    for group in hatch_build.GROUPS:
        files = hatch_build.files(group)
        assert files
        assert all((root / file).is_file() for file in files)


def test_no_module_is_in_two_groups() -> None:
    files = [file for group in hatch_build.GROUPS for file in hatch_build.files(group)]
    assert len(files) == len(set(files))


def test_all_that_was_named_is_compiled_or_nothing_is(root: Path) -> None:
    """Half of it would run, and cost more than either."""
    compiled = {
        path.relative_to(root).with_suffix("").with_suffix("").as_posix() for path in hatch_build.extensions()
    }
    named = {file.removesuffix(".py") for group in hatch_build.GROUPS for file in hatch_build.files(group)}
    assert not compiled or named <= compiled


def _bound_twice(tree: ast.Module) -> list[str]:
    """Return functions in which a name is bound to several kinds of exceptions, one of them a class of ours."""
    ours = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("millgate"):
            ours |= {alias.asname or alias.name for alias in node.names}
    found = []
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        kinds: dict[str, set[str]] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.ExceptHandler) and node.name and node.type:
                kinds.setdefault(node.name, set()).add(ast.unparse(node.type))
        found += [function.name for each in kinds.values() if len(each) > 1 and each & ours]
    return found


def test_no_compiled_function_binds_one_name_to_two_kinds_of_exceptions(root: Path) -> None:
    """The compiler gives the name the first one's class, and the second raises a TypeError where it is bound."""
    for group in hatch_build.GROUPS:
        for file in hatch_build.files(group):
            assert _bound_twice(ast.parse((root / file).read_text(encoding="utf-8"))) == [], file
    twice = "class A(Exception): ...\ndef f():\n try: ...\n except A as e: ...\n except OSError as e: ..."
    assert _bound_twice(ast.parse(twice)) == ["f"]


def _starts_by_itself(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "sum" and not node.args[1:]


def _right_of_others(tree: ast.Module) -> list[str]:
    """Return the sums without a start that stand right in an operation or a comparison, by themselves or by a name."""
    found = []
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        nodes = list(ast.walk(function))
        assigned = [node for node in nodes if isinstance(node, ast.Assign) and _starts_by_itself(node.value)]
        names = {ast.unparse(target) for node in assigned for target in node.targets}
        right = [node.right for node in nodes if isinstance(node, ast.BinOp)]
        right += [each for node in nodes if isinstance(node, ast.Compare) for each in node.comparators]
        found += [
            ast.unparse(each) for each in right if _starts_by_itself(each) or ast.unparse(each) in names
        ]
    return found


def test_no_compiled_sum_that_stands_right_of_something_starts_by_itself(root: Path) -> None:
    """A sum of floats is then a float or the whole number 0; the compiler takes both sides for whole numbers, and raises."""
    for group in hatch_build.GROUPS:
        for file in hatch_build.files(group):
            assert _right_of_others(ast.parse((root / file).read_text(encoding="utf-8"))) == [], file
    text = "def f():\n a = sum([b])\n return 1 / sum([b]) + a, sum([b]) / 2, 2 / sum([b], 0.0), a < 1"
    assert sorted(_right_of_others(ast.parse(text))) == ["a", "sum([b])"]


def test_compiled_modules_are_those_that_are_imported() -> None:
    if not hatch_build.extensions():
        pytest.skip("nothing is compiled here: make compiled")
    governor = importlib.import_module("millgate.core.governor.governor")
    assert str(governor.__file__).endswith(".so")


def test_a_source_that_changed_later_makes_what_is_compiled_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hatch_build, "SOURCES", tmp_path)
    monkeypatch.setattr(hatch_build, "files", lambda _group: [str(tmp_path / "a.py")])
    source, extension = tmp_path / "a.py", tmp_path / f"a{ABI}"
    source.touch()
    assert not hatch_build.stale()
    extension.touch()
    os.utime(source, (1.0, 1.0))
    assert not hatch_build.stale()
    os.utime(extension, (0.5, 0.5))
    assert hatch_build.stale()
    hatch_build.drop_stale()
    assert [path.name for path in tmp_path.iterdir()] == ["a.py"]


def test_without_a_compiler_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(hatch_build.INTERPRETED, raising=False)
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    assert "C compiler" in hatch_build.lacking()
    monkeypatch.setenv(hatch_build.INTERPRETED, "1")
    assert hatch_build.INTERPRETED in hatch_build.lacking()


@pytest.fixture
def broken_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of sources of one module; the compiler gives up on it half-way."""
    monkeypatch.setattr(hatch_build, "SOURCES", tmp_path)
    monkeypatch.setattr(hatch_build, "files", lambda _group: [str(tmp_path / "a.py")])
    monkeypatch.setattr(hatch_build, "lacking", lambda: "")
    (tmp_path / "a.py").touch()
    compiler = tmp_path / "half-way"
    compiler.write_text(f"#!/bin/sh\ntouch {tmp_path}/b{ABI}\necho a.py:1: no such type\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(compiler))
    return tmp_path


@pytest.mark.usefixtures("broken_compiler")
def test_a_compiler_that_fails_leaves_the_sources_to_the_interpreter(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert not hatch_build.compiled()
    assert hatch_build.extensions() == []
    assert "not compiled" in capsys.readouterr().err


@pytest.mark.usefixtures("broken_compiler")
def test_a_compiler_that_fails_fails_the_build_of_a_wheel_and_says_why() -> None:
    build_data: dict[str, Any] = {"force_include": {}}

    with pytest.raises(hatch_build.CompileError, match=r"(?s)MILLGATE_INTERPRETED=1.*a\.py:1: no such type"):
        hook().initialize("standard", build_data)
    assert hatch_build.extensions() == []
    assert build_data == {"force_include": {}}


def test_where_nothing_can_compile_the_wheel_is_pure_and_the_build_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hatch_build, "lacking", lambda: "there is no C compiler (cc)")
    build_data: dict[str, Any] = {"force_include": {}}

    hook().initialize("standard", build_data)

    assert build_data == {"force_include": {}}
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "the wheel is pure Python" in said
    assert "there is no C compiler (cc)" in said


def test_a_wheel_takes_the_extensions_of_its_interpreter_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hatch_build, "SOURCES", tmp_path)
    monkeypatch.setattr(hatch_build, "files", lambda _group: [str(tmp_path / "a.py")])
    monkeypatch.setattr(hatch_build, "lacking", lambda: "")
    for name in ("a.py", f"a{ABI}", f"part__mypyc{ABI}", "a.cpython-39-x86_64-linux-gnu.so"):
        (tmp_path / name).touch()
    build_data: dict[str, Any] = {"force_include": {}}

    hook().initialize("standard", build_data)

    assert sorted(build_data["force_include"].values()) == [f"a{ABI}", f"part__mypyc{ABI}"]
    assert (build_data["pure_python"], build_data["infer_tag"]) == (
        False,
        True,
    )  # no libraries: of no known glibc
    hatch_build.remove()
    assert (tmp_path / "a.cpython-39-x86_64-linux-gnu.so").exists()


def test_what_is_compiled_in_part_is_compiled_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hatch_build, "SOURCES", tmp_path)
    monkeypatch.setattr(hatch_build, "files", lambda _group: [str(tmp_path / "a.py"), str(tmp_path / "b.py")])
    for name in ("a.py", "b.py", f"a{ABI}"):
        (tmp_path / name).touch()

    assert not hatch_build.is_fresh()
    (tmp_path / f"b{ABI}").touch()
    assert hatch_build.is_fresh()


SAYS = """\
Dynamic Section:
  NEEDED               {library}
Version References:
  required from libc.so.6:
    0x06969194 0x00 04 GLIBC_2.14
    0x06969195 0x00 03 GLIBC_{newest}
"""


@pytest.mark.parametrize(
    ("library", "newest", "platforms"),
    [
        ("libc.so.6", "2.2.5", "manylinux_2_17_"),
        ("libc.so.6", "2.34", "manylinux_2_34_"),
        ("ld-linux-aarch64.so.1", "2.17", "manylinux_2_17_"),
        ("libssl.so.3", "2.14", ""),
        ("libc.so.6", "ABI_DT_RELR", ""),
    ],
)
def test_a_wheel_is_for_every_linux_with_the_glibc_that_its_extensions_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, newest: str, platforms: str
) -> None:
    dump = tmp_path / "objdump"
    dump.write_text(f"#!/bin/sh\ncat <<'END'\n{SAYS.format(library=library, newest=newest)}END\n")
    dump.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    tag = hatch_build.portable_tag([tmp_path / f"a{ABI}"])

    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert tag == (f"{python}-{python}-{platforms}{platform.machine()}" if platforms else "")


def test_without_a_way_to_read_libraries_the_tag_is_this_machines_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert hatch_build.portable_tag([tmp_path / f"a{ABI}"]) == ""


def test_a_mac_builds_no_wheel_for_linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its objdump reads its libraries too, and names none of them NEEDED: pip threw the wheel away after minutes of compiling."""
    dump = tmp_path / "objdump"
    dump.write_text("#!/bin/sh\necho 'Load command 0'\n")
    dump.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(sys, "platform", "darwin")

    assert hatch_build.portable_tag([tmp_path / f"a{ABI}"]) == ""


def test_a_wheel_of_a_free_threaded_interpreter_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = tmp_path / "objdump"
    dump.write_text(f"#!/bin/sh\ncat <<'END'\n{SAYS.format(library='libc.so.6', newest='2.17')}END\n")
    dump.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(sysconfig, "get_config_var", {"Py_GIL_DISABLED": 1}.get)

    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert hatch_build.portable_tag([tmp_path / f"a{ABI}"]).startswith(f"{python}-{python}t-manylinux_2_17_")


def hook() -> hatch_build.CompileHook:
    made: hatch_build.CompileHook = object.__new__(hatch_build.CompileHook)
    return made
