"""The claim of one key: from its request until its effect is recorded."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import json
import logging
import math
import os
import socket
import sys
import uuid
from collections.abc import Awaitable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import AsyncGeneratorType, CoroutineType, GeneratorType, TracebackType
from typing import Any, Callable, Optional

from . import doubt, errors, wire
from .engine import Engine
from .lanes import MOST_BYTES, Call
from .leases import now
from .wire import Duration, Id, Problem

_host = socket.gethostname()
_strict = json.JSONEncoder(allow_nan=False).encode
_NOT_KEPT = {"not_kept": True}
#: How many characters of a permanent failure are kept. One that is not kept looks like an effect
#: that happened.
MOST_FAILURE = 10_000
_log = logging.getLogger("semel")
_WORK: tuple[Any, ...] = (GeneratorType, AsyncGeneratorType, Future, Awaitable)
_current: contextvars.ContextVar[Claim] = contextvars.ContextVar("semel-claim")


def current() -> Claim:
    """Returns the claim of the effect that runs: its attempt and its fencing token."""
    return _current.get()


@dataclass(frozen=True)
class Policy:
    """How keys are claimed. Client has a parameter for each field."""

    #: The key space. Two effects of the same message need two scopes.
    scope: str = "default"
    #: How long a holder that died keeps its claim. It is renewed while the effect runs.
    lease: Duration = 30.0
    #: How long a key is remembered after its effect.
    window: Duration = "24h"
    #: After a holder died: "hold" makes the key unknown, "retry" lets the effect run again.
    on_lease_expired: str = "hold"
    #: How long a call waits for another one that holds the key.
    wait: Duration = 0.0
    #: How long a call is repeated while the server gives no answer.
    retry_for: Duration = 30.0
    #: How long the lease is renewed, at most, for an effect that never ends. Then it ends, as if
    #: the holder had died. If the effect ends after all, its key is completed. None is for ever;
    #: the middleware for web frameworks has 5 minutes.
    renew_for: Optional[Duration] = None
    #: Further exceptions of an effect that leave open whether it happened. Unknown, timeouts
    #: and lost connections always do. Those of this package are none.
    unknown_on: tuple[type[BaseException], ...] = ()
    #: Exceptions of an effect that are kept as its result, as Permanent always is. Those of this
    #: package are none.
    permanent_on: tuple[type[BaseException], ...] = ()
    #: The name that others see while they wait. Defaults to host and process id.
    holder: str = ""

    def __post_init__(self) -> None:
        if self.on_lease_expired not in ("hold", "retry"):
            word = self.on_lease_expired
            raise ValueError(f'semel: on_lease_expired is {word!r}: expected "hold" or "retry"')
        if wire.seconds(self.lease) < 0.05:
            raise ValueError(f"semel: lease is {self.lease!r}: expected at least 50 ms")

    @functools.cached_property
    def _terms(self) -> str:
        """The members that each claim has, without braces."""
        members = {
            "lease": wire.duration(self.lease),
            "window": wire.duration(self.window),
            "on_lease_expired": self.on_lease_expired,
        }
        return json.dumps(members)[1:-1]


class Claim:
    """The right to take the effect of one key, for `with` and `async with`.

    `fresh` says whether to take the effect. Set `result` to what later calls get: a value
    that JSON can hold. If not fresh, it is the result of the first call. The claim is
    completed at the end of the body, and given back if the body raises.
    """

    def __init__(self, engine: Engine, policy: Policy, key: Id, facts: dict[str, str]) -> None:
        self.key = key
        #: Take the effect now.
        self.fresh = False
        #: Above 1 if an earlier attempt may have taken effect.
        self.attempt = 0
        #: The fencing token: a later holder of the key has a higher number.
        self.token = ""
        self.result: Any = None
        #: The lease ended, and another call may have the key.
        self.lost = False

        self.members = wire.key_members(policy.scope, key)
        self.lease = wire.seconds(policy.lease)
        self.valid_until = 0.0
        self.renew_until = math.inf
        self._engine, self._policy = engine, policy
        self._facts = {
            "claim_id": uuid.uuid4().hex,
            "holder": policy.holder or f"{_host}:{os.getpid()}",
            **facts,
        }
        self._call: Optional[Call] = None
        self._process = 0  # the one that claimed: a forked child does not hold the key
        self._entered = False
        self._outer: Optional[BaseException] = None  # what the caller handles meanwhile
        self._ended = False
        self._unfit: Optional[TypeError] = None  # the result cannot be kept
        self._why = "the lease ended before it was renewed"
        self._task: Optional[asyncio.Task[Any]] = None  # of the body, if it is async
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._cancelled = False

    def __repr__(self) -> str:
        return f"{self.key!r} in {self._policy.scope}"

    def check(self) -> None:
        """Raises LeaseLost if another call may have the key. Call it in a long effect."""
        if self.fresh and not self._holds():
            raise errors.LeaseLost(f"semel: {self}: {self._why}")

    def _holds(self) -> bool:
        """Asks the clock as well: a process that was stopped renewed nothing meanwhile."""
        return not self.lost and self.valid_until > now()

    def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Claims, calls fn if fresh, and returns its result, or the first one."""
        if is_async(fn):
            return self._run_async(fn, *args, **kwargs)
        with self:
            if self.fresh:
                self.take_effect(fn, *args, **kwargs)
        return self.result

    async def _run_async(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        async with self:
            if self.fresh:
                with self.running():
                    self.result = await fn(*args, **kwargs)
                refuse_work(self.result)
        return self.result

    def take_effect(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        if not self._holds():
            raise self._too_late()
        if is_generator(fn):
            raise TypeError(
                f"semel: {self}: the effect is a generator function, whose body did not run"
            )
        with self.running():
            self.result = fn(*args, **kwargs)
        refuse_work(self.result)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Lets current() return this claim."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    # From the request to its decision.

    def request(self) -> Future[dict[str, Any]]:
        """Sends the claim, at most once. `with` waits for the answer."""
        if self._call is None:
            self._process = os.getpid()
            retry_for = wire.seconds(self._policy.retry_for)
            self._call = self._claim_call(retry_for, wire.seconds(self._policy.wait))
            self._engine.lanes.submit(self._call)
        return self._call.answer

    def _claim_call(self, patience: float, wait: float = 0) -> Call:
        # The server must hear a repetition before the lease of a lost answer has ended.
        facts = ",".join(f'"{name}":{json.dumps(fact)}' for name, fact in self._facts.items())
        body = f"{self.members},{self._policy._terms},{facts}"
        return Call("claim", body, patience, wait, self.lease / 3)

    def _enter(self) -> Future[dict[str, Any]]:
        asked = self.request()
        if self._entered or self._process != os.getpid():
            raise RuntimeError(f"semel: {self}: a claim is entered once: make another one")
        self._entered, self._outer = True, sys.exc_info()[1]
        return asked

    def __enter__(self) -> Claim:
        asked = self._enter()
        try:
            self._decide(asked.result())
        except Problem as problem:
            self._disown()
            problem.raise_for(f"{self}: nothing ran")
        except BaseException:
            self.abandon()
            raise
        return self

    async def __aenter__(self) -> Claim:
        asked = self._enter()
        self._task, self._loop = asyncio.current_task(), asyncio.get_running_loop()
        try:
            self._decide(await asyncio.wrap_future(asked))
        except Problem as problem:
            self._disown()
            problem.raise_for(f"{self}: nothing ran")
        except BaseException:
            self.abandon()
            raise
        return self

    def _decide(self, answer: dict[str, Any]) -> None:
        assert self._call is not None
        decision = answer.get("decision")
        if decision == "fresh":
            self.token, self.attempt = str(answer["token"]), answer.get("attempt", 1)
            self.valid_until = self._call.sent + answer["lease_ms"] / 1000
            if self._policy.renew_for is not None:
                self.renew_until = self._call.sent + wire.seconds(self._policy.renew_for)
            if not self._holds():
                raise self._too_late()
            self._engine.leases.keep(self)
            self.fresh = True
        elif decision == "duplicate":
            self._replay(answer.get("result") or {})
        else:
            raise self._refusal(decision, answer)

    def _replay(self, result: dict[str, Any]) -> None:
        kind = result.get("kind", "none")
        if kind == "failed":
            failure = errors.Permanent(result.get("text", ""))
            failure.replayed = True
            raise failure
        if kind == "not_kept":
            raise errors.NotKept(f"semel: {self}: the effect is complete; its result was not kept")
        self.result = wire.result_value(result)

    def _refusal(self, decision: Any, answer: dict[str, Any]) -> errors.SemelError:
        """Returns the error for a decision. A word that is not known means: not now."""
        kinds = {
            "mismatch": (errors.Mismatch, "the key was used with another payload"),
            "late": (errors.Late, "the message is older than the window, and its key forgotten"),
            "unknown": (
                errors.Unknown,
                "an earlier call may have taken effect: look whether it did, and settle the key "
                "with `semel keys resolve`",
            ),
        }
        kind, what = kinds.get(decision, (errors.InFlight, "another call holds the key"))
        holder = answer.get("holder", "")
        error = kind(f"semel: {self}: {what}" + (f" (held by {holder})" if holder else ""))
        error.holder = holder
        error.origin, error.request_id = answer.get("origin", ""), answer.get("request_id", "")
        after = answer.get("retry_after_ms")
        error.retry_after = after / 1000 if isinstance(after, (int, float)) else 1.0
        return error

    def _too_late(self) -> errors.InFlight:
        return errors.InFlight(f"semel: {self}: the lease ended before the effect began")

    def abandon(self) -> None:
        """Gives the claim back if it was requested and its effect did not begin."""
        if self.fresh:
            self.end(errors.Skipped())
        elif self._call is not None:
            self._call.answer.add_done_callback(self._abandon)

    def _disown(self) -> None:
        """Asks on for an answer that the caller does not wait for, to give the key back."""
        if self._call is not None and self._call.in_doubt:
            call = self._claim_call(self.lease)
            call.answer.add_done_callback(self._abandon)
            self._engine.lanes.submit(call)

    def _abandon(self, asked: Future[dict[str, Any]]) -> None:
        """Gives back what nobody waits for any more."""
        if self._ended or asked.exception():
            return
        answer = asked.result()
        if answer.get("decision") == "fresh":
            self._ended = True
            self.token, self.attempt = str(answer["token"]), answer.get("attempt", 1)
            self._give_back()

    def _give_back(self) -> Future[Any]:
        if self.attempt > 1:
            return self._send("extend", lease="1ms")  # the next attempt must know of earlier ones
        return self._send("release")

    # From the end of the body to its record.

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.wait(self.end(error))

    async def __aexit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        sent = self.end(error)
        while sent is not None:
            try:
                await asyncio.wrap_future(sent)  # if cancelled here, the request goes on
                break
            except Problem as problem:
                sent = self._refused(problem)
        if self._unfit is not None:
            raise self._unfit
        if self._cancelled and isinstance(error, asyncio.CancelledError):
            if self._task is not None and hasattr(self._task, "uncancel"):
                self._task.uncancel()
            raise errors.LeaseLost(f"semel: {self}: cancelled: {self._why}") from error

    def wait(self, sent: Optional[Future[Any]]) -> None:
        """Waits until the end of the body is recorded."""
        while sent is not None:
            try:
                sent.result()
                break
            except Problem as problem:
                sent = self._refused(problem)
        if self._unfit is not None:
            raise self._unfit

    def end(self, error: Optional[BaseException]) -> Optional[Future[Any]]:
        """Sends how the body ended."""
        if not self.fresh or self._ended or self._process != os.getpid():
            return None
        try:
            self._ended = True
            return self._send_end(error)
        except BaseException:  # an interrupt: what is not recorded must not be renewed
            self._engine.leases.drop(self)
            raise

    def _send_end(self, error: Optional[BaseException]) -> Future[Any]:
        if error is None:
            return self._complete(self.result)
        permanent_on, unknown_on = self._policy.permanent_on, self._policy.unknown_on
        if isinstance(error, errors.SemelError):  # it says itself whether anything ran
            permanent_on = unknown_on = ()
        if isinstance(error, (errors.Permanent, *permanent_on)):
            return self._send("complete", result={"failed": str(error)[:MOST_FAILURE]})
        hold = self._policy.on_lease_expired == "hold"
        if isinstance(error, unknown_on) or doubt.leaves(error, self._outer):
            if hold:
                return self._send("release", unknown=True)
            return self._send("extend", lease="1ms")  # the next attempt must know of this one
        return self._give_back()

    def _complete(self, result: Any) -> Future[Any]:
        if result is None:
            return self._send("complete")
        try:
            refuse_work(result)
        except TypeError as work:  # the body ran, and nobody knows what of it is the effect
            self._unfit = work
            return self._send_end(errors.Unknown())
        try:
            return self._send("complete", result={"json": result})
        except Exception as error:  # whatever the result is, the effect has happened
            self._unfit = TypeError(
                f"semel: {self}: the effect is recorded, but not its result, which "
                f"JSON cannot hold: {error}"
            )
            return self._send("complete", result=_NOT_KEPT)

    def _send(self, verb: str, **members: Any) -> Future[Any]:
        patience = wire.seconds(self._policy.retry_for)
        if verb == "complete":
            members["window"] = wire.duration(self._policy.window)
            patience = max(patience, self.lease)
        self._verb, self._kept = verb, members.get("result") != _NOT_KEPT
        told = ",".join(f'"{name}":{_strict(member)}' for name, member in members.items())
        body = f'{self.members},"token":"{self.token}"' + (told and "," + told)
        if verb == "complete" and self._kept and len(body) > MOST_BYTES:
            _log.warning("%s: the result is not kept: it has %d bytes", self, len(body))
            return self._send("complete", result=_NOT_KEPT)
        call = Call(verb, body, patience)
        if verb == "complete":  # the lease must last until this is answered
            call.answer.add_done_callback(lambda _: self._engine.leases.drop(self))
            self._engine.lanes.submit(call)
        else:  # a renewal that arrives later would undo a short lease
            self._engine.leases.drop(self, lambda: self._engine.lanes.submit(call))
        return call.answer

    def _refused(self, problem: Problem) -> Optional[Future[Any]]:
        """Raises what the caller must know of a refused end, or sends another one."""
        refused = problem.retry == "no" and problem.kind != "stale-token"
        if self._verb == "complete" and self._kept and refused:
            _log.warning("%s: the result is not kept: %s", self, problem.detail)
            return self._send("complete", result=_NOT_KEPT)
        if self._verb != "complete":  # the lease ends by itself, and the body has raised
            # If the token is stale, an earlier try gave the key back, or the lease was lost.
            if problem.kind != "stale-token":
                _log.warning("%s: the claim was not given back: %s", self, problem.detail)
            return None
        if problem.kind == "stale-token":
            detail = f"semel: {self}: the effect ran, but another call may have had the key: "
            raise errors.LeaseLost(detail + problem.detail) from problem
        problem.raise_for(f"{self}: the effect ran, and may not be recorded", ran=True)

    def lose(self, why: str) -> None:
        """Is called by the thread that renews. An async body is cancelled."""
        if self._ended:  # the end has its own answer
            return
        self.lost, self._why = True, why
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended, and with it the body
                self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None and not self._ended:
            self._cancelled = True
            self._task.cancel()


def refuse_work(result: Any) -> None:
    """Raises a TypeError for a result that is work to be done, and not what came of it.

    The function that returned it has run, so nobody knows what of it is the effect.
    """
    if not isinstance(result, _WORK):
        return
    if (
        isinstance(result, CoroutineType)
        and inspect.getcoroutinestate(result) == inspect.CORO_CREATED
    ):
        result.close()  # otherwise Python warns that it was never awaited
    what = (
        f"semel: the result is a {type(result).__name__}, and the effect may have happened:"
        " await it, or iterate over it, and return what comes of it"
    )
    raise TypeError(what) from errors.Unknown(what)


def is_generator(fn: Callable[..., Any]) -> bool:
    """Reports whether a call of fn runs nothing of its body."""
    return any(
        inspect.isgeneratorfunction(f) or inspect.isasyncgenfunction(f)
        for f in (fn, getattr(fn, "__call__", None))  # noqa: B004
    )


def is_async(fn: Callable[..., Any]) -> bool:
    if inspect.iscoroutinefunction(fn):
        return True
    # A function is called itself, and an object by a method of its class.
    return not inspect.isfunction(fn) and inspect.iscoroutinefunction(
        getattr(fn, "__call__", None)  # noqa: B004
    )
