"""From settings to a governor: the one place where names become policies."""

from headgate.core.governor import Governor
from headgate.core.settings import Settings
from headgate.wiring.choices import ORDERS, ROUTERS

DEFAULT_ROUTER = "least_work"


def build_governor(settings: Settings, now: float) -> Governor:
    """Return a governor that starts at core time `now` with every policy that the settings name."""
    return Governor(settings, ORDERS, ROUTERS[DEFAULT_ROUTER](), now)
