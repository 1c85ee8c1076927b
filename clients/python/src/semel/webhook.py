"""What the middleware for FastAPI and Django does with a request and its response."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable, Optional, Union

from .client import Client
from .errors import Mismatch, SemelError
from .wire import Id, Scalar

#: The name of a header that has the id, or a function of headers (in lower case) and body.
#: A function that returns None lets the request pass without a key.
KeyRule = Union[str, Callable[[Mapping[str, str], bytes], Union[Scalar, tuple[Scalar, ...], None]]]


@dataclass
class Response:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def happened(self) -> bool:
        """A sender repeats a webhook that was answered with an error, so it must run again."""
        return self.status < 400

    def kept(self) -> dict[str, Any]:
        """Returns what a repetition is answered with."""
        named = [h for h in self.headers if h[0].lower() in ("content-type", "location")]
        body = base64.b64encode(self.body).decode()
        return {"status": self.status, "headers": named, "body": body}

    @staticmethod
    def replay(kept: Any) -> Response:
        if not isinstance(kept, dict) or "status" not in kept:
            return Response(200, [], b"")  # another program took the effect
        headers = [(name, value) for name, value in kept["headers"]]
        headers.append(("Idempotent-Replayed", "true"))
        return Response(kept["status"], headers, base64.b64decode(kept["body"]))

    @staticmethod
    def refusal(error: SemelError) -> Response:
        """Returns an answer after which the sender repeats the request: many give a request up
        after a status below 500.
        """
        if error.complete:
            return Response(200, [], b"")
        status = 422 if isinstance(error, Mismatch) else 503
        document = {"type": "about:blank", "status": status, "title": type(error).__name__}
        document["detail"] = str(error)
        headers = [("Content-Type", "application/problem+json")]
        if error.retry:
            headers.append(("Retry-After", str(max(1, round(error.retry_after)))))
        return Response(status, headers, json.dumps(document).encode())


def bounded(client: Client) -> Client:
    """A handler that never answers keeps its key for 5 minutes, unless the client says else."""
    return client if client.policy.renew_for is not None else client.using(renew_for="5m")


class NotHappened(SemelError):
    """Gives the claim back: the response is an error."""


def key_of(rule: KeyRule, path: str, headers: Mapping[str, str], body: bytes) -> Optional[Id]:
    """Returns the key of a request: its path, and the id by the rule."""
    id = headers.get(rule.lower()) if isinstance(rule, str) else rule(headers, body)
    if id is None:
        return None
    return (path, *(id if isinstance(id, (tuple, list)) else (id,)))
