"""The languages of clients and engines, pure: read a request, read usage, say no."""

from collections.abc import Mapping

from headgate.dialects.contract import Dialect
from headgate.dialects.openai import OPENAI

DIALECTS: Mapping[str, Dialect] = {"openai": OPENAI}
"""Every dialect by name; a new one is a file beside this one and a line here."""
