"""One request renews the leases of all claims of the process."""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Optional, Protocol

from .link import Address, Link
from .wire import Problem

# On macOS, time.monotonic stands still while the machine sleeps, and this one does not.
_CLOCK: Optional[int] = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def now() -> float:
    """A clock that no one sets, and that counts while the machine is suspended."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


class Held(Protocol):
    """A claim whose lease is renewed."""

    members: str  #: its key in JSON
    token: str
    lease: float  #: seconds
    valid_until: float  #: on the clock of this module
    renew_until: float  #: from then on it is not renewed

    def lose(self, why: str) -> None: ...


class Leases:
    """A thread that renews. It starts with the first claim, and ends when there is none."""

    def __init__(self, address: Address, timeout: float) -> None:
        self._address, self._timeout = address, timeout
        self.reset()

    def reset(self) -> None:
        """Begins without claims and thread, also in the child of a fork."""
        self._changed = threading.Condition()
        # Guarded by _changed:
        self._held: dict[int, Held] = {}
        self._runs = False
        self._next = 0.0
        #: The claims of the request that is under way, and what waits for its answer.
        self._asked: dict[int, list[Callable[[], Any]]] = {}

    def keep(self, claim: Held) -> None:
        due = _due(claim)
        with self._changed:
            self._held[id(claim)] = claim
            if not self._runs:
                self._runs, self._next = True, due
                try:
                    threading.Thread(target=self._run, name="semel-leases", daemon=True).start()
                except Exception:  # the process has too many threads
                    self._runs = False
                    del self._held[id(claim)]
                    raise
            elif due < self._next:
                self._next = due
                self._changed.notify()

    def drop(self, claim: Held, then: Optional[Callable[[], Any]] = None) -> None:
        """Renews the claim no more. It calls `then` when no renewal of it is under way."""
        with self._changed:
            self._held.pop(id(claim), None)
            if then is not None and id(claim) in self._asked:
                self._asked[id(claim)].append(then)
                return
        if then is not None:
            then()

    def _run(self) -> None:
        link = Link(self._address)
        while claims := self._wait():
            began = now()
            for claim in claims:
                if claim.renew_until <= began:
                    self.drop(claim)
                    claim.lose("the effect takes longer than renew_for: its lease is not renewed")
            claims = [claim for claim in claims if claim.renew_until > began]
            # One that is due soon comes along, so that all are due together from then on.
            due = [claim for claim in claims if _due(claim) <= began + claim.lease / 6]
            for first in range(0, len(due), 1000):
                self._renew_held(link, due[first : first + 1000])
            with self._changed:
                # A renewal that failed is repeated four times in the time of one.
                soonest = [max(_due(c), began + c.lease / 12) for c in self._held.values()]
                self._next = min(soonest, default=began)
        link.close()

    def _wait(self) -> list[Held]:
        """Waits for the next renewal, and returns all claims; none if there are none."""
        with self._changed:
            while (wait := self._next - now()) > 0:
                self._changed.wait(wait)
            self._runs = bool(self._held)
            return list(self._held.values())

    def _renew_held(self, link: Link, claims: list[Held]) -> None:
        with self._changed:
            claims = [claim for claim in claims if id(claim) in self._held]
            self._asked = {id(claim): [] for claim in claims}
        try:
            if claims:
                self._renew(link, claims)
        finally:
            with self._changed:
                waiting, self._asked = self._asked, {}
            for called in waiting.values():
                for then in called:
                    then()

    def _renew(self, link: Link, claims: list[Held]) -> None:
        asked = now()
        items = ",".join(
            f'{{{c.members},"token":"{c.token}","lease":"{round(c.lease * 1000)}ms"}}'
            for c in claims
        )
        timeout = min(self._timeout, min(claim.lease for claim in claims) / 3)
        try:
            answers = link.post("/v1/extend", f'{{"items":[{items}]}}'.encode(), timeout)["items"]
            if len(answers) != len(claims):
                raise Problem("", "the answer does not have one item for each lease", "same")
        except (Problem, KeyError, TypeError) as silence:
            if getattr(silence, "retry", "") == "no" and len(claims) > 1:
                half = len(claims) // 2  # a server may take fewer items in one request
                self._renew(link, claims[:half])
                return self._renew(link, claims[half:])
            answers = [{"error": {"retry": "same", "detail": str(silence)}}] * len(claims)
        for claim, answer in zip(claims, answers):
            left = answer.get("lease_ms") if isinstance(answer, dict) else None
            if isinstance(left, (int, float)):
                claim.valid_until = asked + left / 1000
                continue
            problem = Problem.of(answer.get("error") if isinstance(answer, dict) else None)
            if problem.retry == "no" or claim.valid_until <= now():
                self.drop(claim)
                claim.lose(problem.detail)


def _due(claim: Held) -> float:
    return claim.valid_until - claim.lease * 2 / 3
