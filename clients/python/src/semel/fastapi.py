"""Middleware for webhook receivers in FastAPI, Starlette and other ASGI applications."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, MutableMapping
from typing import Any, Callable

from .client import Client
from .errors import SemelError, Unknown
from .webhook import KeyRule, NotHappened, Response, bounded, key_of

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Once:
    """Lets each POST to `path`, and to paths below it, take effect once.

        app.add_middleware(Once, client=client, path="/webhooks", key="Webhook-Id")

    A repetition gets the first answer. A request without the header gets 400. An answer
    with an error gives the key back, so that the sender's repetition runs. An answer without
    an end leaves the outcome open, and so does none within the `renew_for` of the client, by
    default 5 minutes: then the application is cancelled.
    """

    def __init__(self, app: App, client: Client, key: KeyRule, path: str = "/") -> None:
        self._app, self._client, self._key = app, bounded(client), key
        self._path = path.rstrip("/") + "/"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        covered = scope["type"] == "http" and scope["method"] == "POST"
        if not covered or not (scope["path"] + "/").startswith(self._path):
            return await self._app(scope, receive, send)
        body = await _read(receive)
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        id = key_of(self._key, scope["path"], headers, body)
        if id is None and isinstance(self._key, str):
            detail = f"the header {self._key} is missing".encode()
            return await _answer(send, Response(400, [("Content-Type", "text/plain")], detail))
        if id is None:
            return await self._app(scope, _again(body, receive), send)
        claim = self._client.claim(id, origin=scope["path"])
        try:
            async with claim:
                if claim.fresh:
                    with claim.running():
                        response = await self._run(scope, body)
                    claim.result = response.kept()
                    if not response.happened:
                        raise NotHappened
                else:
                    response = Response.replay(claim.result)
        except NotHappened:
            pass
        except SemelError as error:
            response = Response.refusal(error)
        await _answer(send, response)

    async def _run(self, scope: Scope, body: bytes) -> Response:
        response = Response(500, [], b"")
        ended = False

        async def collect(message: MutableMapping[str, Any]) -> None:
            nonlocal ended
            if message["type"] == "http.response.start":
                response.status = message["status"]
                response.headers = [
                    (name.decode("latin-1"), value.decode("latin-1"))
                    for name, value in message.get("headers", ())
                ]
            elif message["type"] == "http.response.body":
                response.body += message.get("body", b"")
                ended = not message.get("more_body", False)

        await self._app(scope, _again(body, _nothing), collect)
        if not ended:  # its lease was lost, or it has a bug
            raise Unknown("semel: the application returned without the end of its answer")
        return response


async def _read(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionResetError("the sender has gone")
        body += bytes(message.get("body", b""))
        if not message.get("more_body", False):
            return body


async def _nothing() -> MutableMapping[str, Any]:
    """Hides that the sender has left: the answer is kept for its repetition."""
    await asyncio.Event().wait()
    raise AssertionError("nobody sets the event")


def _again(body: bytes, receive: Receive) -> Receive:
    """Returns a source of a body that was read."""
    parts = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> MutableMapping[str, Any]:
        return parts.pop() if parts else await receive()

    return next_message


async def _answer(send: Send, response: Response) -> None:
    headers = [(n.encode("latin-1"), v.encode("latin-1")) for n, v in response.headers]
    if not any(name.lower() == b"content-length" for name, _ in headers):
        headers.append((b"content-length", str(len(response.body)).encode()))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})
