"""Options checked once, each error naming its option and the limit."""


def within(name: str, value: float, least: float, most: float) -> None:
    """Raise ValueError naming the option when its value is out of bounds."""
    if not least <= value <= most:
        raise ValueError(f"{name}: must be from {least:g} to {most:g}, got {value:g}")
