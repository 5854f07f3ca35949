"""Serves with SGLang on a machine without a GPU, with what its PyPI package has: no kernels of its own, and torch's attention.

    python tests/engines/sglang_on_cpu.py --model-path DIRECTORY --port 8000 ...

The interpreter needs torch for the CPU, transformers and SGLang without its dependencies (docs/how-to/sglang.md). Two packages that a
server of text never calls are only pretended to be there: the image operations of `torchvision`, and the kernels of `sgl_kernel`.
"""

import importlib.machinery
import importlib.metadata
import os
import sys
import types
from collections.abc import Sequence
from typing import Any

ABSENT = ("torchvision", "sgl_kernel")
NEVER_CALLED = "0.28.0"
FLAGS = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--grammar-backend", "none", "--dtype", "float32", "--load-format", "dummy", "--skip-server-warmup"),
    "--sleep-on-idle",
)


class _Names(type):
    def __getattr__(cls, name: str) -> int:
        if name.startswith("__"):
            raise AttributeError(name)
        return 0


class _Absent(types.ModuleType):
    """A module that has every name, each a class whose attributes are 0."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Names(name, (), {})


class _Finder:
    """Finds the absent packages, and all modules in them."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in ABSENT:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _Absent(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, _module: types.ModuleType) -> None: ...


_version = importlib.metadata.version


def _version_of(distribution_name: str) -> str:
    return NEVER_CALLED if distribution_name in ABSENT else _version(distribution_name)


importlib.metadata.version = _version_of
# The scheduler's process runs this file's lines anew before it imports anything.
sys.meta_path.append(_Finder())
os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
# A health page that computes a token is late on a slow machine, and an engine whose page is late is taken out.
os.environ["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] = "0"

if __name__ == "__main__":
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args

    run_server(prepare_server_args([*FLAGS, *sys.argv[1:]]))
