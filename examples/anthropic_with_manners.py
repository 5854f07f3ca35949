"""The Anthropic SDK with the same manners; it takes clients of httpx2 only.

MILLGATE_URL=http://127.0.0.1:8080 python examples/anthropic_with_manners.py
"""

import os

import anthropic

from millgate.client import HostSettings, Limits, for_httpx2


def main() -> None:
    """Ask once, within the known limits of a first tier."""
    url = os.environ.get("MILLGATE_URL", "http://127.0.0.1:8080")
    manners = HostSettings(limits=Limits(rpm=50, itpm=30_000, otpm=8_000))
    with for_httpx2.client(manners) as http_client:
        client = anthropic.Anthropic(base_url=url, api_key="unused", http_client=http_client)
        answer = client.messages.create(
            model="any", max_tokens=5, messages=[{"role": "user", "content": "Hello"}]
        )
    print(f"stopped for {answer.stop_reason}")


if __name__ == "__main__":
    main()
