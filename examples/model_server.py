"""A model server of your own behind a gate: refused early with hints, cancelled when its client leaves.

Any ASGI application takes the middleware; with FastAPI it is the same `app.add_middleware(...)`.
"""

import asyncio

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import millgate
from millgate.library.asgi import GateMiddleware


async def complete(request: Request) -> JSONResponse:
    """Answer after a while, as models do."""
    body = await request.json()
    await asyncio.sleep(0.2)
    return JSONResponse({"model": body["model"], "choices": []})


gate = millgate.Gate(max_inflight=2, max_queue=0)
app = Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"])])
app.add_middleware(GateMiddleware, gate=gate, paths={"/v1/chat/completions"})


async def main() -> None:
    """Ask three times at once where two fit."""
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://model") as client:
        asks = (client.post("/v1/chat/completions", json={"model": f"m{number}"}) for number in range(3))
        answers = await asyncio.gather(*asks)
    for answer in sorted(answers, key=lambda each: each.status_code):
        print(answer.status_code, answer.headers.get("x-millgate-reason", "served"))


if __name__ == "__main__":
    asyncio.run(main())
