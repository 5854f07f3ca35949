"""Headgate: the overload-control gateway for LLM inference."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headgate.library.gate import Gate as Gate, Yielded as Yielded

__version__ = "0.1.0"
__all__ = ["Gate", "Yielded", "__version__"]


def __getattr__(name: str) -> Any:
    """Load the in-process gate when somebody asks for it: it brings asyncio and threads with it."""
    if name in {"Gate", "Yielded"}:
        from headgate.library import gate  # noqa: PLC0415 - see above

        return getattr(gate, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
