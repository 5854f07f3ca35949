"""`millgate key`: make the keys that tenants ask with; only their hashes are ever stored."""

from typing import Annotated, Final

import typer

from millgate.cli.exits import CommandError, ExitCode
from millgate.cli.output import people, print_json, print_line

key_app = typer.Typer(help="Make keys for tenants.", no_args_is_help=True)

PREFIX: Final = "hgk_"
"""Lets scanners of repositories and logs recognise a key of ours."""
_RANDOM_BYTES: Final = 32


@key_app.callback()
def _group() -> None:
    """Keep `new` a subcommand while it is the only one."""


@key_app.command()
def new(
    tenant: Annotated[
        str | None, typer.Option(help="Name of the tenant in the lines to paste.", show_default="NAME")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print key and hash as one line of JSON.")] = False,
) -> None:
    """Make a key and print it, once, with the hash that goes into the configuration."""
    import secrets
    from hashlib import sha256

    from pydantic import TypeAdapter, ValidationError

    from millgate.config.values import Name

    try:
        name = TypeAdapter(Name).validate_python(tenant or "NAME")
    except ValidationError:
        raise CommandError(
            "--tenant: must be letters, digits, . _ : - and at most 64", ExitCode.USAGE
        ) from None
    key = PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    digest = sha256(key.encode()).hexdigest()
    if as_json:
        print_json({"tenant": tenant, "key": key, "sha256": digest})
        return
    print_line(f"key     {key}")
    print_line(f"sha256  {digest}")
    console = people()
    console.print("\nGive the key to the caller: it is shown only now. The configuration gets its hash:\n")
    console.print(f"tenants:\n  - name: {name}\n    keys: [{digest}]", markup=False, soft_wrap=True)
