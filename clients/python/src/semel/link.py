"""One connection to the server."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from typing import Any, Optional
from urllib.parse import urlsplit

from .wire import Problem


class Address:
    """Where the server is, and the credentials for it."""

    def __init__(self, url: str, token: Optional[str], tls: Optional[ssl.SSLContext]) -> None:
        self.url, self._tls = url, tls
        self.headers = {"Content-Type": "application/json"}
        if token:
            self.headers["Authorization"] = "Bearer " + token
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https", "unix") or not (parts.netloc or parts.path):
            raise ValueError(
                f"semel: {url!r} is no address of semel serve: expected http://HOST:PORT, "
                "https://HOST:PORT or unix:/PATH"
            )
        self._parts = parts
        self.prefix = "" if parts.scheme == "unix" else parts.path.rstrip("/")

    def connect(self) -> http.client.HTTPConnection:
        host, port = self._parts.hostname or "localhost", self._parts.port
        if self._parts.scheme == "unix":
            return _UnixConnection(self._parts.path)
        if self._parts.scheme == "https":
            return http.client.HTTPSConnection(host, port, context=self._tls)
        return http.client.HTTPConnection(host, port or 4196)


class Link:
    """A connection that one thread uses. It connects again when it must."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connection: Optional[http.client.HTTPConnection] = None

    def post(self, path: str, body: bytes, timeout: float) -> dict[str, Any]:
        """Sends a request and returns the answer, or raises a Problem.

        The server recognises each request that it gets twice, so one that failed on a
        connection that the server had meanwhile closed is sent again at once.
        """
        kept = self._connection is not None
        try:
            return self._post(path, body, timeout)
        except _Silence as silence:
            if not kept or silence.timed_out:
                raise
        return self._post(path, body, timeout)

    def _post(self, path: str, body: bytes, timeout: float) -> dict[str, Any]:
        connection = self._connection or self._address.connect()
        self._connection = connection
        connection.timeout = timeout
        try:
            if connection.sock is not None:
                connection.sock.settimeout(timeout)
            try:
                connection.request("POST", self._address.prefix + path, body, self._address.headers)
            except (BrokenPipeError, ConnectionResetError):
                if connection.sock is None:
                    raise
                # The server may have refused the body, and closed before it read all of it.
            response = connection.getresponse()
            text = response.read()
            answer = json.loads(text) if text else None
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise _Silence(self._address.url, error) from error
        if response.status == 200 and isinstance(answer, dict):
            return answer
        after = response.getheader("Retry-After", "")
        if response.status == 200:
            self.close()
            raise _Silence(self._address.url, ValueError("the answer is no JSON object"))
        raise Problem.of(answer, response.status, float(after) if after.isdigit() else 0)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _Silence(Problem):
    """No answer came, or a part of one: the server may have done what it was asked."""

    def __init__(self, url: str, cause: Exception) -> None:
        said = str(cause) or type(cause).__name__
        super().__init__(
            "no-answer", f"no answer from {url}: {said}: is `semel serve` running there?", "same"
        )
        self.timed_out = isinstance(cause, socket.timeout)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
