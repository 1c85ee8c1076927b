"""Which errors of an effect leave open whether it happened."""

from __future__ import annotations

import re
import socket
from http.client import HTTPException
from typing import Optional

from . import errors

#: Names of the classes of libraries that this package does not import. A request that
#: waited for a connection was not sent.
_OPEN = re.compile(
    "time_?d?out|timelimit|deadlineexceeded|disconnected|connection(closed|reset|aborted|lost)"
    "|^(read|write|protocol|remoteprotocol)error$",
    re.IGNORECASE,
)
_NOT_SENT = re.compile("^(connect|pool)timeout", re.IGNORECASE)


def leaves(error: BaseException, outer: Optional[BaseException] = None) -> bool:
    """Reports whether the effect that raised this error may have happened.

    A library wraps the error of its connection, so the first error of the chain that says
    anything decides. The chain ends at `outer`, which was raised before the effect.
    """
    chain: list[BaseException] = []
    after: Optional[BaseException] = error
    while after is not None and after not in chain:
        chain.append(after)
        suppressed = after.__cause__ or after.__suppress_context__
        after = after.__cause__ if suppressed else after.__context__
        if after is outer:
            break
    for error in chain:
        if isinstance(error, errors.SemelError):
            ran = isinstance(error, errors.Unavailable) and error.ran
            return ran or isinstance(error, (errors.Unknown, errors.LeaseLost))
        if not isinstance(error, Exception):
            return True  # an interrupt or a cancellation
        names = [kind.__name__ for kind in type(error).__mro__]
        if isinstance(error, (ConnectionRefusedError, socket.gaierror)):
            return False
        if any(map(_NOT_SENT.search, names)):
            return False
        if isinstance(error, (ConnectionError, HTTPException)) or any(map(_OPEN.search, names)):
            return True
    return False
