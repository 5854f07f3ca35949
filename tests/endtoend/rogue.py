"""A service beside the engines that no header of a client may reach, and how often it was reached."""

from http.server import BaseHTTPRequestHandler


class Rogue(BaseHTTPRequestHandler):
    """A service that no client may reach."""

    visits = 0

    def do_POST(self) -> None:
        type(self).visits += 1
        self.send_response(200)
        self.end_headers()

    def do_GET(self) -> None:
        self.do_POST()

    def log_message(self, *_: object) -> None:
        """Say nothing."""
