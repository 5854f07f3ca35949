"""What every part of the configuration is: frozen data in which an undeclared key is an error."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Frozen data; a key that is not declared is an error, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
