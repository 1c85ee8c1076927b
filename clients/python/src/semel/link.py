"""One connection to the server."""

from __future__ import annotations

import io
import json
import select
import socket
import ssl
from contextlib import suppress
from typing import Any, BinaryIO, NamedTuple, Optional
from urllib.parse import urlsplit

from .wire import Problem

#: The longest line of a head, and the most lines.
MOST_LINE, MOST_LINES = 65536, 200


class Address:
    """Where the server is, and the credentials for it."""

    def __init__(self, url: str, token: Optional[str], tls: Optional[ssl.SSLContext]) -> None:
        self.url, self._tls = url, tls
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https", "unix") or not (parts.netloc or parts.path):
            raise ValueError(
                f"semel: {url!r} is no address of semel serve: expected http://HOST:PORT, "
                "https://HOST:PORT or unix:/PATH"
            )
        if token and not (token.isascii() and token.isprintable() and " " not in token):
            raise ValueError("semel: the token has characters that a header cannot hold")
        self._parts = parts
        unix = parts.scheme == "unix"
        self.prefix = "" if unix else parts.path.rstrip("/")
        host = "localhost" if unix else parts.netloc.rpartition("@")[2]
        if parts.scheme == "http" and parts.port is None:
            host += ":4196"
        self.headers = (
            f"Host: {host}\r\nAccept-Encoding: identity\r\nContent-Type: application/json\r\n"
            + (f"Authorization: Bearer {token}\r\n" if token else "")
        )

    def connect(self, timeout: float) -> socket.socket:
        """Connects. What fails after that closes the socket."""
        if self._parts.scheme == "unix":
            sock = socket.socket(socket.AF_UNIX)
        else:
            host = self._parts.hostname or "localhost"
            default = 443 if self._parts.scheme == "https" else 4196
            sock = socket.create_connection((host, self._parts.port or default), timeout)
        try:
            if self._parts.scheme == "unix":
                sock.settimeout(timeout)
                sock.connect(self._parts.path)
                return sock
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._parts.scheme == "https":
                tls = self._tls or ssl.create_default_context()
                return tls.wrap_socket(sock, server_hostname=host)
            return sock
        except BaseException:
            sock.close()
            raise


class Answer(NamedTuple):
    """An answer of HTTP/1.1."""

    status: int
    body: bytes
    retry_after: str
    #: Whether the connection can take another request.
    kept: bool


def read_answer(file: BinaryIO) -> Answer:
    """Reads an answer. `semel serve` states the length of each. A server in between may write
    chunks, or end the connection behind an answer. Raises ValueError if it is no whole answer.
    """
    status = 100
    while status < 200:  # one below says that another answer follows
        first = _line(file)
        version, _, rest = first.partition(b" ")
        if version not in (b"HTTP/1.1", b"HTTP/1.0") or not rest[:3].isdigit():
            raise ValueError(f"the answer is not HTTP/1.1: {first[:100]!r}")
        status = int(rest[:3])
        headers = _headers(file)
    coding, length = headers.get(b"transfer-encoding"), headers.get(b"content-length")
    ends = coding is None and length is None
    if status in (204, 304):
        body, ends = b"", False
    elif coding is not None and coding.lower().endswith(b"chunked"):
        body = _chunks(file)
    elif coding is None and length is not None:
        if not length.isdigit():
            raise ValueError("the answer has no length")
        body = _exactly(file, int(length))
    else:
        body, ends = file.read(), True
    closed = ends or version == b"HTTP/1.0" or b"close" in headers.get(b"connection", b"").lower()
    after = headers.get(b"retry-after", b"").decode("latin-1")
    return Answer(status, body, after, not closed)


def _line(file: BinaryIO) -> bytes:
    line = file.readline(MOST_LINE)
    if not line.endswith(b"\n"):
        raise ValueError("the connection ended before the answer" if line else "no answer came")
    return line.rstrip(b"\r\n")


def _headers(file: BinaryIO) -> dict[bytes, bytes]:
    headers: dict[bytes, bytes] = {}
    for _ in range(MOST_LINES):
        line = _line(file)
        if not line:
            return headers
        name, _, value = line.partition(b":")
        headers[name.lower()] = value.strip()
    raise ValueError("the answer has a head that is too long")


def _exactly(file: BinaryIO, n: int) -> bytes:
    data = file.read(n)
    if len(data) < n:
        raise ValueError("the connection ended before the answer")
    return data


def _chunks(file: BinaryIO) -> bytes:
    parts: list[bytes] = []
    while True:
        digits = _line(file).partition(b";")[0].strip()
        if not 0 < len(digits) <= 8 or digits.strip(b"0123456789abcdefABCDEF"):
            raise ValueError("the answer has a chunk without a length")
        n = int(digits, 16)
        if n == 0:
            _headers(file)  # behind the last chunk
            return b"".join(parts)
        parts.append(_exactly(file, n))
        _line(file)


class Link:
    """A connection that one thread uses. It connects again when it must. It speaks HTTP itself:
    http.client takes longer for a request than all else that is done for the calls in it.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._sock: Optional[socket.socket] = None
        self._stream: Optional[_Stream] = None
        self._file: Optional[io.BufferedReader] = None  # what comes over the socket
        self._timeout = 0.0  # of the socket

    def post(self, path: str, body: bytes, timeout: float) -> dict[str, Any]:
        """Sends a request once and returns the answer, or raises a Problem."""
        to = self._address
        head = f"POST {to.prefix}{path} HTTP/1.1\r\n{to.headers}Content-Length: {len(body)}\r\n\r\n"
        try:
            if not self._quiet():
                self.close()
            if self._sock is None:
                self._sock, self._timeout = to.connect(timeout), timeout
                self._stream = _Stream(self._sock)
                self._file = io.BufferedReader(self._stream)
            assert self._file is not None
            if timeout != self._timeout:
                self._sock.settimeout(timeout)
                self._timeout = timeout
            # The server may have refused the body, and closed before it read all of it.
            with suppress(BrokenPipeError, ConnectionResetError):
                self._sock.sendall(head.encode() + body)
            answer = read_answer(self._file)
            value = json.loads(answer.body) if answer.body else None
        except (OSError, ValueError) as error:
            self.close()
            raise _silence(to.url, error) from error
        except BaseException:  # an interrupt: the answer that comes is not that of the next request
            self.close()
            raise
        if not answer.kept:
            self.close()
        if answer.status == 200 and isinstance(value, dict):
            return value
        if answer.status == 200:
            self.close()
            raise _silence(to.url, ValueError("the answer is no JSON object"))
        after = answer.retry_after
        raise Problem.of(value, answer.status, float(after) if after.isdigit() else 0)

    def _quiet(self) -> bool:
        """Reports whether nothing has come over the connection since the last answer: neither its
        end, after which a request would be lost, nor bytes, which would be read as the answer to
        the next request.
        """
        if self._sock is None or self._stream is None or self._file is None:
            return False
        self._stream.held = True
        read = self._file.read(1)
        self._stream.held = False
        return read is None and not _readable(self._sock)

    def close(self) -> None:
        sock, file, self._sock, self._file = self._sock, self._file, None, None
        if file is not None:
            file.close()
        if sock is not None:
            sock.close()


class _Stream(io.RawIOBase):
    """What comes over a socket. While it is held, only what was read before is there."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.held = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> Optional[int]:
        return None if self.held else self._sock.recv_into(buffer)


def _readable(sock: socket.socket) -> bool:
    """Reports whether bytes, or the end, have come over a socket. It costs one call of the system:
    each one hands the interpreter to another thread.
    """
    if isinstance(sock, ssl.SSLSocket) and sock.pending() > 0:
        return True
    if not hasattr(select, "poll"):  # on Windows
        return bool(select.select([sock], [], [], 0)[0])
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _silence(url: str, cause: Exception) -> Problem:
    """No answer came, or a part of one: the server may have done what it was asked."""
    said = str(cause) or type(cause).__name__
    return Problem(
        "no-answer", f"no answer from {url}: {said}: is `semel serve` running there?", "same"
    )
