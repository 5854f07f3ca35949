"""From settings to a governor: the one place where names become policies."""

from functools import partial

from millgate.core.governor import Governor
from millgate.core.instruments import Instruments
from millgate.core.queues.base import Order
from millgate.core.queues.fair import FairOrder
from millgate.core.settings import LaneSettings, Settings
from millgate.instruments.early_warning import EarlyWarning
from millgate.instruments.littles_law import LittlesLaw, total
from millgate.instruments.objectives import SloWatch
from millgate.wiring.choices import ORDERS

INSTRUMENTS = Instruments(EarlyWarning, SloWatch, LittlesLaw, total)


def build_governor(settings: Settings, now: float) -> Governor:
    """Return a governor that starts at core time `now` with every policy that the settings name."""
    return Governor(settings, make_order, INSTRUMENTS, now)


def make_order(lane: LaneSettings) -> Order:
    """Return the order that this lane asks for: between its tenants fair if it is to be, inside each as named."""
    inner = partial(ORDERS[lane.order], lane)
    return FairOrder(inner) if lane.fair else inner()
