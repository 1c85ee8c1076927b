"""What all claims of a client share in a process, and what a fork does to it."""

from __future__ import annotations

import os
import weakref
from typing import Any

from .lanes import Lanes
from .leases import Leases
from .link import Address, Link
from .wire import Problem


class Engine:
    def __init__(self, address: Address, timeout: float) -> None:
        self._address, self._timeout = address, timeout
        self.lanes, self.leases = Lanes(address, timeout), Leases(address, timeout)
        _engines.add(self)

    def ask(self, path: str, body: str) -> dict[str, Any]:
        """Sends one request of its own."""
        link = Link(self._address)
        try:
            return link.post(path, body.encode(), self._timeout)
        except Problem as problem:
            problem.raise_for(path)
        finally:
            link.close()


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _after_fork() -> None:
    """In a child, no thread of the parent runs, and its claims are the parent's to renew."""
    for engine in list(_engines):
        engine.lanes.reset()
        engine.leases.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
