"""A decorator for Celery tasks."""

from __future__ import annotations

import functools
from typing import Any, Callable, Optional, TypeVar, Union

from celery import current_task
from celery.exceptions import Reject, Retry

from .claim import is_async
from .client import Client, finder
from .errors import NotKept, SemelError
from .wire import Scalar

F = TypeVar("F", bound=Callable[..., Any])
Key = Union[Scalar, "tuple[Scalar, ...]"]


def once(client: Client, key: Union[str, Callable[..., Key], None] = None) -> Callable[[F], F]:
    """Decorates the function of a task, below `@app.task`, so that it runs once for each key.

    `key` is the name of a parameter, or a function of all arguments. Without it, the key is
    the id of the task, which a redelivery has too. The name of the task is part of the key. A
    task whose key is in flight is retried later, for as long as it is: this takes none of its
    `max_retries`. Set acks_late and reject_on_worker_lost, or the broker forgets the task of
    a worker that dies.
    """

    def decorate(fn: F) -> F:
        if is_async(fn):
            raise TypeError(f"semel: {fn.__qualname__} is an async def, which Celery does not run")
        key_of: Optional[Callable[..., Key]] = finder(fn, key) if key else None

        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            task = current_task
            id = key_of(*args, **kwargs) if key_of else task.request.id
            claim = client.claim(
                (task.name, *(id if isinstance(id, (tuple, list)) else (id,))),
                origin=task.name,
                request_id=task.request.id or "",
            )
            try:
                return claim.run(fn, *args, **kwargs)
            except NotKept:
                return None  # the effect is complete
            except SemelError as error:
                if not error.retry or task.request.is_eager or task.request.called_directly:
                    raise
                raise _again(task, error) from error

        return call  # type: ignore[return-value]

    return decorate


def _again(task: Any, error: SemelError) -> Any:
    """Sends the task again, and returns what tells the worker so.

    Task.retry would count this as an attempt of the task: its max_retries of 3 would end before
    the lease of a worker that died, and the task would be lost.
    """
    countdown = max(error.retry_after, 1)
    again = task.signature_from_request(countdown=countdown, retries=task.request.retries)
    try:
        again.apply_async()
    except Exception as cause:
        return Reject(cause, requeue=True)
    return Retry(exc=error, when=countdown, sig=again)
