"""Millgate: the overload-control gateway for LLM inference."""

from importlib import import_module

__version__ = "0.1.0"
__all__ = ["Gate", "Yielded", "__version__"]


def __getattr__(name: str) -> object:
    """Load the in-process gate on first use: it brings asyncio and threads with it.

    The types are in `__init__.pyi`: an import here, even one that only type checkers see, would put the library
    below every room that reads the version.
    """
    if name in {"Gate", "Yielded"}:
        loaded: object = getattr(import_module("millgate.library"), name)
        return loaded
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
