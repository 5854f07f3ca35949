"""What two configurations differ in, by the dotted paths that settings have."""

from millgate.config.values import Section


def changes(before: object, now: object, path: str = "") -> list[str]:
    """Return the path of each setting with another value; an item that has come, or is gone, is one (`tenants.acme`)."""
    if before == now:
        return []
    old, new = _parts(before), _parts(now)
    names = {**old, **new} if old and new else {}
    within = [
        each for name in names for each in changes(old.get(name), new.get(name), f"{path}.{name}".strip("."))
    ]
    return within or [path]


def _parts(value: object) -> dict[str, object]:
    """Return the settings of a section, or the items of a list by name; nothing of what has no parts, or items without names."""
    if isinstance(value, Section):
        return {name: getattr(value, name) for name in type(value).model_fields}
    items = value if isinstance(value, tuple) else ()
    parts = {getattr(item, "name", None): item for item in items}
    return {} if None in parts else {str(name): item for name, item in parts.items()}
