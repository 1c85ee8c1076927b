"""The client: ways to run effects once, and to look at keys."""

from __future__ import annotations

import functools
import inspect
import json
import os
import ssl
from collections.abc import Awaitable, Coroutine, Hashable, Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any, Callable, Optional, TypeVar, Union, overload

from . import batch, wire
from .batch import Outcome
from .claim import Claim, Policy, is_async
from .engine import Engine
from .link import Address
from .wire import Id

T = TypeVar("T")
Item = TypeVar("Item")
F = TypeVar("F", bound=Callable[..., Any])


class Client:
    """Runs effects once, with a server `semel serve`.

    It is safe for threads, asyncio and fork. It connects with the first call, and there
    is nothing to close. `url` defaults to the variable SEMEL_URL, and then to
    http://127.0.0.1:4196; `token` defaults to the variable SEMEL_API_TOKEN. `timeout`
    is how long one request may take, in seconds, before it is repeated. The other
    parameters are the fields of Policy.
    """

    def __init__(
        self,
        url: Optional[str] = None,
        *,
        token: Optional[str] = None,
        tls: Optional[ssl.SSLContext] = None,
        timeout: float = 10.0,
        **policy: Any,
    ) -> None:
        url = url or os.environ.get("SEMEL_URL") or "http://127.0.0.1:4196"
        token = token or os.environ.get("SEMEL_API_TOKEN")
        self.policy = Policy(**policy)
        self._engine = Engine(Address(url, token, tls), timeout)

    def using(self, **policy: Any) -> Client:
        """Returns a client with other fields of Policy, over the same connections."""
        client = object.__new__(Client)
        client.policy, client._engine = replace(self.policy, **policy), self._engine
        return client

    def claim(
        self,
        key: Id,
        *,
        payload: Any = None,
        time: Optional[datetime] = None,
        origin: str = "",
        request_id: str = "",
    ) -> Claim:
        """Returns a claim for `with` or `async with`.

        Another `payload` under the same key is a Mismatch: bytes, or what JSON can hold.
        `time` is the message's own: one that is older than the window is Late. `origin`
        and `request_id` tell others where this call comes from.
        """
        facts = {"origin": origin, "request_id": request_id}
        if payload is not None:
            facts["fingerprint"] = wire.fingerprint(payload)
        if time is not None:
            facts["time"] = wire.timestamp(time)
        facts = {name: fact for name, fact in facts.items() if fact}
        return Claim(self._engine, self.policy, key, facts)

    @overload
    def once(
        self, key: Id, fn: Callable[..., Coroutine[Any, Any, T]], *args: Any, **kwargs: Any
    ) -> Awaitable[T]: ...
    @overload
    def once(self, key: Id, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T: ...
    def once(self, key: Id, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls fn unless its effect has happened, and returns its result, or the first one.

        If fn is a coroutine function, await the call.
        """
        return self.claim(key).run(fn, *args, **kwargs)

    def idempotent(
        self,
        key: Union[str, Callable[..., Id]],
        *,
        payload: Union[str, Callable[..., Any], None] = None,
    ) -> Callable[[F], F]:
        """Decorates a function, or a coroutine function, so that it runs once for each key.

        `key` and `payload` are names of parameters, or functions of all arguments.
        """

        def decorate(fn: F) -> F:
            key_of = finder(fn, key)
            payload_of = finder(fn, payload) if payload else lambda *args, **kwargs: None

            def call(*args: Any, **kwargs: Any) -> Any:
                claim = self.claim(key_of(*args, **kwargs), payload=payload_of(*args, **kwargs))
                return claim.run(fn, *args, **kwargs)

            async def call_async(*args: Any, **kwargs: Any) -> Any:
                return await call(*args, **kwargs)

            return functools.wraps(fn)(call_async if is_async(fn) else call)  # type: ignore

        return decorate

    def once_each(
        self,
        items: Iterable[Item],
        fn: Callable[[Item], T],
        key: Callable[[Item], Id],
        group: Optional[Callable[[Item], Hashable]] = None,
    ) -> list[Outcome[T]]:
        """Calls fn for each item whose effect has not happened, one after another.

        The claims of all keys share a request. An error of one item is in its outcome. Of
        two items with the same key, the second is a duplicate. With `group`, an item is
        Skipped unless all before it in its group are complete.
        """
        tasks: list[batch.Task[T, Item]] = []
        for item in items:
            task: batch.Task[T, Item] = batch.Task(item, group(item) if group else None)
            tasks.append(task)
            try:
                task.claim = self.claim(key(item))
            except Exception as error:
                task.outcome.error = error
        batch.run(tasks, fn)
        return [task.outcome for task in tasks]

    def lookup(self, keys: Iterable[Id]) -> list[dict[str, Any]]:
        """Returns the record of each key. Its `state` is absent, claimed, done or unknown."""
        items = ",".join("{" + wire.key_members(self.policy.scope, key) + "}" for key in keys)
        return list(self._engine.ask("/v1/lookup", '{"items":[' + items + "]}")["items"])

    def resolve(self, key: Id, *, happened: bool, reason: str) -> None:
        """Settles an unknown key, by a person's decision. This needs the role operator.

        After Unavailable it may be settled: look it up.
        """
        members = {"as": "done" if happened else "absent", "reason": reason}
        text = wire.key_members(self.policy.scope, key) + "," + json.dumps(members)[1:-1]
        self._engine.ask("/v1/resolve", "{" + text + "}")


def finder(fn: Callable[..., Any], of: Union[str, Callable[..., Any]]) -> Callable[..., Any]:
    """Returns a function of the arguments of fn. `of` may name one of them."""
    if callable(of):
        return of
    signature = inspect.signature(fn)
    if of not in signature.parameters:
        names = ", ".join(signature.parameters)
        raise TypeError(f"semel: {fn.__qualname__} has no parameter {of!r}: it has {names}")

    def find(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments[of]

    return find
