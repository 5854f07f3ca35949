"""One job over the line door, with its answer.

MILLGATE_LINE=127.0.0.1:7777 python examples/line_client.py
"""

import json
import os

from millgate.client.line import LineClient


def main() -> None:
    """Ask how the server stands, then have one request executed."""
    body = {"model": "any", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}
    with LineClient(os.environ.get("MILLGATE_LINE", "127.0.0.1:7777")) as client:
        print("ready" if client.ping().ready else "saturated")
        sent = client.send(json.dumps(body).encode(), want_result=True)
    answer = json.loads(sent.result or b"{}")
    print(f"done after {sent.yields} yields, finish_reason {answer['choices'][0]['finish_reason']}")


if __name__ == "__main__":
    main()
