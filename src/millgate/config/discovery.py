"""Engines that come and go while the gate runs: by the addresses of a name, and by a file of their own."""

from pydantic import Field

from millgate.config.section import Section
from millgate.config.values import Duration, FilePath

HOUR_S = 3600.0


class DiscoveryConfig(Section):
    """Where engines are found beside those in `engines`; both kinds come and go without a restart or a signal."""

    file: FilePath | None = Field(
        default=None,
        description="File with a list of more engines, YAML or JSON, each item as in `engines`. The gate looks at the file every "
        "second and takes what it says once it has not changed for a second; a file that cannot be used changes nothing. "
        "Default: there is none.",
    )
    every: Duration = Field(
        default=5.0,
        ge=0.1,
        le=HOUR_S,
        description="Time between two look-ups of the name of an engine with `discover: dns`.",
    )
