"""The gate inside a Python process: slots, a decorator, and middleware for ASGI model servers."""

from millgate.library.gate import Gate, Slot, Yielded

__all__ = ["Gate", "Slot", "Yielded"]
