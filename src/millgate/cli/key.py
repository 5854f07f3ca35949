"""`millgate key`: make, list and check the keys that tenants ask with; only their hashes are ever stored."""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from millgate.cli.exits import CommandError, ExitCode
from millgate.cli.output import people, print_json, print_line
from millgate.cli.settings import FileOption, SetOption, load_or_fail

if TYPE_CHECKING:
    from millgate.config.callers import KeyConfig

key_app = typer.Typer(help="Make, list and check the keys of tenants.", no_args_is_help=True)

PREFIX: Final = "mgk_"
"""Lets scanners of repositories and logs recognise a key of ours."""
_RANDOM_BYTES: Final = 32
_LONGEST_KEY: Final = 512
_SHOWN_DIGITS: Final = 8


@key_app.command()
def new(
    tenant: Annotated[
        str | None, typer.Option(help="Name of the tenant in the lines to paste.", show_default="NAME")
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(help="Date or time at which the key ends, in the lines to paste.", show_default="never"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print key and hash as one line of JSON.")] = False,
) -> None:
    """Make a key and print it, once, with the hash that goes into the configuration."""
    import secrets
    from hashlib import sha256

    from millgate.config.document import read_document
    from millgate.config.values import Moment, Name

    name = _valid(Name, tenant or "NAME", "--tenant: must be letters, digits, . _ : - and at most 64")
    if expires is not None:
        said = "--expires: must be a date or a time, as in 2027-01-31 or 2027-01-31T18:00:00Z"
        if _valid(Moment, expires, said) <= datetime.now(UTC):
            raise CommandError(f"--expires: {expires} is past: the key would be refused", ExitCode.USAGE)
    key = PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    digest = sha256(key.encode()).hexdigest()
    if as_json:
        print_json({"tenant": tenant, "key": key, "sha256": digest, "expires": expires})
        return
    print_line(f"key     {key}")
    print_line(f"sha256  {digest}")
    if read_document(f"name: {name}", "").data["name"] != name:
        name = f'"{name}"'  # YAML takes it for a number, a truth, or nothing
    console = people()
    console.print("\nGive the key to the caller: it is shown only now. The configuration gets its hash:\n")
    entry = digest if expires is None else f"{{sha256: {digest}, expires: {expires}}}"
    console.print(f"tenants:\n  - name: {name}\n    keys: [{entry}]", markup=False, soft_wrap=True)


@key_app.command("list")
def list_keys(
    config: FileOption = None,
    assignments: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as one line of JSON.")] = False,
) -> None:
    """List the keys of a configuration: tenant, name, the first digits of the hash, and when each ends."""
    now = datetime.now(UTC)
    told = [_told(tenant, key, now) for tenant, key in _keys(config, assignments)]
    if as_json:
        print_json({"keys": told})
        return
    if not told:
        print_line("no keys: the configuration names no tenants")
    for key in told:
        print_line(f"{key['tenant']:<24} {key['sha256']}  {_ending(key)}")


@key_app.command()
def check(
    config: FileOption = None,
    assignments: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as one line of JSON.")] = False,
) -> None:
    """Read one key from standard input and say whose it is. Exit code 1 for one that is unknown or has expired."""
    from hashlib import sha256

    if sys.stdin is None:
        raise CommandError("there is no standard input to read a key from", ExitCode.USAGE)
    if sys.stdin.isatty():
        people().print("Paste the key and press Enter:")
    # One byte more than the longest tells a longer one.
    given = sys.stdin.buffer.readline(_LONGEST_KEY + 2).strip()
    digest = sha256(given).hexdigest()
    now = datetime.now(UTC)
    found = [_told(tenant, key, now) for tenant, key in _keys(config, assignments) if key.sha256 == digest]
    if not found or len(given) > _LONGEST_KEY:
        raise CommandError("this is a key of no tenant in the configuration")
    if found[0]["expired"]:
        raise CommandError(f"this key of the tenant {found[0]['tenant']} has expired: {found[0]['expires']}")
    if as_json:
        print_json(found[0])
        return
    print_line(f"a key of the tenant {found[0]['tenant']}, {_ending(found[0])}")


def _valid(kind: Any, value: str, complaint: str) -> Any:
    """Return the value as configuration reads it; CommandError with this complaint for one that it refuses."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError:
        raise CommandError(complaint, ExitCode.USAGE) from None


def _keys(config: Any, assignments: Any) -> Iterator[tuple[str, "KeyConfig"]]:
    for tenant in load_or_fail(config, assignments).config.tenants:
        for key in tenant.keys:
            yield tenant.name, key


def _told(tenant: str, key: "KeyConfig", now: datetime) -> dict[str, Any]:
    """Return what may be shown of a key: never its whole hash."""
    return {
        "tenant": tenant,
        "name": key.name,
        "sha256": f"{key.sha256[:_SHOWN_DIGITS]}...",
        "expires": None if key.expires is None else key.expires.isoformat(),
        "expired": key.has_expired(now),
    }


def _ending(key: dict[str, Any]) -> str:
    called = "" if key["name"] is None else f", called {key['name']}"
    if key["expires"] is None:
        return f"does not expire{called}"
    return f"{'expired' if key['expired'] else 'expires'} {key['expires']}{called}"
