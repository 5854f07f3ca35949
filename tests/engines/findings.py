"""What the engines did, in words and numbers, for whoever runs the tests: printed when they are over."""

_findings: list[str] = []


def note(engine: str, what: str, **numbers: object) -> None:
    """Keep one finding."""
    _findings.append(
        f"{engine}: {what}: " + ", ".join(f"{name} {number}" for name, number in numbers.items())
    )


def all_findings() -> tuple[str, ...]:
    """Return what was noted so far, in order."""
    return tuple(_findings)
