"""What the configuration says about clients that come back."""

from pydantic import Field

from millgate.config.section import Section
from millgate.config.values import Count, VariableName


class RetriesConfig(Section):
    """Clients that come back: how many are remembered, and the tickets by which they prove their age."""

    appointments: Count = Field(
        default=100_000,
        ge=1,
        le=1_000_000,
        description="Most refused clients that are remembered at once, about 160 bytes each. Beyond it the tenant "
        "with the longest line loses its newest appointment.",
    )
    budget: bool = Field(
        default=True,
        description="Refuse retries that keep no appointment beyond a fifth of what is admitted, so that a crowd that "
        "hammers does not keep an overload alive.",
    )
    ticket_key_env: VariableName | None = Field(
        default=None,
        description="Name of the environment variable that holds the key by which tickets are signed, 32 to 64 bytes "
        "in hexadecimal digits. Replicas that share it take each other's tickets, and know the same prefixes by the same "
        "marks. Default: a new key at every start.",
    )
