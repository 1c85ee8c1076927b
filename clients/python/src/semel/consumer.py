"""What a consumer loop does with the outcome of a message."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any, Callable, Optional

from .batch import Outcome
from .errors import Refused, SemelError

_CREDENTIALS = ("unauthenticated", "forbidden")


class Settler:
    """Decides whether a message is settled, comes again, or is parked.

    A message whose effect is complete is settled. One that fails is repeated `attempts`
    times. One that needs a person, or failed too often, is parked: `park` stores it with
    its error, and returns when it is stored. Without `park`, the error ends the loop, and
    the message comes again when the loop is started again. So does an error of the client's
    credentials, which says nothing of the message.
    """

    def __init__(
        self, park: Optional[Callable[[Any, Exception], None]], attempts: int, stop: threading.Event
    ) -> None:
        self._park, self._attempts, self._stop = park, attempts, stop
        self._failures: dict[Hashable, int] = {}
        self._pause = 0.0

    def settled(self, place: Hashable, message: Any, outcome: Outcome[Any]) -> bool:
        """Reports whether the message may be acknowledged."""
        error = outcome.error
        if error is None or outcome.complete:
            self._failures.pop(place, None)
            return True
        if isinstance(error, SemelError) and error.retry:
            self._pause = max(self._pause, min(error.retry_after, 10))
            return False
        failures = self._failures[place] = self._failures.get(place, 0) + 1
        if not isinstance(error, SemelError) and failures < self._attempts:
            self._pause = max(self._pause, min(0.1 * 2**failures, 10))
            return False
        credentials = isinstance(error, Refused) and error.problem in _CREDENTIALS
        if self._park is None or credentials:
            raise error
        self._park(message, error)
        del self._failures[place]
        return True

    def pause(self) -> None:
        """Waits before messages come again."""
        self._stop.wait(max(self._pause, 0.05))
        self._pause = 0
