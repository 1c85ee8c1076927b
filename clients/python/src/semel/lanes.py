"""Calls that arrive together share one request, and each is repeated until it is answered."""

from __future__ import annotations

import heapq
import math
import random
import threading
from collections import deque
from concurrent.futures import Future
from itertools import count
from time import monotonic
from typing import Any, Deque, Optional

from .leases import now
from .link import Address, Link
from .wire import Problem

#: What the server takes in one request: 1,000 items, and 1 MiB less what surrounds them.
MOST_ITEMS, MOST_BYTES = 1000, 1_000_000
#: Requests that are under way at the same time. Python runs one thread at a time, so more of
#: them would only carry fewer calls each.
MOST_LANES = 2
#: Seconds after which a thread without work ends.
IDLE = 10.0


class Call:
    """One item of a request, and the future that gets its answer or its Problem."""

    __slots__ = (
        "answer",
        "body",
        "deadline",
        "in_doubt",
        "sent",
        "timeout",
        "tries",
        "verb",
        "wait_until",
    )

    def __init__(
        self, verb: str, body: str, patience: float, wait: float = 0, timeout: float = math.inf
    ) -> None:
        self.verb = verb
        #: How long one try may take, if that is less than the timeout of the client.
        self.timeout = timeout
        #: A try was not answered, and the server may have done it.
        self.in_doubt = False
        self.body = ('{"' + verb + '":{' + body + "}}").encode()
        self.deadline = monotonic() + max(patience, wait)
        #: Until then, a claim of a key that is in flight is repeated.
        self.wait_until = monotonic() + wait
        self.tries = 0
        #: When the last try began, on the clock of leases.
        self.sent = 0.0
        self.answer: Future[dict[str, Any]] = Future()
        self.answer.set_running_or_notify_cancel()  # nobody can cancel it from here on


class Lanes:
    """Threads that send what is queued. They start with the first call, and end when idle."""

    def __init__(self, address: Address, timeout: float) -> None:
        self._address, self._timeout = address, timeout
        self.reset()

    def reset(self) -> None:
        """Begins without threads and calls, also in the child of a fork."""
        self._changed = threading.Condition()
        # Guarded by _changed:
        self._queue: Deque[Call] = deque()
        self._later: list[tuple[float, int, Call]] = []
        self._order = count()
        self._threads = self._idle = 0

    def submit(self, call: Call) -> Future[dict[str, Any]]:
        with self._changed:
            self._queue.append(call)
            failure: Optional[Problem] = None
            if self._idle:
                self._changed.notify()
            elif self._threads < MOST_LANES:
                self._threads += 1
                try:
                    threading.Thread(target=self._run, name="semel-lane", daemon=True).start()
                except Exception as error:  # the process has too many threads
                    self._threads -= 1
                    if self._threads == 0:
                        self._queue.pop()
                        failure = Problem("", str(error), "later")
        if failure is not None:
            call.answer.set_exception(failure)
        return call.answer

    def _run(self) -> None:
        link = Link(self._address)
        try:
            while calls := self._take():
                self._send(link, calls)
        except BaseException:
            with self._changed:
                self._threads -= 1
            raise
        finally:
            link.close()

    def _take(self) -> list[Call]:
        """Waits for calls, and returns as many as one request takes; none if it was idle."""
        with self._changed:
            while True:
                time = monotonic()
                while self._later and self._later[0][0] <= time:
                    self._queue.append(heapq.heappop(self._later)[2])
                calls: list[Call] = []
                size = 0
                while self._queue and len(calls) < MOST_ITEMS:
                    size += len(self._queue[0].body) + 1
                    if calls and size > MOST_BYTES:
                        break
                    calls.append(self._queue.popleft())
                if calls:
                    return calls
                self._idle += 1
                notified = self._changed.wait(self._later[0][0] - time if self._later else IDLE)
                self._idle -= 1
                if not notified and not self._queue and not self._later:
                    self._threads -= 1  # before a call can count on this thread
                    return []

    def _send(self, link: Link, calls: list[Call]) -> None:
        began = now()
        for call in calls:
            call.sent = began
        body = b'{"items":[' + b",".join(call.body for call in calls) + b"]}"
        try:
            timeout = min(self._timeout, min(call.timeout for call in calls))
            answers = link.post("/v1/batch", body, timeout).get("items")
            if not isinstance(answers, list) or len(answers) != len(calls):
                raise Problem("", "the answer does not have one item for each call", "same")
        except Problem as problem:
            if problem.retry == "no" and len(calls) > 1:
                for call in calls:  # one of them must not refuse the others
                    self._send(link, [call])
                return
            for call in calls:
                self._fail(call, problem)
            return
        except BaseException as error:  # nobody may wait for a thread that has ended
            for call in calls:
                call.in_doubt = True
                call.answer.set_exception(Problem("", repr(error), "same"))
            raise
        for call, answer in zip(calls, answers):
            if not isinstance(answer, dict):
                self._fail(call, Problem("", "an item of the answer is no object", "same"))
            elif "error" in answer:
                self._fail(call, Problem.of(answer["error"]))
            elif call.verb == "claim" and not _readable(answer):
                self._fail(call, Problem("", f"the answer is no decision: {answer}", "same"))
            elif call.verb == "claim" and self._waits(call, answer):
                pass
            else:
                call.answer.set_result(answer)

    def _fail(self, call: Call, problem: Problem) -> None:
        """Repeats a call later, or tells its caller."""
        call.in_doubt = call.in_doubt or problem.retry == "same"
        if problem.retry == "no" or not self._again(call, problem.after, call.deadline):
            call.answer.set_exception(problem)

    def _waits(self, call: Call, answer: dict[str, Any]) -> bool:
        decision = answer.get("decision")
        if decision in ("fresh", "duplicate", "mismatch", "unknown", "late"):
            return False
        return self._again(call, 0, call.wait_until)

    def _again(self, call: Call, after: float, deadline: float) -> bool:
        call.tries += 1
        pause = min(0.025 * 2 ** min(call.tries, 6), 1.0) * random.uniform(0.5, 1)
        at = monotonic() + max(pause, after)
        if at > deadline:
            return False
        with self._changed:
            heapq.heappush(self._later, (at, next(self._order), call))
            self._changed.notify()
        return True


def _readable(answer: dict[str, Any]) -> bool:
    """Reports whether a granted claim has what its holder needs."""
    if answer.get("decision") != "fresh":
        return True
    token, lease, attempt = answer.get("token"), answer.get("lease_ms"), answer.get("attempt", 1)
    granted = isinstance(token, str) and token.isdigit() and isinstance(lease, (int, float))
    return granted and isinstance(attempt, int)
