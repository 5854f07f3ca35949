"""What the configuration says about where engines stand."""

from typing import Literal

from pydantic import Field

from millgate.config.section import Section
from millgate.config.values import Name


class LabelsConfig(Section):
    """Where an engine stands; equal names, equal places. What is left out counts as the same place, and never as the same host."""

    host: Name | None = Field(
        default=None, description="The machine: what runs on one has the fastest links."
    )
    rack: Name | None = Field(
        default=None, description="Its rack, or what else has fast links. One name in two zones is two racks."
    )
    zone: Name | None = Field(
        default=None, description="Its zone, such as the value of `topology.kubernetes.io/zone`."
    )
    required: Literal["host", "rack", "zone"] | None = Field(
        default=None,
        description="The two engines of a request must have the same one of these labels; where none has room there, the engine that answers reads "
        "the prompt itself. The label must be given. Default: near engines are preferred, and far ones may be used.",
    )
