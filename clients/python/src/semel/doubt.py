"""Which errors of an effect leave open whether it happened."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator
from http.client import HTTPException
from typing import Any, Optional

from . import errors

#: Names of the classes of libraries that this package does not import. A request that
#: waited for a connection was not sent.
_OPEN = re.compile(
    "time_?d?out|timelimit|deadlineexceeded|disconnected|connection(closed|reset|aborted|lost)"
    "|brokenprocesspool|workerlost"
    "|^(read|write|protocol|remoteprotocol|incompleteread|ssleof)error$",
    re.IGNORECASE,
)
#: A ConnectionTimeout can be that of an answer (elastic-transport), so it is not one of these.
_NOT_SENT = re.compile(
    "^((connect|pool)timeout|connectiontimeouterror$|clientconnector)", re.IGNORECASE
)
#: They decide if the rest of the chain says nothing.
_WEAK = re.compile("^(client)?connectionerror$", re.IGNORECASE)
#: States of SQL: a connection that failed, a server that shut down, an outcome that is unknown.
_OPEN_STATE = re.compile("08(?!001|004)|57P0[12]|40003")
_OPEN_TEXT = re.compile(
    "server closed the connection|lost connection to|ssl connection has been closed"
    "|ssl syscall error|could not (receive|send) data",
    re.IGNORECASE,
)
_NO_CONNECTION = re.compile("connection failed|connection to server .* failed", re.DOTALL)
_NO_CHANNEL = re.compile("failed to connect|connection refused|resolution", re.IGNORECASE)


def leaves(error: BaseException, outer: Optional[BaseException] = None) -> bool:
    """Reports whether the effect that raised this error may have happened.

    A library wraps the error of its connection, so the first error of the chain that says
    anything decides. The chain ends at `outer`, which was raised before the effect.
    """
    return bool(_verdict(error, outer))


def _verdict(error: BaseException, outer: Optional[BaseException]) -> Optional[bool]:
    weak = None
    for link in _chain(error, outer):
        names = [kind.__name__ for kind in type(link).__mro__]
        said = _said(link, names)
        if said is None and "BaseExceptionGroup" in names:
            # One of several errors that leaves it open is enough.
            said = max(
                (v for e in link.exceptions if (v := _verdict(e, outer)) is not None), default=None
            )
        if said is not None:
            return said
        if any(map(_WEAK.search, names)):
            weak = True
    return weak


def _chain(error: BaseException, outer: Optional[BaseException]) -> Iterator[Any]:
    seen: list[BaseException] = []
    after: Optional[BaseException] = error
    while after is not None and after not in seen:
        yield after
        seen.append(after)
        suppressed = after.__cause__ or after.__suppress_context__
        after = after.__cause__ if suppressed else after.__context__
        if after is outer:
            break


def _said(error: Any, names: list[str]) -> Optional[bool]:
    if isinstance(error, errors.SemelError):
        ran = bool(getattr(error, "ran", False))
        return ran or isinstance(error, (errors.Unknown, errors.LeaseLost))
    if not isinstance(error, Exception):
        return True  # an interrupt or a cancellation
    if isinstance(error, (ConnectionRefusedError, socket.gaierror, ssl.SSLCertVerificationError)):
        return False
    if any(map(_NOT_SENT.search, names)):
        return False
    if isinstance(error, (ConnectionError, HTTPException)) or any(map(_OPEN.search, names)):
        return True
    if "RpcError" in names and callable(getattr(error, "code", None)):
        return _grpc(error)
    state, text = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None), str(error)
    if state and _OPEN_STATE.match(str(state)):
        return True
    return True if _OPEN_TEXT.search(text) and not _NO_CONNECTION.search(text) else None


def _grpc(error: Any) -> Optional[bool]:
    status = getattr(error.code(), "name", "")
    if status == "UNAVAILABLE" and _NO_CHANNEL.search(str(error.details())):
        return False
    return True if status in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED") else None
