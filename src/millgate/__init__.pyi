# What type checkers see of `__init__.py`, which loads these names only on first use.
from millgate.library.gate import Gate as Gate, Yielded as Yielded

__all__ = ["Gate", "Yielded", "__version__"]

__version__: str
