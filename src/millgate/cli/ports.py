"""What to say when an address cannot be listened on."""

import errno
import socket

from millgate.cli.exits import CommandError, ExitCode


def address_error(error: OSError, host: str, port: int, remedy: str) -> CommandError:
    """Return the error for an address that `bind` refused: its holder is unknown, the flag that helps is not."""
    where = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        message = f"{where} is taken by another program: stop it, or choose another port with {remedy}"
    elif error.errno == errno.EACCES:
        message = f"{where} is not allowed to this user: choose a port above 1023 with {remedy}"
    elif error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        message = f"{where} is not an address of this machine"
    else:
        message = f"{where} cannot be listened on: {error.strerror or error}"
    return CommandError(message, ExitCode.PORT_TAKEN)
